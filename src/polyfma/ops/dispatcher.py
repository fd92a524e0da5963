"""The operators as torch sees them: ``torch.ops.polyfma`` with kernels, fake kernels, gradients and batching rules.

They are what torch.compile, export, torch.func, tensor subclasses and dispatch modes go through. A plain eager call does not
(:mod:`polyfma.ops.eager`), because kernels in Python make the dispatcher dear. ``key`` is a Choice as text.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, library
from torch._functorch.utils import enable_single_level_autograd_function
from torch.autograd.function import _SingleLevelFunction

from polyfma.errors import DtypeError, ProgramError, SecondDerivativeError
from polyfma.ops import execute
from polyfma.ops.choice import parse
from polyfma.ops.dtypes import DTYPES
from polyfma.ops.operation import INPUTS, OUTPUTS

NAMESPACE = "polyfma"
_definitions = library.Library(NAMESPACE, "DEF")
_KERNELS: dict[str, Callable[..., Any]] = {kind: getattr(execute, kind) for kind in INPUTS}


def _checked(kind: str) -> Callable[..., Any]:
    """The kernel of a kind, for whoever calls the operator with a key of their own."""

    def kernel(*args: Any) -> Any:
        *tensors, key = args
        try:
            wanted = DTYPES[parse(key).format]
        except (ValueError, KeyError) as error:
            raise ProgramError(f"{key!r} is no choice of programs; call polyfma.ops.{kind} functions, which make one") from error
        if any(t.dtype is not wanted for t in tensors) or len({(t.shape, t.device) for t in tensors}) > 1:
            given = ", ".join(f"{tuple(t.shape)} {t.dtype} on {t.device}" for t in tensors)
            raise DtypeError(f"{NAMESPACE}::{kind} of {key} takes tensors of one shape and device in {wanted}, not {given}")
        return _KERNELS[kind](*args)

    return kernel


def _fake(kind: str) -> Callable[..., Any]:
    """Shapes and strides: every output is laid out as the first tensor behind the gradient."""

    def fake(*args: Any) -> Any:
        like = args[1 if kind.endswith("_backward") else 0]
        results = tuple(torch.empty_like(like) for _ in OUTPUTS[kind])
        return results if len(results) > 1 else results[0]

    return fake


# -- gradients, reverse and forward -------------------------------------------------------------------------
# The dispatcher calls these below torch.func's own levels, so a Function of a single level is what is due; and unlike
# torch's own register_autograd they do not drop a tangent where no input requires a gradient.


def _below(kind: str, keyset: Any, recorded: bool, args: tuple[Any, ...]) -> Any:
    """The operator below this level of autograd, ``recorded`` by an outer level of torch.func as far as the caller asked for it.

    A Function's forward runs with gradients disabled, in which that level would see nothing to record.
    """
    with torch._C._AutoDispatchBelowAutograd(), torch.set_grad_enabled(recorded):
        return overload(kind).redispatch(keyset & torch._C._after_autograd_keyset, *args)


class _Forward(_SingleLevelFunction):
    """y of ``unary`` or ``gated``; the gradient is the backward operator of the saved inputs."""

    @staticmethod
    def forward(ctx: Any, kind: str, keyset: Any, recorded: bool, key: str, *tensors: Tensor) -> Tensor:
        ctx.kind, ctx.key = kind, key
        ctx.save_for_backward(*tensors)
        ctx.save_for_forward(*tensors)
        return _below(kind, keyset, recorded, (*tensors, key))

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        found = overload(f"{ctx.kind}_backward")(grad, *ctx.saved_tensors, ctx.key)
        return None, None, None, None, *(found if isinstance(found, tuple) else (found,))

    @staticmethod
    def jvp(ctx: Any, *tangents: Tensor | None) -> Tensor:
        """The sum over the inputs of their tangent times the derivative."""
        parts = []
        for place, tangent in enumerate(tangents[4:]):
            if tangent is not None:
                found = overload(f"{ctx.kind}_backward")(tangent, *ctx.saved_tensors, ctx.key)
                parts.append(found[place] if isinstance(found, tuple) else found)
        return parts[0] if len(parts) == 1 else parts[0] + parts[1]


def _refused(ctx: Any, *grads: Any) -> Any:
    raise SecondDerivativeError("polyfma.ops have no second derivative: the gradient is a program of its own; use torch's function where you need one")


class _Backward(_SingleLevelFunction):
    """A gradient that someone may differentiate again: then it says that it cannot be."""

    backward = staticmethod(_refused)
    jvp = staticmethod(_refused)

    @staticmethod
    def forward(ctx: Any, kind: str, keyset: Any, recorded: bool, key: str, *tensors: Tensor) -> Any:
        return _below(kind, keyset, recorded, (*tensors, key))


def _autograd(kind: str) -> Callable[..., Any]:
    function: Any = _Backward if kind.endswith("_backward") else _Forward

    def kernel(keyset: Any, *args: Any) -> Any:
        *tensors, key = args
        recorded = torch.is_grad_enabled()
        tangent = _has_tangent(tensors)
        if tangent and _is_nested_forward():
            _refused(None)
        if tangent or (recorded and any(t.requires_grad for t in tensors)):
            with enable_single_level_autograd_function():
                return function.apply(kind, keyset, recorded, key, *tensors)
        return _below(kind, keyset, recorded, args)

    return kernel


def _has_tangent(tensors: list[Tensor]) -> bool:
    """Asked of the tensors: a compiled graph enters forward mode without telling torch.autograd.forward_ad. There is one level."""
    return any(torch._VF._unpack_dual(t, level=0).tangent is not None for t in tensors)


def _is_nested_forward() -> bool:
    """Forward mode inside forward mode, whose inner tangents the jvp of a Function would lose."""
    stack = torch._C._functorch.get_interpreter_stack() or []
    return sum(level.key() == torch._C._functorch.TransformType.Jvp for level in stack) > 1


# -- vmap: every operator is elementwise, so a batch dimension is one more dimension -----------------------


def _batched(kind: str) -> Callable[..., Any]:
    def rule(info: Any, in_dims: tuple[int | None, ...], *args: Any) -> tuple[Any, Any]:
        *tensors, key = args
        moved = [t.unsqueeze(0).expand(info.batch_size, *t.shape) if d is None else t.movedim(d, 0)
                 for t, d in zip(tensors, in_dims, strict=False)]  # fmt: skip
        result = overload(kind)(*moved, key)
        return result, (0, 0) if isinstance(result, tuple) else 0

    return rule


def overload(kind: str) -> Any:
    """The registered operator."""
    return getattr(getattr(torch.ops, NAMESPACE), kind).default


def _register(kind: str) -> None:
    arguments = ", ".join([*(f"Tensor {name}" for name in INPUTS[kind]), "str key"])
    results = ", ".join(["Tensor"] * len(OUTPUTS[kind]))
    _definitions.define(f"{kind}({arguments}) -> {results if len(OUTPUTS[kind]) == 1 else f'({results})'}", tags=(torch.Tag.pt2_compliant_tag,))
    for backend in ("CPU", "CUDA"):
        _definitions.impl(kind, _checked(kind), backend)
    _definitions.impl(kind, _autograd(kind), "Autograd", with_keyset=True)
    library.register_fake(f"{NAMESPACE}::{kind}", _fake(kind), lib=_definitions)
    library.register_vmap(f"{NAMESPACE}::{kind}", _batched(kind), lib=_definitions)


for _kind in INPUTS:
    _register(_kind)
unary, unary_backward, gated, gated_backward = (overload(kind) for kind in INPUTS)
