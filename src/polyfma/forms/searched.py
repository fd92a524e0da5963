"""The forms that the search in the format uses: fewer roundings and instructions than the published order.

All of them propagate NaN at no cost (``min.nan``, ``min.nan.xorsign.abs`` are single instructions), and all
but ``fused-odd`` for a centred function are exact in the tails for a range of coefficients:

- ``relu`` at the end keeps the lower end of the range, a last min with the upper limit the upper end;
- ``rounded-odd`` rounds q(t) ts to the format before the centre is added, so that it becomes exactly 1/2;
- the ``w`` forms have a factor w = max(1 - t/Lc, 0) that is exactly 0 from the clamp on.

``d`` counts the coefficients of the polynomial that a form adds to its fixed parts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import lru_cache

import numpy as np

from polyfma.formats import FP16, FP32, Format, Values
from polyfma.forms.base import Draft, Form, Model, centre_of, centred_model, even_model, names, powers, product_model
from polyfma.functions import Function, function_scale

Reconstruct = Callable[[Draft, str, str], str]


def _limit(target: Function) -> float:
    """The upper limit of the values (tanh: 1; softcap: the cap; sigmoid over n keys: 1/n)."""
    return target._special(np.inf)


# -- odd and centred -----------------------------------------------------------------------------------


def _horner_q(d: Draft) -> tuple[str, str]:
    """(q, ts): q = c1 + c2 t + ... by Horner, to be multiplied by the signed ts."""
    ts = d.clamped_signed()
    t = d("abs", ts, dst="t") if d.degree > 1 else ts
    return d.horner(t, d.coefficient_names(1, d.degree), dst="q"), ts


def _estrin_q(d: Draft) -> tuple[str, str]:
    """The same polynomial in two halves over t^2: (c1 + c2 t) + t^2 (c3 + c4 t + ...)."""
    ts = d.clamped_signed()
    t = d("abs", ts, dst="t")
    c = d.coefficient_names(1, d.degree)
    square = d("mul", ts, ts, dst="u")
    low = d("fma", c[1], t, c[0], dst="low")
    return d("fma", d.horner(t, c[2:]), square, low, dst="q"), ts


def _square_q(d: Draft) -> tuple[str, str]:
    """q = c1 + c2 u + c3 u^2 + ... in u = ts^2: no |x| is needed."""
    ts = d.clamped_signed()
    u = d("mul", ts, ts, dst="u") if d.degree > 1 else ts
    return d.horner(u, d.coefficient_names(1, d.degree), dst="q"), ts


def _unit_q(d: Draft) -> tuple[str, str]:
    """q = 1 + c2 t + c3 t^2 + ...: the slope at 0 is exactly 1, as a softcap needs it."""
    ts = d.clamped_signed()
    t = d("abs", ts, dst="t")
    return d.horner(t, [d.const("one", 1.0), *d.coefficient_names(2, d.degree)], dst="q"), ts


def _unit_square_q(d: Draft) -> tuple[str, str]:
    """q = 1 + c2 u + c3 u^2 + ... in u = ts^2."""
    ts = d.clamped_signed()
    u = d("mul", ts, ts, dst="u")
    return d.horner(u, [d.const("one", 1.0), *d.coefficient_names(2, d.degree)], dst="q"), ts


def _unit_gap_q(d: Draft) -> tuple[str, str]:
    """q = 1 + u (c3 + u (c5 + c6 t + c7 t^2 + ...)) in u = ts^2: no even power where t is small, every power above.

    An odd polynomial that is as good near 0 needs a higher degree for the tail, one in all powers has an error in t^2.
    """
    ts = d.clamped_signed()
    t = d("abs", ts, dst="t")
    u = d("mul", ts, ts, dst="u")
    c3, *high = (d.const(name) for name in _gap_names(d.degree))
    inner = d("fma", d.horner(t, high, dst="high"), u, c3, dst="inner")
    return d("fma", inner, u, d.const("one", 1.0), dst="q"), ts


def _gap_powers(degree: int) -> list[int]:
    return [3, *range(5, degree + 1)]


def _gap_names(degree: int) -> list[str]:
    return [f"c{k}" for k in _gap_powers(degree)]


def _factored_q(d: Draft) -> tuple[str, str]:
    """q = (c1 + c2 t) (1 + c3 t + c4 t^2 + ...)."""
    ts = d.clamped_signed()
    t = d("abs", ts, dst="t")
    c = d.coefficient_names(1, d.degree)
    low = d("fma", c[1], t, c[0], dst="low")
    return d("mul", low, d.horner(t, [d.const("one", 1.0), *c[2:]], dst="high"), dst="q"), ts


def _factored(c: Values) -> Values | None:
    """(c1 + c2 t) (1 + c3 t + ...) from the coefficients of the product: a real root of it makes the first factor."""
    roots = np.roots(c[::-1])
    real = roots[np.abs(roots.imag) < 1e-9].real
    real = real[real != 0]
    if real.size == 0 or c[0] == 0:
        return None
    root = float(real[np.argmax(np.abs(real))])  # the farthest root leaves the first factor the flattest
    rest = np.polydiv(c[::-1], np.array([-1 / root, 1.0]))[0][::-1]
    return np.concatenate([[rest[0], -rest[0] / root], rest[1:] / rest[0]])


def _fused(d: Draft, q: str, ts: str, last: str = "fma") -> str:
    """centre + q ts with one rounding; a product alone where the centre is 0."""
    if centre_of(d.target) == 0:
        return d("mul", q, ts, dst="y")
    return d(last, q, ts, d.centre(), dst="y")


def _fused_relu(d: Draft, q: str, ts: str) -> str:
    return _fused(d, q, ts, "fma.relu")


def _fused_limited(d: Draft, q: str, ts: str) -> str:
    """With a final limit at the function's own: the range holds whatever the coefficients."""
    limit = d.const("limit", _limit(d.target))
    if centre_of(d.target) == 0:
        return d("min.nan.xorsign.abs", _fused(d, q, ts), limit, dst="limited")
    return d("min.nan", _fused_relu(d, q, ts), limit, dst="limited")


