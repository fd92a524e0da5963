"""The exact operations' functions in float64: what the CPU rounds once, and the kernels are held against."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from polyfma.ops.exact import CUBIC, resolved

Values = NDArray[np.float64]

# 1/sqrt(2) in two parts; a 16-bit format's value times the first is exact in float64.
_ROOT_HALF = math.floor(math.sqrt(0.5) * 2**40) / 2**40
_ROOT_HALF_REST = math.sqrt(0.5) - _ROOT_HALF - 4.833646656726457e-17
_CDF_END = 38.0  # Phi(-38) is a float64 subnormal
_erfc = np.frompyfunc(math.erfc, 1, 1)


def _logistic64(x: Values) -> Values:
    e = np.exp(-np.abs(x))
    return np.asarray(np.where(x >= 0, 1.0, e) / (1 + e))


def _bell64(x: Values) -> Values:
    """sigma(x) sigma(-x)."""
    e = np.exp(-np.abs(x))
    return np.asarray(e / (1 + e) ** 2)


def _cdf64(x: Values) -> Values:
    """Phi(x) for |x| <= _CDF_END. What rounding the argument of erfc loses comes back through the derivative."""
    head = -x * _ROOT_HALF
    z = head - x * _ROOT_HALF_REST
    lost = (head - z) - x * _ROOT_HALF_REST
    return np.asarray(np.asarray(_erfc(z), np.float64) / 2 - lost * np.exp(-z * z) / math.sqrt(math.pi))


def _gated64(gate: Values, x: Values) -> Values:
    """x gate. Where float64 no longer tells the gate from 1/2, the value just above the tie x/2."""
    y = np.where((np.abs(x) < 2.0**-60) & (x != 0), np.nextafter(x / 2, np.inf), x * gate)
    return np.where(np.isneginf(x), -0.0, y)


def _gate_slope64(v: Values, rise: Values) -> Values:
    """sigma(v) (1 + rise sigma(-v))."""
    return np.asarray(_logistic64(v) * (1 + np.clip(rise, -1e120, 1e120) * _logistic64(-v)))


def _gelu64(x: Values, _: float) -> Values:
    return _gated64(_cdf64(np.clip(x, -_CDF_END, _CDF_END)), x)


def _gelu_slope64(x: Values, _: float) -> Values:
    a = np.clip(x, -_CDF_END, _CDF_END)
    return np.asarray(_cdf64(a) + a * np.exp(-a * a / 2) / math.sqrt(2 * math.pi))


def _cubic64(x: Values) -> Values:
    return x * (CUBIC[0] + CUBIC[1] * x * x)


def _cubic_rise64(x: Values) -> Values:
    return x * (CUBIC[0] + 3 * CUBIC[1] * x * x)


_REFERENCES: dict[str, tuple[Callable[[Values, float], Values], Callable[[Values, float], Values]]] = {
    "sigmoid": (lambda x, n: _logistic64(x) / n, lambda x, n: _bell64(x) / n),
    "tanh": (lambda x, _: np.tanh(x), lambda x, _: 4 * _bell64(2 * x)),
    "softcap": (lambda x, cap: cap * np.tanh(x / cap), lambda x, cap: 4 * _bell64(2 * x / cap)),
    "silu": (lambda x, b: _gated64(_logistic64(b * x), x), lambda x, b: _gate_slope64(b * x, b * x)),
    "gelu": (_gelu64, _gelu_slope64),
    "gelu-tanh": (
        lambda x, _: _gated64(_logistic64(_cubic64(x)), x),
        lambda x, _: _gate_slope64(_cubic64(x), _cubic_rise64(x)),
    ),
}


def reference(function: str, direction: str, x: Values) -> Values:
    """The function in float64 at the values of a 16-bit format; limits at the infinities.

    The relative error is a few ulps, times |log y| in the far tails, and more only beside the roots of derivatives.
    One rounding to the format gives the correctly rounded result, ties included.
    """
    target, parameter = resolved(function, direction)
    with np.errstate(all="ignore"):
        y = _REFERENCES[target.family][direction == "backward"](x, parameter)
    return np.where(np.isneginf(x), 0.0, y) if direction == "backward" else y
