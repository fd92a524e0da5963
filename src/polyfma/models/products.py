"""Linear layers computed in fp32: rounded to 16 bits, as a GPU's 16-bit product with fp32 sums does, or, of logits, not rounded at all."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor, nn


@contextmanager
def fp32_products(model: nn.Module) -> Iterator[None]:
    """Every 16-bit ``nn.Linear`` of a model multiplies in fp32, with fp32 copies of its weights, and rounds its result once."""
    bound: list[nn.Linear] = []
    copies: dict[int, Tensor] = {}
    try:
        for module in model.modules():
            if type(module) is nn.Linear and module.weight.dtype in (torch.bfloat16, torch.float16) and "forward" not in module.__dict__:
                # Tied weights are one copy.
                weight = copies.setdefault(id(module.weight), module.weight.detach().float())
                module.__dict__["forward"] = partial(_forward, weight, None if module.bias is None else module.bias.detach().float())
                bound.append(module)
        yield
    finally:
        for module in bound:
            del module.__dict__["forward"]


@contextmanager
def fp32_logits(model: nn.Module) -> Iterator[None]:
    """The last projection's results in fp32. In BF16 a logit of 20 is rounded to steps of 1/8, and two runs that differ at all differ by
    1e-3 nats through that alone, whatever the network did."""
    head = getattr(model, "get_output_embeddings", lambda: None)()
    if type(head) is not nn.Linear:
        yield
        return
    before = head.__dict__.get("forward")
    weight, bias = head.weight.detach().float(), None if head.bias is None else head.bias.detach().float()
    head.__dict__["forward"] = lambda x: nn.functional.linear(x.float(), weight, bias)
    try:
        yield
    finally:
        if before is None:
            del head.__dict__["forward"]
        else:
            head.__dict__["forward"] = before


def _forward(weight: Tensor, bias: Tensor | None, x: Tensor) -> Tensor:
    return nn.functional.linear(x.float(), weight, bias).to(x.dtype)
