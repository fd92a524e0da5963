"""The solution in real arithmetic that the search in the format starts from: a linear programme for each clamp."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linprog

from polyfma.fit.request import Shape
from polyfma.formats import Values
from polyfma.functions import Function, function_scale
from polyfma.replay import real_values

GRID_POINTS = 120
BEYOND_POINTS = 16
MOST_CLAMPS = 64

Real = tuple[Values, float, NDArray[np.float64]]
_SOLVED: dict[Any, Real | None] = {}
_REMEMBERED = 5000  # some 40 MB; a build of the catalogue would otherwise keep them all


def _tail_band(shape: Shape, clamp: float) -> tuple[float, float] | None:
    """Where the real model may lie at the clamp so that rounding can make the tail exact."""
    request, target, tail = shape.request, shape.request.target, shape.form.tail
    if request.free or tail == "exact":
        return None
    ulp = float(request.fmt.ulp(np.array([1.0]))[0])
    if target.shape.symmetry == "even":
        return -0.05, 0.0
    if tail == "residual":
        return clamp - 2e-3 * ulp, clamp + 2e-3 * ulp
    limit = clamp if target.shape.symmetry == "residual" else target._special(np.inf)
    below, above = (0.0, 4 * ulp) if tail == "limited" else (ulp / 4, ulp / 2)
    return limit * (1 - below), limit * (1 + above)


def real_minimax(shape: Shape, clamp: float) -> Real | None:
    """The real coefficients of least weighted error at a clamp, that error, and the weighted basis.

    A linear programme on :func:`_real_grid`; None where no polynomial meets the tail. Remembered, because
    forms with the same model ask for the same.
    """
    band = _tail_band(shape, clamp)
    key = (shape.form.model_of, shape.degree, clamp, band, shape.request.target, shape.request.fmt.name, shape.request.objective)
    if key not in _SOLVED:
        _SOLVED[key] = _solve_real(shape, clamp, band)
    return _SOLVED[key]


def _solve_real(shape: Shape, clamp: float, band: tuple[float, float] | None) -> Real | None:
    """Minimise E subject to |weighted error| <= E on the grid and the tail in its band."""
    target, request = shape.request.target, shape.request
    x = _real_grid(clamp)
    offset, multiplier, matrix = shape.form.model(target, x, shape.degree, clamp)
    f = _values(target, clamp)
    weight = request.objective.weights(target, request.fmt, x, f)
    rows, wanted = (multiplier * weight)[:, None] * matrix, (f - offset) * weight
    ones = np.ones((x.size, 1))
    bounds_a = [np.hstack([rows, -ones]), np.hstack([-rows, -ones])]
    bounds_b = [wanted, -wanted]
    if band is not None:
        end = np.array([clamp])
        o, m, a = shape.form.model(target, end, shape.degree, clamp)
        row = np.hstack([m[:, None] * a, np.zeros((1, 1))])
        bounds_a += [row, -row]
        bounds_b += [np.array([band[1] - o[0]]), np.array([o[0] - band[0]])]
    n = matrix.shape[1]
    scale = np.maximum(np.max(np.abs(rows), axis=0), 1e-30)
    stacked = np.vstack(bounds_a)
    stacked[:, :n] /= scale
    solved = linprog(np.r_[np.zeros(n), 1.0], A_ub=stacked, b_ub=np.concatenate(bounds_b),
                     bounds=[(None, None)] * n + [(0, None)], method="highs-ds")  # fmt: skip
    if solved.x is None:
        return None
    return np.asarray(solved.x[:n] / scale), float(solved.x[n]), rows


def _real_grid(clamp: float) -> Values:
    """Points of (0, Lc), denser at both ends, and some beyond, where the output stands still."""
    inside = clamp / 2 * (1 - np.cos(np.pi * (np.arange(GRID_POINTS) + 0.5) / GRID_POINTS))
    return np.concatenate([inside, clamp * np.geomspace(1.002, 3.0, BEYOND_POINTS)])


@lru_cache(maxsize=4096)
def _values(target: Function, clamp: float) -> Values:
    return target.values(_real_grid(clamp))


def clamps_worth_trying(shape: Shape) -> list[float]:
    """Clamps on the format's grid around those where the real solution is good, at most MOST_CLAMPS."""
    scale, fmt = function_scale(shape.request.target), shape.request.fmt
    coarse = [float(fmt.decode(fmt.encode(v * scale))) for v in np.arange(1.0, 9.01, 0.5)]
    errors = {c: s[1] for c in coarse if (s := real_minimax(shape, c)) is not None}
    if not errors:
        return []
    slack = float(fmt.ulp(np.array([0.5]))[0])
    least = min(errors.values())
    good = [c for c, e in errors.items() if e <= 1.3 * least + slack]
    low, high = int(fmt.encode(max(min(good) - 0.5 * scale, 0.5 * scale))), int(fmt.encode(max(good) + 0.5 * scale))
    every = np.arange(low, high + 1)
    stride = max(1, -(-every.size // MOST_CLAMPS))
    return [float(v) for v in fmt.decode(every[::stride].astype(fmt.dtype))]


def jacobian(shape: Shape, clamp: float, centre: Values) -> NDArray[np.float64]:
    """The weighted derivative of the real output by each of a form's own coefficients."""
    request, x = shape.request, _real_grid(clamp)
    weight = request.objective.weights(request.target, request.fmt, x, _values(request.target, clamp))
    names = shape.form.free_names(shape.degree)

    def output(c: Values) -> Values:
        return np.asarray(real_values(shape.program(dict(zip(names, c.tolist(), strict=True)) | {"clamp": clamp}), x))

    columns = []
    for j in range(centre.size):
        step = np.zeros(centre.size)
        step[j] = max(abs(centre[j]) / 16, 2.0**-8)  # far above the rounding of constants
        columns.append((output(centre + step) - output(centre - step)) / (2 * step[j]))
    return np.asarray(weight[:, None] * np.stack(columns, axis=1))


def forget(most: int = _REMEMBERED) -> None:
    """Drop the remembered solutions once there are more than ``most``."""
    if len(_SOLVED) > most:
        _SOLVED.clear()