def _rounded(d: Draft, q: str, ts: str) -> str:
    """q ts is rounded before the centre is added: exactly +-centre in the tails."""
    return d("add", d("mul", q, ts, dst="m"), d.centre(), dst="y")


def _rounded_limited(d: Draft, q: str, ts: str) -> str:
    """q ts is rounded and limited to +-centre before the centre is added."""
    limited = d("min.nan.xorsign.abs", d("mul", q, ts, dst="m"), d.centre(), dst="limited")
    return d("add", limited, "centre", dst="y")


def _odd_ops(polynomial: Callable[[Draft], tuple[str, str]], reconstruct: Reconstruct) -> Callable[[Draft], Mapping[str, str]]:
    def build(d: Draft) -> Mapping[str, str]:
        q, ts = polynomial(d)
        return d.result(reconstruct(d, q, ts))

    return build


def _odd_square_model(target: Function, x: Values, degree: int, clamp: float) -> Model:
    t = np.minimum(x, clamp)
    return np.full_like(x, centre_of(target)), np.ones_like(x), powers(t, range(1, 2 * degree, 2))


_PEAK_TAIL = 0.0115  # how far from its limit SiLU' or GELU' is where the falling line has reached it


def _peak(d: Draft) -> Mapping[str, str]:
    """centre + sign(x) min(a(ta), max(b(t), centre)): a rises to the peak, the line b falls from it to the limit.

    For the derivatives of SiLU and GELU, which pass their limit 1 and come back to it: the tails are exact
    whatever the coefficients, as long as a stays above the line beyond the clamp of ta.
    """
    t = d("abs", "x", dst="t")
    ta = d("min.nan", t, d.const("clamp"), dst="ta")
    c = d.coefficient_names(1, d.degree - 1)
    rising = d("mul", d.horner(ta, c), ta, dst="a")
    line = d("fma", t, d.const("d1"), d.const("d0"), dst="b")
    falling = d("max", line, d.centre(), dst="limited")
    signed = d("copysign", d("min.nan", rising, falling, dst="m"), "x", dst="s")
    return {"value": d("add", signed, "centre", dst="y")}


