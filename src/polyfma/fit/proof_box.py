"""Step 2 of a proof of optimality (:mod:`polyfma.fit.proof`): safe bounds of the coefficients from linear programmes."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linprog

from polyfma.errors import FitError
from polyfma.fit.proof_case import Case
from polyfma.formats import BF16, Values

UNIT = 2.0**-8  # unit roundoff of BF16
LARGEST = 2.0**12  # no coefficient beyond this is considered
FLOAT_MARGIN = 1e-11


class _UndecidedError(Exception):
    """Whether an orthant is empty is too close to call."""


def constraints(case: Case, low: Values, high: Values, signs: tuple[int, ...]) -> Linear:
    """The constraints; widened until their emptiness or their bounds are certain, which only admits more."""
    for slack in (1e-12, 1e-7, 1e-5, 1e-4):
        try:
            return Linear(case, low, high, signs, slack)
        except _UndecidedError:
            continue
    raise FitError("whether an orthant of coefficients is empty could not be decided safely")


class Linear:
    """The linear constraints of one clamp and orthant, and safe bounds from their duals."""

    def __init__(self, case: Case, low: Values, high: Values, signs: tuple[int, ...], slack: float = 1e-12) -> None:
        """``slack`` widens every interval: 1e-12 covers subnormal rounding and the float64 of powers."""
        self.signs = np.array(signs, dtype=float)
        inside = low.size
        chosen = np.unique(np.concatenate([np.linspace(0, inside - 1, 40).astype(int), np.arange(max(0, inside - 8), inside)]))
        t = case.t[chosen]
        powers = np.stack([t**k for k in case.powers], axis=1)
        # The last coefficient meets only the rounding to s, which [A, B] holds; the others meet the chain's.
        roundings = np.minimum(np.array(case.powers), case.levels - 1)
        growth = (1 + UNIT) ** roundings - 1
        self.a = np.vstack([powers * (1 - growth * self.signs), -powers * (1 + growth * self.signs), -np.diag(self.signs)])
        self.b = np.concatenate([high[chosen] + slack, -low[chosen] + slack, np.zeros(len(signs))])
        self.solved = 0
        self.size = 0.0
        total = self._dual(self.signs, {})
        self.feasible = total is not None
        if total is None:
            self._refute()
        if total is not None:
            residual = np.max(np.abs(self.a.T @ total - self.signs))
            room = FLOAT_MARGIN * np.sum(np.abs(total * self.b))
            self.size = max(0.0, (total @ self.b + room) / (1 - len(signs) * residual - FLOAT_MARGIN))

    def _dual(self, objective: Values, fixed: dict[int, float]) -> Values | None:
        """A nonnegative dual vector for max objective.c with some c fixed; None if nothing is feasible.

        Raises FitError if the maximum is unbounded: then the constraints prove nothing.
        """
        bounds = [(fixed[i], fixed[i]) if i in fixed else (None, None) for i in range(self.signs.size)]
        done = linprog(-objective, A_ub=self.a, b_ub=self.b, bounds=bounds, method="highs")
        self.solved += 1
        if done.status == 3 or (done.status == 4 and not fixed):
            raise FitError("the linear constraints do not bound the coefficients; the error is too large for a proof")
        return np.maximum(-np.asarray(done.ineqlin.marginals), 0.0) if done.status == 0 else None

    def _refute(self) -> None:
        """Make sure that nothing is feasible: a Farkas vector y >= 0 with y A = 0 (nearly) and y b < 0.

        Its residual is charged with the largest coefficients. Raises _UndecidedError if that leaves a doubt.
        """
        rows = self.b.size
        elastic = np.hstack([self.a, -np.ones((rows, 1))])
        done = linprog(np.r_[np.zeros(self.signs.size), 1.0], A_ub=elastic, b_ub=self.b,
                       bounds=[(None, None)] * self.signs.size + [(0, None)], method="highs")  # fmt: skip
        self.solved += 1
        y = np.maximum(-np.asarray(done.ineqlin.marginals), 0.0)
        y[y < 1e-9 * np.max(y, initial=0.0)] = 0.0
        charge = np.sum(np.abs(self.a.T @ y)) * LARGEST + FLOAT_MARGIN * np.sum(np.abs(y * self.b))
        if not y @ self.b + charge < 0:
            raise _UndecidedError

    def bound(self, index: int, side: int, fixed: dict[int, float]) -> Values | None:
        """Coefficients (k0, k1, ...) of a valid linear bound side * c_index <= k0 + sum k_m c_m over the fixed ones.

        For any feasible c: side c_index = y A c - sum (free residual) c - sum over fixed of (y A)_m c_m.
        """
        objective = np.zeros(self.signs.size)
        objective[index] = side
        y = self._dual(objective, fixed)
        if y is None:
            return None
        gradient = self.a.T @ y
        free = [m for m in range(self.signs.size) if m not in fixed]
        residual = sum(abs(gradient[m] - objective[m]) for m in free) * self.size
        rough = FLOAT_MARGIN * (np.sum(np.abs(y * self.b)) + np.sum(np.abs(y) @ np.abs(self.a)) * self.size)
        out = np.zeros(self.signs.size + 1)
        out[0] = y @ self.b + residual + rough
        for m in fixed:
            out[m + 1] = -gradient[m]
        return out


def lattice(low: float, high: float, sign: int, tiny: float) -> NDArray[np.float64]:
    """Rows (value, value) of all BF16 numbers of one sign in [low, high]; those below ``tiny`` as one row."""
    if sign < 0:
        return -lattice(-high, -low, 1, tiny)[::-1, ::-1]
    if high < 0 or low > high:
        return np.empty((0, 2))
    first, last = int(BF16.encode(max(low, tiny))), int(BF16.encode(max(high, 0.0)))
    values = BF16.decode(np.arange(max(first - 1, 0), last + 2, dtype=np.uint16))
    values = values[(values >= max(low, tiny)) & (values <= high)]
    rows = np.repeat(values[:, None], 2, axis=1)
    if low < tiny:
        edge = float(BF16.decode(int(BF16.encode(tiny)) + 1))
        rows = np.vstack([[[0.0, min(edge, tiny * 1.02)]], rows])
    return rows
