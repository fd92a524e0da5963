"""What every fit shares: the score points, the clamp grid, and the result."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyfma.errors import CoefficientError, FitError
from polyfma.formats import Bits, Format, Values
from polyfma.forms import Form, published_form
from polyfma.functions import Function, function_scale
from polyfma.program import Program
from polyfma.replay import replay

DEGREES = range(1, 9)
GRID = 0.25  # the published step of fit interval and clamp, in the function's own scale
SCORE_POINTS = 8000
SCORE_END = 12.0
SEARCHED_INTERVALS = (1.0, 8.0)
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Candidate:
    """One point of a search: fit interval Li, clamp Lc, and its score or the gate that refused it."""

    fit_interval: float
    clamp: float
    score: float
    refused: str = ""


@dataclass(frozen=True)
class Fit:
    """A fitted program with how it came about.

    ``score`` is the largest absolute error on the score points under the replay mode of the search;
    ``candidates`` every (Li, Lc) that was looked at; ``note`` what a person should know of the search.
    """

    program: Program
    method: str
    fit_interval: float
    clamp: float
    score: float
    mode: str
    candidates: tuple[Candidate, ...]
    note: str = ""

    def record(self) -> dict[str, Any]:
        """How the program came about, for the catalogue."""
        return {
            "method": self.method,
            "fit_interval": self.fit_interval,
            "clamp": self.clamp,
            "score": self.score,
            "score_mode": self.mode,
            "candidates": len(self.candidates),
        }


def program_name(form: Form, target: Function, fmt: Format, degree: int, method: str) -> str:
    """``function.direction.format.dN.method``; a form that is not the published one is named before dN."""
    shape = "" if not form.clamped or form is published_form(target) else f"{form.name}-"
    return f"{target.name}.{target.direction}.{fmt}.{shape}d{degree}.{method}"


class Scorer:
    """The largest absolute error of programs for one target on the published points: 8,000 on [0, 12]."""

    def __init__(self, target: Function, fmt: Format, mode: str) -> None:
        self.mode = mode
        points = np.linspace(0.0, SCORE_END * function_scale(target), SCORE_POINTS)
        self.bits: Bits = np.unique(fmt.encode(points))
        self.fmt = fmt
        self.exact: Values = (
            target.table(fmt).exact[self.bits] if fmt.width == 16 else target.values(fmt.decode(self.bits))
        )

    def score(self, program: Program) -> float:
        outputs = replay(program, self.bits, mode=self.mode)
        first = next(iter(outputs.values())) if isinstance(outputs, dict) else outputs
        y = self.fmt.decode(first)
        error = np.where(np.isfinite(y), np.abs(y - self.exact), np.inf)
        return float(np.max(error))


def check_degree(degree: int) -> None:
    """Raises FitError for a degree that is not a whole number of DEGREES."""
    if isinstance(degree, bool) or not isinstance(degree, int | np.integer) or degree not in DEGREES:
        raise FitError(f"degree {degree} is outside {DEGREES[0]}..{DEGREES[-1]}")


def check_length(label: str, value: float | None, scale: float) -> None:
    """Raises FitError for an Li or Lc that is not a positive number of a sensible size."""
    if value is None:
        return
    if isinstance(value, str) or not (math.isfinite(value) and value > 0):
        raise FitError(f"{label} = {value!r} must be a positive number")
    if not scale / 16 <= value <= 64 * scale:
        raise FitError(f"{label} = {value:g} must be from {scale / 16:g} to {64 * scale:g}; the function is done before")


def check_request(target: Function, form: Form, degree: int, fit_interval: float | None, clamp: float | None) -> None:
    """Refuse arguments that no search could honour. Raises FitError."""
    check_degree(degree)
    if not form.serves(target):
        raise FitError(f"form {form.name} does not serve {target.name} {target.direction} ({target.shape.symmetry})")
    scale = function_scale(target)
    for label, value in (("fit interval Li", fit_interval), ("clamp Lc", clamp)):
        check_length(label, value, scale)
    if fit_interval is not None and clamp is not None and clamp > fit_interval + scale:
        raise FitError(f"clamp Lc = {clamp:g} exceeds Li + {scale:g} = {fit_interval + scale:g}; the polynomial is"
                       " not controlled so far beyond its fit interval: lower Lc or raise Li")  # fmt: skip


def interval_grid(target: Function, fit_interval: float | None, clamp: float | None) -> list[float]:
    """The fit intervals to look at: the given one, else the 0.25 grid (near the clamp, if that is given)."""
    if fit_interval is not None:
        return [fit_interval]
    low, high = SEARCHED_INTERVALS
    scale = function_scale(target)
    grid = [scale * v for v in np.arange(low, high + GRID / 2, GRID)]
    if clamp is None:
        return grid
    near = [v for v in grid if clamp - scale <= v <= clamp + scale]
    return near or [clamp]


def clamp_grid(target: Function, fmt: Format, fit_interval: float, clamp: float | None, step: float) -> list[float]:
    """Clamps from Li - 1 to Li + 1 on a grid, each a value of the format."""
    if clamp is not None:
        return [float(fmt.decode(fmt.constant(clamp, what="clamp Lc =")))]
    scale = function_scale(target)
    span = np.arange(-1.0, 1.0 + step / 2, step) * scale + fit_interval
    rounded = fmt.decode(fmt.encode(span[span > 0]))
    return sorted({float(v) for v in rounded if v <= fit_interval + scale})


def chebyshev_nodes(count: int, end: float) -> Values:
    """Chebyshev nodes of (0, end), ascending."""
    k = np.arange(count)
    return np.asarray(end / 2 * (1 - np.cos((2 * k + 1) * np.pi / (2 * count))))


def reduced(form: Form, target: Function, degree: int, x: Values) -> tuple[Values, NDArray[np.float64]]:
    """The reduced target (f - offset)/multiplier at x > 0 below the clamp, and the form's basis there."""
    offset, multiplier, matrix = form.model(target, x, degree, np.inf)
    return (target.values(x) - offset) / multiplier, matrix


def chosen(found: Sequence[tuple[Candidate, Program | None]], name: str, method: str, mode: str,
           unusable: CoefficientError | None) -> Fit:  # fmt: skip
    """The Fit of the lowest score; of equal ones the first.

    Raises ``unusable`` if every candidate fell to its coefficients, else FitError that counts the refusals.
    """
    accepted = [(c, p) for c, p in found if p is not None]
    if not accepted:
        refusals = [c.refused for c, _ in found]
        if unusable is not None and all(r == "coefficient" for r in refusals):
            raise unusable
        counted = ", ".join(f"{refusals.count(r)} by {r}" for r in dict.fromkeys(refusals))
        raise FitError(f"{name}: none of {len(found)} candidates is usable (refused: {counted}); widen Li or Lc, change"
                       " the degree, or turn the gates off")  # fmt: skip
    candidate, program = min(accepted, key=lambda pair: pair[0].score)
    return Fit(program, method, candidate.fit_interval, candidate.clamp, candidate.score, mode, tuple(c for c, _ in found))