def _peak_names(degree: int) -> list[str]:
    return [*(f"c{k}" for k in range(1, degree)), "d0", "d1"]


@lru_cache(maxsize=16)
def _line_end(target: Function) -> float:
    """Where the function is as near to its limit as the falling line leaves it."""
    x = np.linspace(1.0, 12.0, 1101) * function_scale(target)
    near = np.abs(target.values(x) - target._special(np.inf)) > _PEAK_TAIL
    return float(x[np.flatnonzero(near)[-1]])


def _peak_model(target: Function, x: Values, degree: int, clamp: float) -> Model:
    rises = (x < clamp)[:, None]
    falls = ((x >= clamp) & (x < _line_end(target)))[:, None]
    matrix = np.concatenate([np.where(rises, powers(x, range(1, degree)), 0.0), np.where(falls, powers(x, (0, 1)), 0.0)], axis=1)
    centre = centre_of(target)
    return np.where(x < _line_end(target), centre, 2 * centre), np.ones_like(x), matrix


def _unit_model(target: Function, x: Values, degree: int, clamp: float) -> Model:
    t = np.minimum(x, clamp)
    return t, np.ones_like(x), powers(t, range(2, degree + 1))


def _unit_square_model(target: Function, x: Values, degree: int, clamp: float) -> Model:
    t = np.minimum(x, clamp)
    return t, np.ones_like(x), powers(t, range(3, 2 * degree, 2))


def _unit_gap_model(target: Function, x: Values, degree: int, clamp: float) -> Model:
    t = np.minimum(x, clamp)
    return t, np.ones_like(x), powers(t, _gap_powers(degree))


# -- even ----------------------------------------------------------------------------------------------


def _fused_even(d: Draft) -> Mapping[str, str]:
    t = d.clamped_magnitude()
    return d.result(d.horner(t, d.coefficient_names(0, d.degree), last="fma.relu", dst="y"))


def _even_square(d: Draft) -> Mapping[str, str]:
    """The polynomial in u = ts^2, ended by relu."""
    ts = d.clamped_signed()
    u = d("mul", ts, ts, dst="u")
    return d.result(d.horner(u, d.coefficient_names(0, d.degree), last="fma.relu", dst="y"))


def _even_square_model(target: Function, x: Values, degree: int, clamp: float) -> Model:
    return np.zeros_like(x), np.ones_like(x), powers(np.minimum(x, clamp), range(0, 2 * degree + 1, 2))


def _slope(d: Draft) -> str:
    """-1/Lc, rounded away from zero so that 1 - Lc/Lc is not above 0 and relu makes it exactly 0."""
    if "slope" in d.values:  # one that a search moved: any steeper one makes the tail exact too
        return d.const("slope")
    clamp = d.values["clamp"]
    value = -1 / clamp
    rounded = float(d.fmt.decode(d.fmt.encode(value)))
    if -rounded * clamp < 1:
        rounded -= float(d.fmt.ulp(np.array([value]))[0])
    return d.const("slope", rounded)


def _w_factor(d: Draft, t: str, power: int) -> str:
    """w^power of w = max(1 - t/Lc, 0)."""
    w = d("fma.relu", t, _slope(d), d.const("one", 1.0), dst="w")
    return w if power == 1 else d("mul", w, w, dst="w2")


def _even_w(power: int) -> Callable[[Draft], Mapping[str, str]]:
    def build(d: Draft) -> Mapping[str, str]:
        t = d.clamped_magnitude()
        p = d.horner(t, d.coefficient_names(0, d.degree - 1), dst="p")
        return d.result(d("mul", _w_factor(d, t, power), p, dst="y"))

    return build


def _even_w_model(power: int) -> Callable[[Function, Values, int, float], Model]:
    def model(target: Function, x: Values, degree: int, clamp: float) -> Model:
        w = np.maximum(1 - x / clamp, 0) ** power if np.isfinite(clamp) else np.ones_like(x)
        return np.zeros_like(x), w, powers(np.minimum(x, clamp), range(degree))

    return model


# -- SiLU and GELU -------------------------------------------------------------------------------------


