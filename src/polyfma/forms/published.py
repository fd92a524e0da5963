"""The published forms, in the published operation order, and what sigmoid attention and exp2 were deployed with."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from polyfma.formats import Values
from polyfma.forms.base import (
    Draft,
    Form,
    Model,
    Part,
    centre_of,
    centred_model,
    even_model,
    names,
    powers,
    product_model,
)
from polyfma.functions import Function

THRESHOLD = 1.25  # where the published two-row sigmoid changes rows, b3_deployed


def _beyond(x: Values, clamp: float, multiplier: Values) -> tuple[Values, Values]:
    """Past the clamp the select takes relu(x): offset x, nothing of the polynomial."""
    return np.where(x > clamp, x, x / 2), np.where(x > clamp, 0.0, multiplier)


def _residual_tp_model(target: Function, x: Values, degree: int, clamp: float) -> Model:
    offset, multiplier = _beyond(x, clamp, x)
    return offset, multiplier, powers(np.minimum(x, clamp), range(1, degree + 1))


def _residual_even_model(target: Function, x: Values, degree: int, clamp: float) -> Model:
    offset, multiplier = _beyond(x, clamp, np.ones_like(x))
    return offset, multiplier, powers(np.minimum(x, clamp), range(degree + 1))


def _signed_polynomial(d: Draft) -> str:
    """sign(x) p(t) with p(0) = 0."""
    t = d.clamped_magnitude()
    names = d.coefficient_names(1, d.degree)
    return d("copysign", d("mul", d.horner(t, names), t, dst="p"), "x", dst="s")


def _odd(d: Draft) -> Mapping[str, str]:
    return {"value": _signed_polynomial(d)}


def _centred_odd(d: Draft) -> Mapping[str, str]:
    return {"value": d("add", _signed_polynomial(d), d.centre(), dst="y")}


def _even(d: Draft) -> Mapping[str, str]:
    return {"value": d.horner(d.clamped_magnitude(), d.coefficient_names(0, d.degree), dst="y")}


def _sigmoid_product(d: Draft) -> Mapping[str, str]:
    gate = d("add", _signed_polynomial(d), d.const("centre", 0.5), dst="g")
    return {"value": d("mul", gate, "x", dst="y")}


def _relu_beyond_clamp(d: Draft, y: str) -> Mapping[str, str]:
    """Our addition to the published residual rows, which leave |x| > Lc undefined: relu(x) by a select."""
    beyond = d("set.gt", d.ops[0].dst, "clamp", dst="beyond")
    return {"value": d("select", beyond, d("max", "x", d.const("zero", 0.0), dst="relu"), y, dst="out")}


def _residual_tp(d: Draft) -> Mapping[str, str]:
    t = d.clamped_magnitude()
    p = d("mul", d.horner(t, d.coefficient_names(1, d.degree)), t, dst="p")
    half = d("mul", "x", d.const("half", 0.5), dst="h")
    return _relu_beyond_clamp(d, d("fma", t, p, half, dst="y"))


def _residual_even(d: Draft) -> Mapping[str, str]:
    t = d.clamped_magnitude()
    p = d.horner(t, d.coefficient_names(0, d.degree), dst="p")
    return _relu_beyond_clamp(d, d("fma", "x", d.const("half", 0.5), p, dst="y"))


# -- two coefficient rows and the coupled block, as deployed in sigmoid attention --------------------------


def _two_row_names(degree: int) -> list[str]:
    return [f"a{k}" for k in range(1, degree + 1)] + [f"b{k}" for k in range(degree + 1)]


def _two_row_model(target: Function, x: Values, degree: int, clamp: float) -> Model:
    t = np.minimum(x, clamp)
    high = (t >= THRESHOLD)[:, None]
    matrix = np.concatenate([np.where(high, 0.0, powers(t, range(1, degree + 1))),
                             np.where(high, powers(t, range(degree + 1)), 0.0)], axis=1)  # fmt: skip
    return np.full_like(x, centre_of(target)), np.ones_like(x), matrix


def _two_row_value(d: Draft, t: str) -> str:
    high = d("set.ge", t, d.const("threshold", THRESHOLD), dst="high")
    zero = d.const("zero", 0.0)
    rows = [(zero, d.const("b0"))] + [(d.const(f"a{k}"), d.const(f"b{k}")) for k in range(1, d.degree + 1)]
    chosen = [d("select", high, b, a, dst=f"k{i}") for i, (a, b) in enumerate(rows)]
    signed = d("copysign", d.horner(t, chosen, dst="p"), "x", dst="s")
    # max.nan, so that the final limit at 0 keeps a NaN.
    return d("max.nan", d("add", signed, d.centre(), dst="y"), zero, dst="value")


def _two_row(d: Draft) -> Mapping[str, str]:
    return {"value": _two_row_value(d, d.clamped_magnitude())}


def _coupled_names(degree: int) -> list[str]:
    return [*_two_row_names(degree), *(f"d{k}" for k in range(degree + 2))]


def _coupled(d: Draft) -> Mapping[str, str]:
    """The two-row value and, from the same t, an even derivative of one degree more, limited below at 0."""
    t = d.clamped_magnitude()
    value = _two_row_value(d, t)
    slope = d.horner(t, d.coefficient_names(0, d.degree + 1, "d"), dst="q")
    return {"value": value, "derivative": d("max.nan", slope, "zero", dst="derivative")}


# -- the exp2 fraction ---------------------------------------------------------------------------------


def _exp2_d1(d: Draft) -> Mapping[str, str]:
    return {"value": d("add", "x", d.const("c0", 1.0), dst="y")}


def _exp2_pwl2(d: Draft) -> Mapping[str, str]:
    """1 + a f + b max(f - 1/2, 0); b = 2(1 - a) keeps the value 2 at f = 1."""
    line = d("fma", d.const("a"), "x", d.const("one", 1.0), dst="line")
    knee = d("max.nan", d("add", "x", d.const("knee", -0.5)), d.const("zero", 0.0), dst="m")
    return {"value": d("fma", d.const("b"), knee, line, dst="y")}


def _exp2_d2(d: Draft) -> Mapping[str, str]:
    """1 + a f + b f^2; b = 1 - a keeps the value 2 at f = 1."""
    return {"value": d.horner("x", [d.const("one", 1.0), d.const("a"), d.const("b")], dst="y")}


def _exp2_d3(d: Draft) -> Mapping[str, str]:
    return {"value": d.horner("x", d.coefficient_names(0, 3), dst="y")}


def _exp2_pwl2_model(target: Function, x: Values, degree: int, clamp: float) -> Model:
    return np.ones_like(x), np.ones_like(x), np.stack([x, np.maximum(x - 0.5, 0)], axis=-1)


def _exp2_polynomial_model(target: Function, x: Values, degree: int, clamp: float) -> Model:
    return np.ones_like(x), np.ones_like(x), powers(x, range(1, degree + 1))


def _exp2_d3_model(target: Function, x: Values, degree: int, clamp: float) -> Model:
    return np.zeros_like(x), np.ones_like(x), powers(x, range(4))


_TAIL_NOTE = "relu(x) beyond Lc by set, max and select is our addition; the published rows leave it undefined"
PUBLISHED = (
    Form("odd", "sign(x) p(t), p(0) = 0", ("odd",), _odd, centred_model, names(1), published=True),
    Form("centred-odd", "centre + sign(x) p(t), p(0) = 0", ("centred",), _centred_odd, centred_model, names(1),
         published=True),
    Form("even", "p(t)", ("even",), _even, even_model, names(0), published=True),
    Form("residual-tp", "x/2 + t p(t), p(0) = 0; relu(x) beyond Lc", ("residual",), _residual_tp,
         _residual_tp_model, names(1), published=True, note=_TAIL_NOTE),
    Form("residual-even", "x/2 + p(t), p(0) free; relu(x) beyond Lc", ("residual",), _residual_even,
         _residual_even_model, names(0), published=True, note=_TAIL_NOTE),
    Form("sigmoid-product", "x (1/2 + sign(x) p(t)), p(0) = 0", ("residual",), _sigmoid_product, product_model,
         names(1), published=True, note="NaN at -inf where p(Lc) = 1/2, else an error that grows with |x|"),
    Form("two-row", "max(centre + sign(x) p(t), 0), p by one of two coefficient rows at t >= 5/4", ("centred",),
         _two_row, _two_row_model, _two_row_names, published=True, families=("sigmoid",)),
    Form("coupled", "the two-row value and an even derivative q(t) from one t", ("centred",), _coupled, _two_row_model,
         _coupled_names, published=True, families=("sigmoid",), parts=(Part("two-row", "forward"), Part("even", "backward", 1, "d"))),
    Form("exp2-d1", "1 + f", ("none",), _exp2_d1, _exp2_polynomial_model, lambda degree: [], published=True,
         clamped=False),
    Form("exp2-pwl2", "1 + a f + b max(f - 1/2, 0), b = 2 (1 - a)", ("none",), _exp2_pwl2, _exp2_pwl2_model,
         lambda degree: ["a", "b"], published=True, clamped=False),
    Form("exp2-d2", "1 + a f + b f^2, b = 1 - a", ("none",), _exp2_d2, _exp2_polynomial_model,
         lambda degree: ["a", "b"], published=True, clamped=False),
    Form("exp2-d3", "c0 + c1 f + c2 f^2 + c3 f^3", ("none",), _exp2_d3, _exp2_d3_model,
         lambda degree: [f"c{k}" for k in range(4)], published=True, clamped=False),
)  # fmt: skip
