"""The direct path of a plain eager call: no dispatcher, one kernel launch, an autograd node only where a gradient is needed."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from polyfma.ops import dispatcher, execute

_modes = torch._C._len_torch_dispatch_stack
_functions = torch._C._is_torch_function_mode_enabled
_functorch = torch._C._functorch.peek_interpreter_stack
_tracing = torch._C._get_tracing_state
_batched = torch._C._functorch.is_legacy_batchedtensor
_PLAIN = (Tensor, torch.nn.Parameter)


def plain(*tensors: Tensor) -> bool:
    """Whether the tensors are ordinary and nothing watches operators: no subclass, mode, transform, tracer or forward-mode level."""
    for t in tensors:
        if type(t) not in _PLAIN:
            return False
    return not _modes() and not _functions() and _functorch() is None and forward_ad._current_level < 0 and _tracing() is None


def _plain_backward(*tensors: Tensor) -> bool:
    """The same for a backward pass, which autograd may also run batched (``is_grads_batched``) or recorded (``create_graph``)."""
    return not torch.is_grad_enabled() and plain(*tensors) and not _batched(tensors[0])


class Unary(torch.autograd.Function):
    """y = f(x) of a plain tensor; saves x."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, key: str) -> Tensor:
        ctx.save_for_backward(x)
        ctx.key = key
        return execute.unary(x, key)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (x,) = ctx.saved_tensors
        return (execute if _plain_backward(grad, x) else dispatcher).unary_backward(grad, x, ctx.key), None


class Gated(torch.autograd.Function):
    """y = f(gate) * up of plain tensors; saves gate and up and computes f again in the backward pass."""

    @staticmethod
    def forward(ctx: Any, gate: Tensor, up: Tensor, key: str) -> Tensor:
        ctx.save_for_backward(gate, up)
        ctx.key = key
        return execute.gated(gate, up, key)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        gate, up = ctx.saved_tensors
        d_gate, d_up = (execute if _plain_backward(grad, gate, up) else dispatcher).gated_backward(grad, gate, up, ctx.key)
        return d_gate, d_up, None


class Packed(torch.autograd.Function):
    """y = f(gate) * up of one plain [..., 2h] tensor; saves it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, key: str, interleaved: bool) -> Tensor:
        ctx.save_for_backward(x)
        ctx.key, ctx.interleaved = key, interleaved
        return execute.packed(x, key, interleaved)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        (x,) = ctx.saved_tensors
        if _plain_backward(grad, x):
            return execute.packed_backward(grad, x, ctx.key, ctx.interleaved), None, None
        gradients = dispatcher.gated_backward(grad, *execute.halves(x, ctx.interleaved), ctx.key)
        joined = torch.stack(gradients, -1).flatten(-2) if ctx.interleaved else torch.cat(gradients, -1)
        return joined, None, None


# Function.apply without its check for transforms, which plain() has made already and which every call would pay again.
_apply_unary = super(torch.autograd.Function, Unary).apply
_apply_gated = super(torch.autograd.Function, Gated).apply
_apply_packed = super(torch.autograd.Function, Packed).apply


def unary(x: Tensor, key: str) -> Tensor:
    """f of a plain tensor."""
    return _apply_unary(x, key) if x.requires_grad and torch.is_grad_enabled() else execute.unary(x, key)


def gated(gate: Tensor, up: Tensor, key: str) -> Tensor:
    """f(gate) * up of plain tensors."""
    needs_grad = (gate.requires_grad or up.requires_grad) and torch.is_grad_enabled()
    return _apply_gated(gate, up, key) if needs_grad else execute.gated(gate, up, key)


def packed(x: Tensor, key: str, interleaved: bool) -> Tensor:
    """f(gate) * up of one plain packed tensor."""
    needs_grad = x.requires_grad and torch.is_grad_enabled()
    return _apply_packed(x, key, interleaved) if needs_grad else execute.packed(x, key, interleaved)


def watched(kind: str, key: str, *tensors: Tensor) -> Tensor:
    """The operator where a subclass, mode, transform or tracer must see it."""
    if any(type(t).__name__ == "DTensor" for t in tensors):
        from polyfma.ops import sharding

        sharding.register()
    return dispatcher.overload(kind)(*tensors, key)
