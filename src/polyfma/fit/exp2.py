"""Short programs for 2^f on the fraction 0 <= f <= 1, pinned to p(0) = 1 and p(1) = 2 but for exp2-d3.

``least-squares`` minimises the absolute error on a uniform grid, ``minimax`` the largest relative error
on the same grid: the two criteria of the published table 8.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.optimize import linprog

from polyfma.errors import FitError, UnknownNameError
from polyfma.fit.common import Fit
from polyfma.formats import Format, Values, get_format
from polyfma.forms import get_form
from polyfma.functions import get_function
from polyfma.published import published
from polyfma.replay import replay

METHODS = ("minimax", "least-squares", "published")
GRID_POINTS = (1 << 16) + 1
_FORMS = {"exp2-d1": 1, "exp2-pwl2": 1, "exp2-d2": 2, "exp2-d3": 3}


@dataclass(frozen=True)
class FractionError:
    """Largest and root-mean-square relative error on the uniform grid."""

    max_relative: float
    rms_relative: float


def fraction_grid() -> Values:
    return np.linspace(0.0, 1.0, GRID_POINTS)


def exp2_values(form: str, method: str) -> dict[str, float]:
    """The unrounded constants of a form: ``a`` is free, ``b`` follows from p(1) = 2.

    exp2-d1 has none; exp2-d3 is FlashAttention-4's published polynomial, whose p(1) is 1.99983.
    """
    if method not in METHODS:
        raise UnknownNameError(f"unknown exp2 method {method!r}; known: {', '.join(METHODS)}")
    if form not in _FORMS:
        raise FitError(f"form {form!r} is not an exp2 form; known: {', '.join(_FORMS)}")
    if (form == "exp2-d3") != (method == "published"):
        raise FitError("exp2-d3 is FlashAttention-4's polynomial: method published, and no other form has it")
    if form == "exp2-d1":
        return {}
    if form == "exp2-d3":
        return {f"c{k}": v for k, v in enumerate(published()["table8_exp2_fraction"]["forms"]["FA4 D3"])}
    f = fraction_grid()
    # p = 1 + a u + v, the pin p(1) = 2 having removed b.
    u, v = (f - 2 * np.maximum(f - 0.5, 0), 2 * np.maximum(f - 0.5, 0)) if form == "exp2-pwl2" else (f - f * f, f * f)
    rest = np.exp2(f) - 1 - v
    a = float(u @ rest / (u @ u)) if method == "least-squares" else _minimax(u / np.exp2(f), rest / np.exp2(f))
    return {"a": a, "b": 2 * (1 - a) if form == "exp2-pwl2" else 1 - a}


def _minimax(u: Values, rest: Values) -> float:
    """The a that minimises max |a u - rest|, as a linear programme in (a, bound)."""
    ones = np.ones_like(u)
    solved = linprog([0, 1], A_ub=np.concatenate([np.stack([u, -ones], 1), np.stack([-u, -ones], 1)]),
                     b_ub=np.concatenate([rest, -rest]), bounds=[(None, None), (0, None)], method="highs")  # fmt: skip
    if solved.x is None:
        raise FitError(f"HiGHS found no minimax constant: {solved.message}")
    return float(solved.x[0])


def fraction_error(form: str, values: dict[str, float]) -> FractionError:
    """The relative error of unrounded constants, in real arithmetic."""
    f = fraction_grid()
    shape = get_form(form)
    offset, multiplier, matrix = shape.model(get_function("exp2"), f, _FORMS[form], np.inf)
    weights = np.array([values[n] for n in shape.free_names(_FORMS[form])]) if values else np.ones(matrix.shape[1])
    relative = (offset + multiplier * (matrix @ weights)) / np.exp2(f) - 1
    return FractionError(float(np.max(np.abs(relative))), float(np.sqrt(np.mean(relative**2))))


def fit_exp2(form: str | None = None, method: str = "minimax", fmt: str | Format = "fp16", *, direction: str = "forward",
             degree: int | None = None) -> Fit:  # fmt: skip
    """The program of an exp2 form with its constants rounded to the format; the score is of fused replay.

    ``form`` is exp2-d1, exp2-pwl2, exp2-d2 or exp2-d3 (method ``published``); without it ``degree`` names
    exp2-dN, by default exp2-d2. Raises UnknownNameError for an unknown method, FitError for what exp2 has not.
    """
    if direction != "forward":
        raise FitError(f"exp2 is fitted forward only, not {direction!r}")
    if form is None:
        form = f"exp2-d{2 if degree is None else degree}"
    elif degree is not None and form in _FORMS and degree != _FORMS[form]:
        raise FitError(f"form {form} has degree {_FORMS[form]}, not {degree}")
    f = get_format(fmt)
    values = exp2_values(form, method)
    name = f"exp2.forward.{f}.{form.removeprefix('exp2-')}.{method}"
    program = get_form(form).build(name, "exp2", "forward", f, _FORMS[form], values)
    inputs = f.encode(np.linspace(0, 1, 8001)) if f.width != 16 else np.arange(int(f.encode(1.0)) + 1, dtype=f.dtype)
    error = np.abs(f.decode(np.asarray(replay(program, inputs))) - program.target.values(f.decode(inputs)))
    return Fit(program, method, 1.0, 1.0, float(np.max(error)), "fused", ())
