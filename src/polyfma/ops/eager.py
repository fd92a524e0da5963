"""The direct path of a plain eager call: no dispatcher, one kernel launch, an autograd node only where a gradient is needed."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.autograd.function import once_differentiable

from polyfma.ops import execute, library

_modes = torch._C._len_torch_dispatch_stack
_functions = torch._C._is_torch_function_mode_enabled
_functorch = torch._C._functorch.peek_interpreter_stack
_tracing = torch._C._get_tracing_state
_PLAIN = (Tensor, torch.nn.Parameter)


def plain(*tensors: Tensor) -> bool:
    """Whether the tensors are ordinary and nothing watches operators: no subclass, mode, transform, tracer or forward-mode level."""
    for t in tensors:
        if type(t) not in _PLAIN:
            return False
    return not _modes() and not _functions() and _functorch() is None and forward_ad._current_level < 0 and _tracing() is None


def needs_grad(*tensors: Tensor) -> bool:
    return torch.is_grad_enabled() and any([t.requires_grad for t in tensors])


class Unary(torch.autograd.Function):
    """y = f(x); saves x."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, key: str) -> Tensor:
        ctx.save_for_backward(x)
        ctx.key = key
        return execute.unary(x, key)

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (x,) = ctx.saved_tensors
        return (execute if plain(grad, x) else library).unary_backward(grad, x, ctx.key), None


class Gated(torch.autograd.Function):
    """y = f(gate) * up; saves gate and up and computes f again in the backward pass."""

    @staticmethod
    def forward(ctx: Any, gate: Tensor, up: Tensor, key: str) -> Tensor:
        ctx.save_for_backward(gate, up)
        ctx.key = key
        return execute.gated(gate, up, key)

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        gate, up = ctx.saved_tensors
        d_gate, d_up = (execute if plain(grad, gate, up) else library).gated_backward(grad, gate, up, ctx.key)
        return d_gate, d_up, None


class Packed(torch.autograd.Function):
    """y = f(gate) * up of one [..., 2h] tensor; saves it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, key: str, interleaved: bool) -> Tensor:
        ctx.save_for_backward(x)
        ctx.key, ctx.interleaved = key, interleaved
        return execute.packed(x, key, interleaved)

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        (x,) = ctx.saved_tensors
        return execute.packed_backward(grad, x, ctx.key, ctx.interleaved), None, None
