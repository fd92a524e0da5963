"""The operators as torch sees them: ``torch.ops.polyfma`` with fake kernels, gradients and batching rules.

They are what torch.compile, functorch, tensor subclasses and dispatch modes go through. A plain eager call does not
(:mod:`polyfma.ops.eager`): the dispatcher in Python costs several times the kernel's launch. ``key`` is a Choice as text.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from polyfma.ops import execute

NAMESPACE = "polyfma"


@torch.library.custom_op(f"{NAMESPACE}::unary", mutates_args=())
def unary(x: Tensor, key: str) -> Tensor:
    return execute.unary(x, key)


@torch.library.custom_op(f"{NAMESPACE}::unary_backward", mutates_args=())
def unary_backward(grad: Tensor, x: Tensor, key: str) -> Tensor:
    return execute.unary_backward(grad, x, key)


@torch.library.custom_op(f"{NAMESPACE}::gated", mutates_args=())
def gated(gate: Tensor, up: Tensor, key: str) -> Tensor:
    return execute.gated(gate, up, key)


@torch.library.custom_op(f"{NAMESPACE}::gated_backward", mutates_args=())
def gated_backward(grad: Tensor, gate: Tensor, up: Tensor, key: str) -> tuple[Tensor, Tensor]:
    return execute.gated_backward(grad, gate, up, key)


OPERATORS = {"unary": unary, "unary_backward": unary_backward, "gated": gated, "gated_backward": gated_backward}


# -- fake kernels: shapes and strides alone --------------------------------------------------------------


@unary.register_fake
def _(x: Tensor, key: str) -> Tensor:
    return torch.empty_like(x)


@unary_backward.register_fake
def _(grad: Tensor, x: Tensor, key: str) -> Tensor:
    return torch.empty_like(x)


@gated.register_fake
def _(gate: Tensor, up: Tensor, key: str) -> Tensor:
    return torch.empty_like(gate)


@gated_backward.register_fake
def _(grad: Tensor, gate: Tensor, up: Tensor, key: str) -> tuple[Tensor, Tensor]:
    return torch.empty_like(gate), torch.empty_like(gate)


# -- gradients. The backward operators have none: torch says so when one is asked for ----------------------


def _save_unary(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, ctx.key = inputs
    ctx.save_for_backward(x)


def _unary_gradient(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
    (x,) = ctx.saved_tensors
    return unary_backward(grad, x, ctx.key), None


def _save_gated(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    gate, up, ctx.key = inputs
    ctx.save_for_backward(gate, up)


def _gated_gradient(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
    gate, up = ctx.saved_tensors
    d_gate, d_up = gated_backward(grad, gate, up, ctx.key)
    return d_gate, d_up, None


unary.register_autograd(_unary_gradient, setup_context=_save_unary)
gated.register_autograd(_gated_gradient, setup_context=_save_gated)


# -- vmap: every operator is elementwise, so a batch dimension is one more dimension -----------------------


def batched(info: Any, in_dims: tuple[int | None, ...], *tensors: Tensor) -> list[Tensor]:
    """The tensors with the batch dimension first; one without it is expanded."""
    return [t.unsqueeze(0).expand(info.batch_size, *t.shape) if d is None else t.movedim(d, 0)
            for t, d in zip(tensors, in_dims, strict=False)]  # fmt: skip


def _add_batching(name: str) -> None:
    operator = OPERATORS[name]

    def rule(info: Any, in_dims: tuple[int | None, ...], *args: Any) -> tuple[Any, Any]:
        *tensors, key = args
        result = operator(*batched(info, in_dims, *tensors), key)
        return result, (0, 0) if isinstance(result, tuple) else 0

    operator.register_vmap(rule)


for _name in OPERATORS:
    _add_batching(_name)