def _times_sigmoid(limited: bool) -> Callable[[Draft], Mapping[str, str]]:
    def build(d: Draft) -> Mapping[str, str]:
        """x sigma(x): the factor is limited below at -max, so that 0 * -inf does not become NaN."""
        q, ts = _horner_q(d)
        gate = d("fma.relu", q, ts, d.const("centre", 0.5), dst="g")
        if limited:
            gate = d("min.nan", gate, d.const("limit", 1.0), dst="limited")
        lowest = d.const("lowest", -d.outer.max_finite, fmt=d.outer)
        factor = d.inside(d("max.nan", "x", lowest, dst="f", fmt=d.outer))
        return d.result(d("mul", gate, factor, dst="y"))

    return build


def _relu_x(d: Draft) -> str:
    # A NaN loses against 0 here, but t carries it into the sum.
    return d.inside(d("max", "x", d.const("zero", 0.0, fmt=d.outer), dst="m", fmt=d.outer))


def _relu_residual(d: Draft) -> Mapping[str, str]:
    """relu(x) + t q(t): the residual is even, negative, and 0 in the tail."""
    t = d.clamped_magnitude()
    q = d.horner(t, d.coefficient_names(0, d.degree - 1), dst="q")
    return d.result(d("fma", q, t, _relu_x(d), dst="y"))


def _relu_residual_model(target: Function, x: Values, degree: int, clamp: float) -> Model:
    t = np.minimum(x, clamp)
    return x, t, powers(t, range(degree))


def _relu_w(power: int) -> Callable[[Draft], Mapping[str, str]]:
    def build(d: Draft) -> Mapping[str, str]:
        """relu(x) + w^power t q(t)."""
        t = d.clamped_magnitude()
        q = d.horner(t, d.coefficient_names(0, d.degree - 1), dst="q")
        product = d("mul", _w_factor(d, t, power), q, dst="wq")
        return d.result(d("fma", product, t, _relu_x(d), dst="y"))

    return build


def _relu_w_model(power: int) -> Callable[[Function, Values, int, float], Model]:
    def model(target: Function, x: Values, degree: int, clamp: float) -> Model:
        t = np.minimum(x, clamp)
        w = np.maximum(1 - x / clamp, 0) ** power if np.isfinite(clamp) else np.ones_like(x)
        return x, w * t, powers(t, range(degree))

    return model


