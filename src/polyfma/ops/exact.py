"""Activations in fp32, accurate enough that one final rounding is the correct one: for every BF16 input, and in FP16 all but a few.

:func:`steps` gives the straight-line PTX of one lane: ``x`` holds the BF16 or FP16 input widened to fp32, and
``cvt.rn`` of ``y`` to the same format is the result. :mod:`polyfma.ops.reference` has the same functions in float64.

Every exponential is ``ex2.approx``, every division ``rcp.approx`` (at most one of each in a function). BF16 keeps
results down to 2^-133, where 1 + exp(-x) overflows fp32 and ``rcp`` flushes to zero. The BF16 sequences therefore
take h = exp(-x/2), form d = s (1 + h^2) with s = 2^-64, and multiply by s after the reciprocal. FP16 underflows
at 2^-25 and needs neither.

SiLU and gelu in BF16 are max(x, 0) - a g(-a), a = |x|: the gate g = sigma or Phi only needs a factor 1/s or 2^12 in its
exponential, which the last fma takes back.

Tiny x: silu and gelu are x/2 + k x^2 with k > 0. Where x is an odd multiple of the smallest subnormal, x/2 is a
rounding tie and the square decides it, but fp32 loses the square. A constant far below every other result
(:data:`_NUDGE`) is added; it makes +-0 positive, so the sign of x is restored at the end.

Polynomials and rational functions are fitted to the rounding intervals of all inputs, not for the least error, which needs
far lower degrees; the comments at their constants say how.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from polyfma.errors import UnknownNameError
from polyfma.functions import Function, get_function
from polyfma.ops.lane import Lane, Step

_LOG2E = math.log2(math.e)
# Of the fp32 neighbours of the two constants of the BF16 logistic, these bring every input of sigmoid, gelu-tanh and the
# derivatives to the right side of its tie even where ex2 errs by 2 ulps and rcp by 1.
_EXPONENT_BIAS = 1 - 2.0**-24
_SCALE_BIAS = 1 - 2.0**-23
# The same for SiLU in FP16: measured on an H200, where it leaves one misrounded input.
_SILU_EXPONENT_BIAS_FP16 = 1 + 2.0**-24
# The factor of SiLU's product with sigma in BF16 that decides the tie at 2^-7 and misrounds nothing (4 and 6 in place of 5 would
# each leave an input that an error of ex2 and rcp could misround).
_TIE_BIAS = 1 + 5 * 2.0**-23
_SCALE = {"bf16": 2.0**-64, "fp16": 1.0}  # s above
_NUDGE = {"bf16": 2.0**-146, "fp16": 2.0**-46}  # the least that outweighs errors of ex2 and rcp at subnormals
_LINE_END = 2.0**-5  # beyond it the cubic term is more than ten fp32 ulps
_SATURATED = 128.0  # exp(-128) = 2^-184.7: zero in both formats, and 1 + exp(128) times s is far from overflow

# tanh(z) = z N(z^2)/D(z^2) for 0 <= z <= _TANH_END[format], where it has rounded to 1, for the caps of _FITTED_CAPS: N and D
# from a linear programme in which N/D stays inside the rounding interval of every input of tanh, softcap-30 and softcap-50
# (lo D <= N <= hi D, linear in both; lo and hi drawn in by the errors of fp32). In BF16 the relative error of N/D is 2^-14.9.
# In FP16 it is 2^-17.3 at the end and 2^-19.5 before; its coefficients were moved by fp32 ulps to misround the fewest inputs.
_TANH = {
    "bf16": ((1.00000143, 0.105790593, 0.00078534463), (1.0, 0.439064711, 0.013895195)),
    "fp16": ((0.99999994, 0.122940943, 0.002246706048, 3.386962589e-06), (1.0, 0.456272572, 0.02100686729, 0.0001356809225)),
}
_TANH_END = {"bf16": 3.5, "fp16": 4.75}
_FITTED_CAPS = (1.0, 30.0, 50.0)

# With other caps tanh(x) = x + x s P(s), s = x^2, for |x| < _TANH_SMALL: relative error 2^-26. Above it, 2 sigma(2x) - 1
# cancels less than two bits.
_TANH_SMALL = 0.5
_TANH_P = (-0.33333148, 0.13325987, -0.05305296, 0.01725701)

# Phi(-a) = 2^Q(a) for 0 <= a <= _TAIL_END[format], where gelu(-a) has rounded to zero. Q is from a linear programme in which
# a 2^Q(a) stays inside the rounding intervals of gelu(-a) and, as a - a 2^Q(a), of gelu(a), for every input a; coefficients
# were rounded to fp32 one after the other, the programme solved anew for the rest, and those of FP16 then moved by fp32 ulps.
# These are the least degrees at which no input of BF16 is at risk and at which FP16 misses only what fp32 errs by.
_TAIL = {
    "bf16": (
        -1.0000029, -1.1510829, -0.45908475, -0.053354092, 0.008284393, -0.0009043433,
        6.438517e-05, -2.6982361e-06, 5.4113485e-08, -2.4656668e-10,
    ),
    "fp16": (
        -0.9999999, -1.1510998, -0.4592199, -0.052565802, 0.007267321,
        -0.0003386939, -9.336366e-05, 1.9137153e-05, -1.1455282e-06,
    ),
}
_TAIL_END = {"bf16": 13.5625, "fp16": 5.7265625}

# Phi(-a) = exp(-a^2/2) R(a) for 0 <= a <= 14, R = N/D, minimax in relative error: 2^-21.3 and 2^-27.4.
_WIDE = {
    "bf16": (
        (0.49999981, 0.36197387, 0.1195332, 0.01704806),
        (1.0, 1.52181346, 0.95344707, 0.29942266, 0.04273815),
    ),
    "fp16": (
        (0.5, 0.43725162, 0.18246238, 0.04037275, 0.00407764),
        (1.0, 1.67238819, 1.19929296, 0.46743056, 0.10120628, 0.010221),
    ),
}
_WIDE_END = 14.0  # 14 Phi(-14) = 2^-143

# gelu'(-a) = exp(-a^2/2) S(a), S = N/D, minimax in relative error with the root of S held: 2^-20.7 and 2^-27.0.
_SLOPE = {
    "bf16": (
        (0.500000297, -0.192996428, -0.442991395, -0.217282563, -0.03821732),
        (1.0, 1.20980113, 0.54439647, 0.09580366),
    ),
    "fp16": (
        (0.499999996, -0.099782186, -0.469015699, -0.304894064, -0.0872436486, -0.01033135),
        (1.0, 1.39620428, 0.78999343, 0.21869525, 0.02589668),
    ),
}
# In BF16 the exponent of _TAIL is raised by this much, and a later factor takes it back: the powers, wanted down to 2^-138,
# then stay above what ex2 flushes. (A larger one would cost bits of the exponent at small a.)
_RAISED = 12

# gelu-tanh(x) = x sigma(x (CUBIC[0] + CUBIC[1] x^2)).
CUBIC = (2 * math.sqrt(2 / math.pi), 2 * math.sqrt(2 / math.pi) * 0.044715)
_CUBIC_END = 11.0  # sigma = 2^-162 at -11


def _exponent_factor(fmt: str) -> float:
    """h = ex2(factor x) in BF16, exp(-x) = ex2(factor x) in FP16."""
    return -_LOG2E / 2 * _EXPONENT_BIAS if fmt == "bf16" else -_LOG2E


def _scaled_logistic(lane: Lane, exponent: str) -> str:
    """sigma / s, for an exponent that carries :func:`_exponent_factor`."""
    e = lane.exp2(exponent)
    if lane.format == "fp16":
        return lane.reciprocal(lane.add(e, 1.0))
    s = _SCALE[lane.format]
    return lane.reciprocal(lane.fma(e, lane.mul(e, s), s))


def _unscale(fmt: str) -> float:
    """The factor after the reciprocal."""
    return _SCALE[fmt] * _SCALE_BIAS if fmt == "bf16" else 1.0


def _times(lane: Lane, register: str, factor: float) -> str:
    """The product; no step for a factor of 1."""
    return register if factor == 1.0 else lane.mul(register, factor)


def _is_power_of_two(value: float) -> bool:
    return math.frexp(value)[0] == 0.5


def _linear_near_zero(lane: Lane, y: str, middle: float, slope: float, end: float) -> str:
    """middle + slope x where |x| < end, y elsewhere.

    sigma(x) = 1/2 + x/4 - x^3/48: with a dyadic slope the first two terms make a rounding tie of many small x,
    which the third decides, yet fp32 loses it. The line is made 2^-12 less steep, so every tie falls inwards.
    """
    line = lane.fma("x", slope * (1 - 2.0**-12), middle)
    return lane.op("selp.f32", line, y, lane.op("setp.lt.f32", lane.op("abs.f32", "x"), end))


def _sigmoid(lane: Lane, n: float) -> None:
    r = _scaled_logistic(lane, lane.mul("x", _exponent_factor(lane.format)))
    y = _times(lane, r, _unscale(lane.format) / n)
    if _is_power_of_two(n):
        _linear_near_zero(lane, y, 0.5 / n, 0.25 / n, _LINE_END)


def _bell(lane: Lane, rate: float, peak: float) -> None:
    """peak * 4 sigma(rate x) sigma(-rate x), even in x.

    FP16: r - r^2 with r = sigma(-|rate x|), in which an error of ex2 counts (1 - 2r) fold. BF16: the square of
    h / (1 + h^2), h = exp(-|rate x| / 2), which is subnormal only in its last product.
    """
    a = lane.op("abs.f32", "x")
    if lane.format == "fp16":
        r = lane.reciprocal(lane.add(lane.exp2(lane.mul(a, _LOG2E * rate)), 1.0))
        _times(lane, lane.fma(lane.op("neg.f32", r), r, r), 4 * peak)
        return
    h = lane.exp2(lane.mul(a, -_LOG2E / 2 * rate))
    q = lane.mul(h, lane.reciprocal(lane.fma(h, h, 1.0)))
    lane.mul(_times(lane, q, 4 * peak), q)


def _sigmoid_slope(lane: Lane, n: float) -> None:
    _bell(lane, 1.0, 0.25 / n)


def _softcap(lane: Lane, cap: float) -> None:
    """cap tanh(x/cap); -0 stays -0."""
    (_softcap_fitted if cap in _FITTED_CAPS else _softcap_any)(lane, cap)


def _softcap_fitted(lane: Lane, cap: float) -> None:
    """x N(z^2)/D(z^2), z = x/cap, with x cut off where the function has rounded to cap."""
    x = lane.op("min.NaN.xorsign.abs.f32", "x", _TANH_END[lane.format] * cap)
    s = lane.mul(x, x)
    top, bottom = (lane.horner([c / cap ** (2 * k) for k, c in enumerate(p)], s) for p in _TANH[lane.format])
    lane.mul(lane.mul(x, top), lane.reciprocal(bottom))


def _softcap_any(lane: Lane, cap: float) -> None:
    """x times a polynomial for small x, else cap (2 sigma(2x/cap) - 1), which ends at cap itself whatever cap rounds to."""
    folded = 2.0**-10 <= cap <= 2.0**10  # else the powers of 1/cap could leave the range of fp32
    unit = cap if folded else 1.0
    z = "x" if folded else lane.mul("x", 1 / cap)
    s = lane.mul(z, z)
    small = lane.mul("x", lane.horner([1.0, *(c / unit ** (2 * k + 2) for k, c in enumerate(_TANH_P))], s))
    r = lane.reciprocal(lane.add(lane.exp2(lane.mul("x", -2 * _LOG2E / cap)), 1.0))
    large = lane.fma(r, 2 * cap, -cap)
    near = lane.op("setp.lt.f32", lane.op("abs.f32", "x"), _TANH_SMALL * cap)
    lane.op("selp.f32", small, large, near)


def _softcap_slope(lane: Lane, cap: float) -> None:
    _bell(lane, 2 / cap, 1.0)


def _gate(lane: Lane, sigma: str, x: str) -> None:
    """x sigma with the ties of subnormals decided."""
    lane.with_sign_of("x", lane.fma(sigma, x, _NUDGE[lane.format]))


def _magnitude(lane: Lane, end: float) -> str:
    """|x|, at most ``end``: no infinity meets a zero."""
    return lane.op("min.NaN.f32", lane.op("abs.f32", "x"), end)


def _positive_part(lane: Lane) -> str:
    """max(x, 0) with the zero of -0 and of negative x negative: max(+0, -0) is +0."""
    return lane.op("max.f32", "x", -0.0)


def _clamped(lane: Lane, end: float) -> str:
    """x with its magnitude at most ``end``: no infinity meets a zero."""
    return lane.op("min.NaN.xorsign.abs.f32", "x", end)


def _silu(lane: Lane, beta: float) -> None:
    """x sigma. BF16: max(x, 0) - a sigma(-beta a), a = |x|, with e = exp(-beta a) held above the subnormals by a factor 1/s.

    At small powers of two fp32 makes the second product a rounding tie; _TIE_BIAS makes it larger, which is right for
    either sign of x.
    """
    if lane.format == "fp16":
        x = lane.op("max.NaN.f32", "x", -_SATURATED / beta)
        bias = _SILU_EXPONENT_BIAS_FP16 if beta == 1 else 1.0
        _gate(lane, _scaled_logistic(lane, lane.mul(x, _exponent_factor(lane.format) * beta * bias)), x)
        return
    s = _SCALE[lane.format]
    a = _magnitude(lane, _SATURATED / beta)
    e = lane.exp2(lane.fma(a, -_LOG2E * beta, -math.log2(s)))
    r = lane.reciprocal(lane.fma(e, s, 1.0))
    tail = lane.fma(lane.mul(a, e), r, -_NUDGE[lane.format] / s)
    bias = _TIE_BIAS if _is_power_of_two(beta) else 1.0
    lane.with_sign_of("x", lane.fma(tail, -s * bias, _positive_part(lane)))


def _silu_both(lane: Lane, beta: float) -> tuple[str, str]:
    """Value and slope from one sigma: half the special-function work of the two. The slope is that of :func:`_silu_slope`."""
    _silu_slope(lane, beta)
    slope, sigma = lane.steps[-1].dst, next(s.dst for s in lane.steps if s.opcode.startswith("rcp"))
    sigma = _times(lane, sigma, _unscale(lane.format))
    if lane.format == "bf16" and _is_power_of_two(beta):
        sigma = _linear_near_zero(lane, sigma, 0.5, 0.25 * beta, _LINE_END / beta)
    _gate(lane, sigma, lane.op("max.NaN.f32", "x", -_SATURATED / beta))
    return lane.steps[-1].dst, slope


def _silu_slope(lane: Lane, beta: float) -> None:
    """sigma (1 + x beta (1 - sigma))."""
    s = _SCALE[lane.format]
    x = _clamped(lane, _SATURATED / beta)
    r = _scaled_logistic(lane, lane.mul(x, _exponent_factor(lane.format) * beta))
    w = lane.fma(x, lane.fma(r, -s * beta, beta), 1.0)
    y = _times(lane, lane.mul(r, w), _unscale(lane.format))
    if _is_power_of_two(beta):
        _linear_near_zero(lane, y, 0.5, 0.5 * beta, _LINE_END / beta)


def _cubic_exponent(lane: Lane, x: str) -> tuple[str, str]:
    """x^2, and the exponent of gelu-tanh's logistic."""
    factor = _exponent_factor(lane.format)
    s = lane.mul(x, x)
    return s, lane.mul(x, lane.fma(s, CUBIC[1] * factor, CUBIC[0] * factor))


