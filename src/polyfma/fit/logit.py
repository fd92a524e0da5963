"""Softcap programs that compute in fp32: the least error where logits lie, within a budget everywhere.

In fp32 the arithmetic adds nothing that a 16-bit logit could show, so the coefficients are those of a linear programme in
real arithmetic. In u = s / cap the relative error of tanh(u) is minimised up to |u| = NEAR; from there the unit grows
geometrically to the budget of FAR, which it has from NEAR + RAMP on. The default budget of softcap attention
(:class:`polyfma.fit.objective.Objective`, ``logit``) is kept with a tenth to spare everywhere, infinities included.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linprog

from polyfma.errors import FitError
from polyfma.fit.common import Candidate, Fit, Progress, check_degree, check_length, chosen, program_name
from polyfma.fit.objective import MIDDLE, OUTER
from polyfma.formats import Format, Values, get_format
from polyfma.forms import get_form
from polyfma.functions import function_scale, get_function
from polyfma.program import Program

NEAR, RAMP, RELATIVE = 0.4, 0.8, 1e-5
SPARE = 0.9
POINTS = 800
CLAMPS = (2.3, 3.1, 0.05)
METHOD = "logit"


def fit_logit(function: str, direction: str, fmt: str | Format, degree: int, *, form: str = "fp32-unit-gap",
              clamp: float | None = None, progress: Progress | None = None) -> Fit:  # fmt: skip
    """A tanh program for softcaps, its slope at 0 exactly 1, by a linear programme for every clamp on a grid (or the given one).

    ``score`` is the largest error in the unit above, RELATIVE * u near 0. ``form`` is one that computes in fp32 with slope 1.
    Raises FitError where the form is another, no clamp keeps the budget, or the function is not tanh forward.
    """
    check_degree(degree)
    target, shape, f = get_function(function, direction), get_form(form), get_format(fmt)
    if (function, direction) != ("tanh", "forward"):
        raise FitError(f"method {METHOD} fits tanh forward, of which every softcap is made, not {function} {direction}")
    if shape.inner != "fp32" or not shape.name.startswith("fp32-unit"):
        raise FitError(f"method {METHOD} takes a form with slope 1 that computes in fp32 (fp32-unit-gap), not {form}")
    if degree < shape.least_degree:
        raise FitError(f"form {form} begins at degree {shape.least_degree}, not {degree}")
    check_length("clamp Lc", clamp, function_scale(target))
    grid = np.arange(*CLAMPS) if clamp is None else np.array([clamp])
    name = program_name(shape, target, f, degree, METHOD)
    found: list[tuple[Candidate, Program | None]] = []
    clamps = np.unique(f.decode(f.encode(grid)))
    for done, value in enumerate(clamps):
        if progress:
            progress(done, len(clamps))
        solved = _solve(lambda t, limit=float(value): shape.model(target, t, degree, limit)[2], float(value))  # type: ignore[misc]
        if solved is None:
            found.append((Candidate(float(value), float(value), np.inf, "budget"), None))
            continue
        score, coefficients = solved
        values = dict(zip(shape.free_names(degree), coefficients.tolist(), strict=True)) | {"clamp": float(value)}
        found.append((Candidate(float(value), float(value), score), shape.build(name, function, direction, f, degree, values)))
    if all(program is None for _, program in found):
        raise FitError(f"{name}: refused by the budget at every clamp of {clamps[0]:g} to {clamps[-1]:g}; degree 7 keeps it with a clamp near 2.6")
    return chosen(found, name, METHOD, "real", None)


def unit(u: Values) -> Values:
    """The unit in which an error of tanh(u), u > 0, counts here."""
    grows = np.clip((u - NEAR) / RAMP, 0, 1)
    return np.asarray(np.where(u <= NEAR, RELATIVE * u, RELATIVE * NEAR * (OUTER / (RELATIVE * NEAR)) ** grows))


def _solve(basis: Callable[[Values], NDArray[np.float64]], clamp: float) -> tuple[float, Values] | None:
    """(score, coefficients) of t + basis(t) @ coefficients against tanh below the clamp; None where the budget cannot be kept."""
    t = np.linspace(clamp / POINTS, clamp, POINTS)
    rest, matrix = np.tanh(t) - t, basis(t)
    budget = SPARE * np.where(t <= 0.5, MIDDLE, OUTER)
    rest, matrix, budget = (np.concatenate([a, b]) for a, b in ((rest, [1 - clamp]), (matrix, matrix[-1:]), (budget, [SPARE * OUTER])))
    units = np.append(unit(t), OUTER)[:, None]

    def both(a: NDArray[np.float64], column: NDArray[np.float64]) -> list[NDArray[np.float64]]:
        return [np.hstack([a, column]), np.hstack([-a, column])]

    rows = both(matrix, np.zeros_like(units)) + both(matrix, -units)
    limits = [rest + budget, budget - rest, rest, -rest]
    count = matrix.shape[1]
    solved = linprog(np.append(np.zeros(count), 1.0), A_ub=np.vstack(rows), b_ub=np.concatenate(limits),
                     bounds=[(None, None)] * count + [(0, None)], method="highs")  # fmt: skip
    if solved.status != 0 or solved.x is None:
        return None
    return float(solved.x[-1]), solved.x[:-1]