_BOTH = ("odd", "centred")
_ODD = (
    Form("fused-odd", "centre + ts q(t), one rounding", _BOTH, _odd_ops(_horner_q, _fused), centred_model, names(1)),
    Form("fused-odd-relu", "max(centre + ts q(t), 0)", ("centred",), _odd_ops(_horner_q, _fused_relu), centred_model,
         names(1), bounded=True),
    Form("fused-odd-limited", "centre + ts q(t) within the function's range", _BOTH, _odd_ops(_horner_q, _fused_limited),
         centred_model, names(1), bounded=True, tail="limited"),
    Form("rounded-odd", "centre + round(ts q(t))", ("centred",), _odd_ops(_horner_q, _rounded), centred_model, names(1)),
    Form("rounded-odd-limited", "centre + round(ts q(t)) limited to +-centre", ("centred",),
         _odd_ops(_horner_q, _rounded_limited), centred_model, names(1), bounded=True, tail="limited"),
    Form("peak-odd", "centre + sign(x) min(a(ta), max(b(t), centre)), a rising to the peak, b a falling line", ("centred",),
         _peak, _peak_model, _peak_names, least_degree=3, slope=True, tail="exact"),
    Form("estrin-odd", "fused-odd with q by Estrin's scheme", _BOTH, _odd_ops(_estrin_q, _fused), centred_model, names(1),
         least_degree=3),
    Form("estrin-odd-limited", "fused-odd-limited with q by Estrin's scheme", _BOTH, _odd_ops(_estrin_q, _fused_limited),
         centred_model, names(1), least_degree=3, bounded=True, tail="limited"),
    Form("factored-odd", "centre + ts (c1 + c2 t) (1 + c3 t + ...)", _BOTH, _odd_ops(_factored_q, _fused), centred_model,
         names(1), least_degree=3, own_coefficients=_factored),
    Form("odd-square", "centre + ts q(ts^2), one rounding", _BOTH, _odd_ops(_square_q, _fused), _odd_square_model, names(1)),
    Form("odd-square-relu", "max(centre + ts q(ts^2), 0)", ("centred",), _odd_ops(_square_q, _fused_relu),
         _odd_square_model, names(1), bounded=True),
    Form("odd-square-limited", "centre + ts q(ts^2) within the function's range", _BOTH,
         _odd_ops(_square_q, _fused_limited), _odd_square_model, names(1), bounded=True, tail="limited"),
    Form("rounded-odd-square", "centre + round(ts q(ts^2))", ("centred",), _odd_ops(_square_q, _rounded),
         _odd_square_model, names(1)),
)  # fmt: skip
_UNIT = (
    Form("unit-odd", "ts q(t), q(0) = 1", ("odd",), _odd_ops(_unit_q, _fused), _unit_model, names(2), least_degree=2),
    Form("unit-odd-limited", "ts q(t) within [-limit, limit], q(0) = 1", ("odd",), _odd_ops(_unit_q, _fused_limited),
         _unit_model, names(2), least_degree=2, tail="limited"),
    Form("unit-odd-square", "ts q(ts^2), q(0) = 1", ("odd",), _odd_ops(_unit_square_q, _fused), _unit_square_model, names(2),
         least_degree=2),
    Form("unit-odd-square-limited", "ts q(ts^2) within [-limit, limit], q(0) = 1", ("odd",),
         _odd_ops(_unit_square_q, _fused_limited), _unit_square_model, names(2), least_degree=2, tail="limited"),
)  # fmt: skip
_EVEN = (
    Form("fused-even", "max(p(t), 0)", ("even",), _fused_even, even_model, names(0)),
    Form("even-square", "max(p(ts^2), 0)", ("even",), _even_square, _even_square_model, names(0)),
    Form("even-w", "w p(t), w = max(1 - t/Lc, 0)", ("even",), _even_w(1), _even_w_model(1), names(0, -1), tail="exact"),
    Form("even-wsq", "w^2 p(t), w = max(1 - t/Lc, 0)", ("even",), _even_w(2), _even_w_model(2), names(0, -1), tail="exact"),
)
_RESIDUAL = (
    Form("times-sigmoid", "x max(1/2 + ts q(t), 0)", ("residual",), _times_sigmoid(False), product_model, names(1)),
    Form("times-sigmoid-limited", "x min(max(1/2 + ts q(t), 0), 1)", ("residual",), _times_sigmoid(True), product_model,
         names(1), tail="limited"),
    Form("relu-residual", "max(x, 0) + t q(t)", ("residual",), _relu_residual, _relu_residual_model, names(0, -1), tail="residual"),
    Form("w", "max(x, 0) + w t q(t), w = max(1 - t/Lc, 0)", ("residual",), _relu_w(1), _relu_w_model(1), names(0, -1), tail="exact"),
    Form("wsq", "max(x, 0) + w^2 t q(t), w = max(1 - t/Lc, 0)", ("residual",), _relu_w(2), _relu_w_model(2), names(0, -1), tail="exact"),
)  # fmt: skip


def wider(form: Form, inner: Format) -> Form:
    """The form with its arithmetic in a wider format; input and output are converted."""
    return replace(form, name=f"{inner}-{form.name}", formula=f"{form.formula}, computed in {inner}", inner=inner.name)


_GAP = Form("unit-gap", "ts q(t), q = 1 + c3 t^2 + t^4 (c5 + c6 t + ...)", ("odd",), _odd_ops(_unit_gap_q, _fused), _unit_gap_model,
            _gap_names, least_degree=6)  # fmt: skip
SEARCHED = (*_ODD, *_UNIT, *_EVEN, *_RESIDUAL)
_WIDENED = ("fused-odd", "fused-odd-relu", "fused-odd-limited", "odd-square-limited", "times-sigmoid-limited", "w", "wsq")
WIDER = (
    *(wider(form, inner) for form in SEARCHED if form.name in _WIDENED for inner in (FP16, FP32)),
    wider(_GAP, FP32),  # its last coefficients are too small a share of the value for 16 bits
)