def _gelu_tanh(lane: Lane, _: float) -> None:
    x = lane.op("max.NaN.f32", "x", -_CUBIC_END)
    r = _scaled_logistic(lane, _cubic_exponent(lane, x)[1])
    _gate(lane, _times(lane, r, _unscale(lane.format)), x)


def _gelu_tanh_slope(lane: Lane, _: float) -> None:
    """sigma(v) (1 + x v' (1 - sigma(v))) for the cubic v."""
    s = _SCALE[lane.format]
    x = _clamped(lane, _CUBIC_END)
    square, exponent = _cubic_exponent(lane, x)
    r = _scaled_logistic(lane, exponent)
    rise = lane.mul(x, lane.fma(square, 3 * CUBIC[1], CUBIC[0]))
    w = lane.fma(rise, lane.fma(r, -s, 1.0), 1.0)
    _times(lane, lane.mul(r, w), _unscale(lane.format))


def _gelu(lane: Lane, _: float) -> None:
    """max(x, 0) - a Phi(-a), a = |x|.

    FP16 needs no nudge: its subnormals are normal numbers of fp32, where only the tie at 2^-24 is lost.
    """
    a = _magnitude(lane, _TAIL_END[lane.format])
    if lane.format == "fp16":
        h = lane.exp2(lane.horner(_TAIL["fp16"], a))
        lane.fma(lane.op("neg.f32", a), h, _positive_part(lane))
        return
    h = lane.exp2(lane.horner(_raised(_TAIL["bf16"]), a))
    tail = lane.fma(a, h, -_NUDGE[lane.format] * 2.0**_RAISED)
    lane.with_sign_of("x", lane.fma(tail, -(2.0**-_RAISED), _positive_part(lane)))


