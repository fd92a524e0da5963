"""The direct path of a plain eager call: no dispatcher, one kernel launch, an autograd node only where a gradient is needed."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

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


def _kernels_of(*tensors: Tensor) -> Any:
    """Where the arithmetic goes: straight to the kernel, or through the dispatcher where something watches."""
    return execute if plain(*tensors) else library


def _no_second_derivative(ctx: Any, *grads: Any) -> Any:
    raise NotImplementedError("polyfma.ops have no second derivative: the gradient is a program of its own; use torch's function where you need one")


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
        return _gradient(UnaryBackward, "unary_backward", ctx.key, grad, x), None


class Gated(torch.autograd.Function):
    """y = f(gate) * up of plain tensors; saves gate and up and computes f again in the backward pass."""

    @staticmethod
    def forward(ctx: Any, gate: Tensor, up: Tensor, key: str) -> Tensor:
        ctx.save_for_backward(gate, up)
        ctx.key = key
        return execute.gated(gate, up, key)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        return *_gradient(GatedBackward, "gated_backward", ctx.key, grad, *ctx.saved_tensors), None


# -- the same under torch.func and forward-mode differentiation --------------------------------------------
# A Function with setup_context is what those need, and costs an eager call several times what the two above do.


class UnaryTransformed(torch.autograd.Function):
    """:class:`Unary` for transforms."""

    backward = Unary.backward

    @staticmethod
    def forward(x: Tensor, key: str) -> Tensor:
        return _kernels_of(x).unary(x, key)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        x, ctx.key = inputs
        ctx.save_for_backward(x)
        ctx.save_for_forward(x)

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor, _: None) -> Tensor:
        return _kernels_of(tangent, *ctx.saved_tensors).unary_backward(tangent, *ctx.saved_tensors, ctx.key)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], x: Tensor, key: str) -> tuple[Tensor, int]:
        return UnaryTransformed.apply(*library.batched(info, in_dims, x), key), 0


class GatedTransformed(torch.autograd.Function):
    """:class:`Gated` for transforms."""

    backward = Gated.backward

    @staticmethod
    def forward(gate: Tensor, up: Tensor, key: str) -> Tensor:
        return _kernels_of(gate, up).gated(gate, up, key)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        gate, up, ctx.key = inputs
        ctx.save_for_backward(gate, up)
        ctx.save_for_forward(gate, up)

    @staticmethod
    def jvp(ctx: Any, gate_tangent: Tensor | None, up_tangent: Tensor | None, _: None) -> Tensor:
        gate, up = ctx.saved_tensors
        kernels = _kernels_of(gate, up, *(t for t in (gate_tangent, up_tangent) if t is not None))
        parts = [kernels.gated_backward(t, gate, up, ctx.key)[i] for i, t in enumerate((gate_tangent, up_tangent)) if t is not None]
        return parts[0] if len(parts) == 1 else parts[0] + parts[1]

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], gate: Tensor, up: Tensor, key: str) -> tuple[Tensor, int]:
        return GatedTransformed.apply(*library.batched(info, in_dims, gate, up), key), 0


class UnaryBackward(torch.autograd.Function):
    """The gradient as a node, where someone may differentiate it again: then it says that it cannot be."""

    backward = staticmethod(_no_second_derivative)
    jvp = staticmethod(_no_second_derivative)

    @staticmethod
    def forward(grad: Tensor, x: Tensor, key: str) -> Tensor:
        return _kernels_of(grad, x).unary_backward(grad, x, key)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        pass

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], grad: Tensor, x: Tensor, key: str) -> tuple[Tensor, int]:
        return UnaryBackward.apply(*library.batched(info, in_dims, grad, x), key), 0


class GatedBackward(torch.autograd.Function):
    """Both gradients as a node, as :class:`UnaryBackward`."""

    backward = staticmethod(_no_second_derivative)
    jvp = staticmethod(_no_second_derivative)

    @staticmethod
    def forward(grad: Tensor, gate: Tensor, up: Tensor, key: str) -> tuple[Tensor, Tensor]:
        return _kernels_of(grad, gate, up).gated_backward(grad, gate, up, key)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        pass

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], grad: Tensor, gate: Tensor, up: Tensor, key: str) -> tuple[Any, Any]:
        return GatedBackward.apply(*library.batched(info, in_dims, grad, gate, up), key), (0, 0)


def _gradient(node: Any, kind: str, key: str, grad: Tensor, *saved: Tensor) -> Any:
    """The gradient, as a node of its own only where the backward pass is itself recorded or watched."""
    if torch.is_grad_enabled() or not plain(grad, *saved):
        return node.apply(grad, *saved, key)
    return getattr(execute, kind)(grad, *saved, key)


class Packed(torch.autograd.Function):
    """y = f(gate) * up of one [..., 2h] tensor; saves it. Only plain tensors come here."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, key: str, interleaved: bool) -> Tensor:
        ctx.save_for_backward(x)
        ctx.key, ctx.interleaved = key, interleaved
        return execute.packed(x, key, interleaved)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        (x,) = ctx.saved_tensors
        if not torch.is_grad_enabled() and plain(grad, x):
            return execute.packed_backward(grad, x, ctx.key, ctx.interleaved), None, None
        gradients = GatedBackward.apply(grad, *execute.halves(x, ctx.interleaved), ctx.key)
        joined = torch.stack(gradients, -1).flatten(-2) if ctx.interleaved else torch.cat(gradients, -1)
        return joined, None, None


# Function.apply without its check for transforms, which plain() has made already: a third of what a node costs on the host.
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
    # torch.func and forward-mode differentiation know only such a Function, not a registered operator.
    if _functorch() is not None or forward_ad._current_level >= 0:
        return {"unary": UnaryTransformed, "gated": GatedTransformed}[kind].apply(*tensors, key)
    if any(type(t).__name__ == "DTensor" for t in tensors):
        from polyfma.ops import sharding

        sharding.register()
    return library.OPERATORS[kind](*tensors, key)
