"""Forms around the GPU's own ``tanh.approx`` and ``ex2.approx``: the arm that a polynomial must beat.

They have no coefficient to fit. All are total: x times a factor takes x limited at -max, so that -inf does not
become NaN. They replay from tables recorded on one architecture (:mod:`polyfma.hardware`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from polyfma.errors import FitError
from polyfma.formats import Values
from polyfma.forms.base import Draft, Form, Model
from polyfma.functions import Function, function_scale


def _no_model(target: Function, x: Values, degree: int, clamp: float) -> Model:
    raise FitError(f"a hardware form has nothing to fit; load {target.name}.{target.direction}.bf16.hardware or its fp16 twin")


def _tanh_of(d: Draft, name: str, factor: float, dst: str) -> str:
    """tanh.approx(factor * name); the factor is a power of two or is rounded once."""
    argument = name if factor == 1 else d("mul", name, d.const("factor", factor), dst="u")
    return d("tanh.approx", argument, dst=dst)


def _tanh(d: Draft) -> Mapping[str, str]:
    """cap tanh(x / cap); tanh itself is one instruction."""
    cap = function_scale(d.target)
    h = _tanh_of(d, "x", 1 / cap, "h")
    return {"value": h if cap == 1 else d("mul", h, d.const("cap", cap), dst="y")}


def _tanh_slope(d: Draft) -> Mapping[str, str]:
    """1 - tanh(x / cap)^2."""
    h = _tanh_of(d, "x", 1 / function_scale(d.target), "h")
    return {"value": d("fma", d("neg", h), h, d.const("one", 1.0), dst="y")}


def _sigmoid_of(d: Draft, beta: float) -> str:
    """1/2 + tanh(beta x / 2) / 2."""
    h = _tanh_of(d, "x", beta / 2, "h")
    half = d.const("half", 0.5)
    return d("fma", h, half, half, dst="g")


def _sigmoid(d: Draft) -> Mapping[str, str]:
    return {"value": _sigmoid_of(d, 1.0)}


def _sigmoid_slope(d: Draft) -> Mapping[str, str]:
    """s - s^2."""
    s = _sigmoid_of(d, 1.0)
    return {"value": d("fma", d("neg", s), s, s, dst="y")}


def _times(d: Draft, gate: str) -> Mapping[str, str]:
    factor = d("max.nan", "x", d.const("lowest", -d.fmt.max_finite), dst="f")
    return {"value": d("mul", gate, factor, dst="y")}


def _silu(d: Draft) -> Mapping[str, str]:
    return _times(d, _sigmoid_of(d, 1 / function_scale(d.target)))


def _gelu_tanh(d: Draft) -> Mapping[str, str]:
    """x (1/2 + tanh(sqrt(2/pi) (x + 0.044715 x^3)) / 2)."""
    first = math.sqrt(2 / math.pi)
    square = d("mul", "x", "x", dst="x2")
    slope = d("fma", square, d.const("c3", 0.044715 * first), d.const("c1", first), dst="slope")
    h = d("tanh.approx", d("mul", slope, "x", dst="u"), dst="h")
    half = d.const("half", 0.5)
    return _times(d, d("fma", h, half, half, dst="g"))


def _exp2(d: Draft) -> Mapping[str, str]:
    return {"value": d("ex2.approx", "x", dst="y")}


def _form(name: str, formula: str, kind: str, ops: Callable[[Draft], Mapping[str, str]], family: str, *, slope: bool = False) -> Form:
    return Form(name, formula, (kind,), ops, _no_model, lambda degree: [], clamped=False, families=(family,), slope=slope, hardware=True)


HARDWARE = (
    _form("hardware-tanh", "tanh.approx(x)", "odd", _tanh, "tanh"),
    _form("hardware-softcap", "cap tanh.approx(x/cap)", "odd", _tanh, "softcap"),
    _form("hardware-tanh-slope", "1 - tanh.approx(x)^2", "even", _tanh_slope, "tanh", slope=True),
    _form("hardware-sigmoid", "1/2 + tanh.approx(x/2)/2", "centred", _sigmoid, "sigmoid"),
    _form("hardware-sigmoid-slope", "s - s^2, s = 1/2 + tanh.approx(x/2)/2", "even", _sigmoid_slope, "sigmoid", slope=True),
    _form("hardware-silu", "x (1/2 + tanh.approx(beta x/2)/2)", "residual", _silu, "silu"),
    _form("hardware-gelu-tanh", "x (1/2 + tanh.approx(sqrt(2/pi) (x + 0.044715 x^3))/2)", "residual", _gelu_tanh, "gelu-tanh"),
    _form("hardware-exp2", "ex2.approx(x)", "none", _exp2, "exp2"),
)  # fmt: skip