def _raised(exponent: Sequence[float]) -> list[float]:
    """The polynomial plus _RAISED."""
    return [exponent[0] + _RAISED, *exponent[1:]]


def _half_gaussian(lane: Lane) -> tuple[str, str]:
    """a = |x|, at most _WIDE_END, and h = exp(-a^2/4), whose square would be subnormal."""
    a = _magnitude(lane, _WIDE_END)
    return a, lane.exp2(lane.mul(lane.mul(a, a), -_LOG2E / 4))


def _gelu_wide(lane: Lane, _: float) -> None:
    """max(x, 0) - a R(a) h^2: accurate as an fp32 number down to where BF16 ends, in both formats, for products."""
    a, h = _half_gaussian(lane)
    numerator, denominator = _WIDE[lane.format]
    top = lane.mul(lane.horner([-c for c in numerator], a), a)
    tail = lane.fma(lane.mul(top, lane.reciprocal(lane.horner(denominator, a))), h, _NUDGE[lane.format])
    lane.with_sign_of("x", lane.fma(tail, h, lane.op("max.f32", "x", 0.0)))


def _gelu_slope(lane: Lane, _: float) -> None:
    """v = S(a) h^2 for negative x, 1 - v for the others."""
    a, h = _half_gaussian(lane)
    numerator, denominator = _SLOPE[lane.format]
    ratio = lane.mul(lane.horner(numerator, a), lane.reciprocal(lane.horner(denominator, a)))
    v = lane.mul(lane.mul(ratio, h), h)
    negative = lane.op("setp.lt.f32", "x", 0.0)
    lane.op("selp.f32", v, lane.fma(v, -1.0, 1.0), negative)


