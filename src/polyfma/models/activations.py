"""Which function a module or a Python function computes: by its exact class or identity, never by its name.

transformers has seven spellings of GELU, two of them the exact one and four its tanh form; a name alone does not say which.
A class that is not listed is not known, whatever it inherits from.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import torch
from torch import nn
from torch.nn import functional

SILU, GELU, GELU_TANH, QUICK_GELU, SIGMOID, TANH = "silu", "gelu", "gelu-tanh", "silu-1.702", "sigmoid", "tanh"
EXACT_ALREADY = "is exact without a program"
NO_PROGRAM = "has no program"

# Class names in transformers.activations; which of them exist depends on the version.
_TRANSFORMERS = {
    "GELUActivation": GELU, "GELUTanh": GELU_TANH, "PytorchGELUTanh": GELU_TANH, "NewGELUActivation": GELU_TANH, "FastGELUActivation": GELU_TANH,
    "AccurateGELUActivation": GELU_TANH, "SiLUActivation": SILU, "QuickGELUActivation": QUICK_GELU,
}  # fmt: skip
_NO_PROGRAM = {
    "ClippedGELUActivation": "clips its value, which no program does", "MishActivation": NO_PROGRAM, "LaplaceActivation": NO_PROGRAM,
    "XIELUActivation": "has trained parameters", "SqrtSoftplusActivation": NO_PROGRAM, "ReLUSquaredActivation": EXACT_ALREADY,
    "LinearActivation": EXACT_ALREADY,
}  # fmt: skip
_TORCH: dict[type[nn.Module], str] = {nn.SiLU: SILU, nn.Sigmoid: SIGMOID, nn.Tanh: TANH}
_TORCH_EXACT = (nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.PReLU, nn.Hardswish, nn.Hardsigmoid, nn.Hardtanh, nn.Threshold)
_TORCH_WITHOUT = (nn.Mish, nn.ELU, nn.CELU, nn.SELU, nn.Softplus, nn.LogSigmoid, nn.Softsign, nn.Tanhshrink)
_FUNCTIONS: dict[Any, str] = {functional.silu: SILU, functional.gelu: GELU, functional.sigmoid: SIGMOID, functional.tanh: TANH,
                              torch.sigmoid: SIGMOID, torch.tanh: TANH}  # fmt: skip


@dataclass(frozen=True)
class Recognised:
    """What an activation is: ``function`` as :func:`polyfma.get_function` names it, or why it is left alone."""

    function: str | None
    reason: str = ""


def recognise(module: object) -> Recognised | None:
    """What a module or function computes; None for one that is no activation at all."""
    if isinstance(module, nn.Module):
        return _of_class(module)
    if isinstance(module, partial) and module.func is functional.gelu and not module.args:
        return _gelu(module.keywords.get("approximate", "none")) if set(module.keywords) <= {"approximate"} else None
    try:
        found = _FUNCTIONS.get(module)
    except TypeError:  # unhashable
        return None
    return Recognised(found) if found else None


def _of_class(module: nn.Module) -> Recognised | None:
    kind = type(module)
    if getattr(module, "inplace", False):
        return Recognised(None, f"{kind.__name__}(inplace=True) changes its input, which no operator does")
    if kind is nn.GELU:
        return _gelu(str(module.approximate))
    if kind in _TORCH:
        return Recognised(_TORCH[kind])
    if kind in _TORCH_EXACT:
        return Recognised(None, f"{kind.__name__} {EXACT_ALREADY}")
    if kind in _TORCH_WITHOUT:
        return Recognised(None, f"{kind.__name__} {NO_PROGRAM}")
    return _transformers().get(kind)


def _gelu(approximate: str) -> Recognised:
    return Recognised(GELU if approximate == "none" else GELU_TANH)


@cache
def _transformers() -> dict[type[nn.Module], Recognised]:
    """The activations of transformers; nothing where it is not installed."""
    try:
        from transformers import activations
    except ImportError:
        return {}
    known = {getattr(activations, n): Recognised(f) for n, f in _TRANSFORMERS.items() if hasattr(activations, n)}
    return known | {getattr(activations, n): Recognised(None, f"{n} {why}") for n, why in _NO_PROGRAM.items() if hasattr(activations, n)}


def looks_like_activation(name: str, module: nn.Module) -> bool:
    """Whether a module that is not known is one that a person would call an activation: it is named so and has no submodules."""
    last = name.rpartition(".")[2]
    return last in ("act", "act_fn", "activation", "activation_fn", "activation_func", "intermediate_act_fn", "nonlinearity") and not any(True for _ in module.children())


NATIVE: dict[str, Callable[..., torch.Tensor]] = {
    SILU: functional.silu,
    GELU: functional.gelu,
    GELU_TANH: partial(functional.gelu, approximate="tanh"),
    QUICK_GELU: lambda x: x * torch.sigmoid(1.702 * x),
    SIGMOID: torch.sigmoid,
    TANH: torch.tanh,
}
"""torch's own operator of each function."""