_BUILDERS: dict[str, tuple[Callable[[Lane, float], None], Callable[[Lane, float], None]]] = {
    "sigmoid": (_sigmoid, _sigmoid_slope),
    "tanh": (_softcap, _softcap_slope),
    "softcap": (_softcap, _softcap_slope),
    "silu": (_silu, _silu_slope),
    "gelu": (_gelu, _gelu_slope),
    "gelu-tanh": (_gelu_tanh, _gelu_tanh_slope),
}


# For a value that is multiplied before it is rounded: the short GELU is fitted to rounding intervals alone, and ends where its own
# format does.
_BUILDERS_OF_FACTORS = {"gelu": _gelu_wide}


def resolved(function: str, direction: str) -> tuple[Function, float]:
    """The function and its parameter, 1 where it has none."""
    target = get_function(function, direction)
    if target.family not in _BUILDERS:
        raise UnknownNameError(f"no exact sequence for {function!r}; known: {', '.join(_BUILDERS)}")
    return target, float(target.parameter or 1)


def steps(function: str, direction: str, format: str = "bf16", *, factor: bool = False) -> tuple[Step, ...]:
    """The sequence of one lane, from register ``x`` to register ``y``; ``factor``: y is multiplied before it is rounded.

    Raises UnknownNameError for a function, direction or format without one.
    """
    target, parameter = resolved(function, direction)
    if format not in _SCALE:
        raise UnknownNameError(f"no exact sequences in {format!r}; known: {', '.join(_SCALE)}")
    lane = Lane(format)
    forward, backward = _BUILDERS[target.family]
    if factor:
        forward = _BUILDERS_OF_FACTORS.get(target.family, forward)
    (forward if direction == "forward" else backward)(lane, parameter)
    return lane.finished()


def both_steps(function: str, format: str = "bf16") -> tuple[Step, ...]:
    """One sequence for a gated unit's gradients: register ``value`` is the function, ``slope`` its derivative."""
    target, parameter = resolved(function, "forward")
    lane = Lane(format)
    if target.family == "silu":
        value, slope = _silu_both(lane, parameter)
    else:
        forward, backward = _BUILDERS[target.family]
        forward = _BUILDERS_OF_FACTORS.get(target.family, forward)
        value, slope = _last(lane, forward, parameter), _last(lane, backward, parameter)
    return lane.named({value: "value", slope: "slope"})


def _last(lane: Lane, build: Callable[[Lane, float], None], parameter: float) -> str:
    """The result of a builder."""
    build(lane, parameter)
    return lane.steps[-1].dst
