"""Proofs that no better program of a form exists: every coefficient tuple and every clamp, in BF16.

The claim, for a program with largest error E: no program of the same form, degree and format, with any
representable coefficients and any clamp, has a largest absolute error below E (1 - 1e-9) over all finite
inputs (and exact tails, where the program has them). The argument:

1. *Interval of the polynomial.* After the Horner chain a form is monotone in s = round(r t + c), c the last
   coefficient. So at each t = |x| below the clamp the error bound leaves an interval of s, found by bisection
   over the format's values with the form's own final operations; the rounding to s turns it into an interval
   [A, B] of r t + c.
2. *Box.* With u = 2^-8 every rounding of the chain moves a term of the polynomial by at most a factor
   (1 + u)^m, so sum c_k t^k (1 -+ g_k sign c_k) lies in [A, B]: linear constraints in each orthant of signs.
   Bounds of the coefficients follow by linear programming duality: a dual vector from HiGHS is only a
   proposal; the bound is recomputed from it, with its residual and a margin for float64 added, so that no
   inexactness of the solver can make it wrong.
3. *Enumeration.* All lattice values of the high coefficients within these bounds are visited. For each, the
   chain is evaluated exactly at the inputs, which leaves an interval of the last coefficient, mostly an empty
   one. Coefficients too small to matter are visited together, as an interval: rounding is monotone.
4. *Clamps.* All this is done for every clamp, the output there standing for all inputs beyond it. What is left
   is replayed exhaustively, with every last coefficient.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyfma.certify import certify
from polyfma.errors import FitError
from polyfma.fit.proof_box import Linear, constraints, lattice
from polyfma.fit.proof_case import Case, from_ordinal
from polyfma.formats import BF16, Values
from polyfma.program import Program

SURVIVORS = 4000
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Proof:
    """The record of a finished enumeration; ``holds`` says whether nothing better was found."""

    program: str
    digest: str
    form: str
    degree: int
    format: str
    error: float
    exact_tails: bool
    holds: bool
    better: dict[str, float] | None
    clamps: int
    orthants: int
    linear_programmes: int
    visited: int
    replayed: int
    seconds: float
    assumptions: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        return vars(self) | {"assumptions": list(self.assumptions)}

    def better_constants(self) -> dict[str, int]:
        """The bit patterns of the better program's constants; empty if there is none."""
        return {k: int(BF16.encode(v)) for k, v in (self.better or {}).items() if k != "error"}


def prove(program: Program, *, progress: Progress | None = None) -> Proof:
    """Enumerate every program of the same form that could be better. See the top of this module.

    Raises FitError for a form, format or degree that the method does not reach.
    """
    started = time.perf_counter()
    case = Case(program)
    clamps, saturated = _clamps(case)
    totals = dict.fromkeys(("orthants", "linear_programmes", "visited", "replayed"), 0)
    better: dict[str, float] | None = None
    for i, (clamp, ends) in enumerate(zip(clamps, saturated, strict=True)):
        before = totals["orthants"]
        better = _prove_clamp(case, int(clamp), (float(ends[0]), float(ends[1])), totals)
        if progress:
            progress(i + 1, clamps.size)
        if better is not None:
            break
        if totals["orthants"] == before and _none_beyond(case, int(clamp), totals):
            break
    return Proof(program.name, program.digest, program.form, program.degree, program.format, case.error, case.tails,
                 better is None, better, int(clamps.size), **totals, seconds=time.perf_counter() - started,
                 assumptions=case.assumptions)  # fmt: skip


def _none_beyond(case: Case, clamp: int, totals: dict[str, int]) -> bool:
    """Whether the inputs up to a clamp alone leave no orthant: then no larger clamp has a program either."""
    low, high = case.low[: clamp + 1], case.high[: clamp + 1]
    linears = [constraints(case, low, high, signs) for signs in itertools.product((1, -1), repeat=len(case.powers))]
    totals["linear_programmes"] += sum(v.solved for v in linears)
    return not any(v.feasible for v in linears)


def _clamps(case: Case) -> tuple[NDArray[np.int64], Values]:
    """Indices into t of the clamps whose output can stand for all inputs beyond, and [A, B] there."""
    low, high = case.saturated(case.t_bits)
    # An input below the clamp that nothing satisfies ends the list.
    dead = np.flatnonzero(case.low > case.high)
    stop = dead[0] if dead.size else case.t.size
    possible = np.flatnonzero((low <= high) & (np.arange(case.t.size) < stop))
    return possible, np.stack([low[possible], high[possible]], axis=1)


def _prove_clamp(case: Case, clamp: int, ends: tuple[float, float], totals: dict[str, int]) -> dict[str, float] | None:
    """Every orthant of coefficients at one clamp (an index into t)."""
    low, high = case.low[: clamp + 1].copy(), case.high[: clamp + 1].copy()
    low[-1], high[-1] = max(low[-1], ends[0]), min(high[-1], ends[1])
    if low[-1] > high[-1]:
        return None
    for signs in itertools.product((1, -1), repeat=len(case.powers)):
        linear = constraints(case, low, high, signs)
        totals["linear_programmes"] += linear.solved
        if not linear.feasible:
            continue
        totals["orthants"] += 1
        before = linear.solved
        found = _enumerate(case, clamp, low, high, linear, totals)
        totals["linear_programmes"] += linear.solved - before
        if found is not None:
            return found
    return None


def _bounds(linear: Linear, index: int, fixed_ranges: list[tuple[int, float, float]], width: int) -> tuple[Values, Values]:
    """Pools of linear bounds below and above for a coefficient, from duals at sample points of the fixed ones."""
    lows: list[list[float]] = []
    highs: list[list[float]] = []
    grids = [np.linspace(low, high, 7 if len(fixed_ranges) == 1 else 5) for _, low, high in fixed_ranges]
    for point in itertools.product(*grids) if grids else [()]:
        fixed = {m: float(v) for (m, _, _), v in zip(fixed_ranges, point, strict=True)}
        for side, into in ((1, highs), (-1, lows)):
            k = linear.bound(index, side, fixed)
            if k is not None:
                row = [k[0], *(k[m + 1] for m, _, _ in fixed_ranges)]
                into.append([side * v for v in (row + [0.0] * width)[:width]])
    return np.array(lows).reshape(-1, width), np.array(highs).reshape(-1, width)


def _enumerate(case: Case, clamp: int, low: Values, high: Values, linear: Linear, totals: dict[str, int]) -> dict[str, float] | None:
    from polyfma.fit.proof_vm import enumerate_box

    n = len(case.powers)
    top, second, third = n - 1, n - 2, n - 3  # positions of the high coefficients, highest power first
    reach = float(case.t[clamp])
    if case.levels == 3:
        a_range = _plain_range(linear, top)
        b_low, b_high = _bounds(linear, second, [(top, *a_range)], 3)
        b_range = _plain_range(linear, second)
        c_low, c_high = _bounds(linear, third, [(top, *a_range), (second, *b_range)], 3)
        c_range = _plain_range(linear, third)
        tiny_c = 2.0**-12 * linear.size / reach
        a_values = lattice(*a_range, int(linear.signs[top]), tiny_c / reach**2)
        b_values = lattice(*b_range, int(linear.signs[second]), tiny_c / reach)
        c_values = lattice(*c_range, int(linear.signs[third]), tiny_c)
    else:
        # Two levels: a is no coefficient, and its bounds do not count.
        a_values = np.zeros((1, 2))
        b_range, c_range = _plain_range(linear, top), _plain_range(linear, second)
        b_low, b_high = np.array([[b_range[0], 0, 0]]), np.array([[b_range[1], 0, 0]])
        c_low, c_high = _bounds(linear, second, [(top, *b_range)], 2)
        c_low, c_high = (np.insert(v, 1, 0.0, axis=1) for v in (c_low, c_high))
        tiny_c = 2.0**-12 * linear.size / reach
        b_values = lattice(*b_range, int(linear.signs[top]), tiny_c / reach)
        c_values = lattice(*c_range, int(linear.signs[second]), tiny_c)
    if not (a_values.size and b_values.size and c_values.size):
        return None
    # Two levels spread the rows of b over the workers, three those of a.
    pieces = b_values.shape[0] if case.levels == 2 else a_values.shape[0]
    survivors = np.zeros((pieces, SURVIVORS, 8))
    visited, kept = enumerate_box(case.t, low, high, clamp + 1, a_values, b_values, c_values, b_low, b_high, c_low, c_high,
                                  case.levels, survivors)  # fmt: skip
    totals["visited"] += int(visited.sum())
    return _replay_survivors(case, clamp, low, high, survivors, kept, totals)


def _plain_range(linear: Linear, index: int) -> tuple[float, float]:
    high, low = linear.bound(index, 1, {}), linear.bound(index, -1, {})
    if high is None or low is None:
        raise FitError("a coefficient is not bounded by the constraints")
    return -float(low[0]), float(high[0])


def _replay_survivors(case: Case, clamp: int, low: Values, high: Values, survivors: NDArray[np.float64],
                      kept: NDArray[np.int64], totals: dict[str, int]) -> dict[str, float] | None:  # fmt: skip
    """Replay what the enumeration left, with every last coefficient in its interval."""
    if np.any(kept > survivors.shape[1]):
        raise FitError(f"{case.program.name}: more than {survivors.shape[1]} tuples survive at one clamp; the error is too"
                       " far from the optimum for a proof")  # fmt: skip
    for row in (survivors[ia, i] for ia in range(kept.size) for i in range(kept[ia])):
        boxes = [(float(row[k]), float(row[k + 1])) for k in (0, 2, 4)][3 - case.levels :]
        for highs, least, most in _resolve(case, boxes, clamp, low, high):
            for last in _between(least, most):
                totals["replayed"] += 1
                found = _error_of(case, highs, last, float(case.t[clamp]))
                if found is not None:
                    return found
    return None


def _chain(case: Case, values: Sequence[float], clamp: int) -> Values:
    """r at every input up to the clamp, by the exact operations."""
    t = case.t_bits[: clamp + 1]
    r = np.full(t.shape, BF16.encode(np.array(values[0])), dtype=np.uint16)
    for c in values[1:]:
        r = BF16.fma(r, t, np.broadcast_to(BF16.encode(np.array(c)), t.shape))
    return BF16.decode(r)


def _resolve(case: Case, boxes: list[tuple[float, float]], clamp: int, low: Values, high: Values) -> Iterator[tuple[list[float], float, float]]:
    """Tuples of high coefficients that stand for all of a box, each with the interval of the last one.

    The chain is monotone in every coefficient: where both ends of the box give the same r at every input, so
    does everything between, and one member stands for all. Otherwise the widest side is halved; a box that
    leaves no last coefficient is dropped.
    """
    t = case.t[: clamp + 1]
    r_low, r_high = _chain(case, [b[0] for b in boxes], clamp), _chain(case, [b[1] for b in boxes], clamp)
    least = float(np.max(low - np.maximum(r_low * t, r_high * t))) - 1e-14
    most = float(np.min(high - np.minimum(r_low * t, r_high * t))) + 1e-14
    if least > most:
        return
    if np.array_equal(r_low, r_high):
        yield [b[0] for b in boxes], least, most
        return
    ends = [[int(BF16.ordinal(BF16.encode(np.array(v)))) for v in box] for box in boxes]
    widest = max(range(len(boxes)), key=lambda i: ends[i][1] - ends[i][0])
    first, last = ends[widest]
    middle = (first + last) // 2
    cut, after = (float(BF16.decode(from_ordinal(np.array(v)))) for v in (middle, middle + 1))
    for side in ((boxes[widest][0], cut), (after, boxes[widest][1])):
        yield from _resolve(case, [side if i == widest else b for i, b in enumerate(boxes)], clamp, low, high)


def _between(low: float, high: float) -> list[float]:
    """BF16 numbers in [low, high]. Raises FitError if they are too many for a proof by replay."""
    first, last = (int(BF16.ordinal(BF16.encode(np.array(v)))) for v in (low, high))
    if last - first > 4096:
        raise FitError("the last coefficient is left too free; the error is too far from the optimum for a proof")
    values = BF16.decode(from_ordinal(np.arange(first - 1, last + 2)))
    return [float(v) for v in values if low <= v <= high]


def _error_of(case: Case, highs: Sequence[float], last: float, clamp: float) -> dict[str, float] | None:
    """The candidate's constants if its certificate beats the bound with the tails asked for."""
    first = 0 if case.even else 1
    values = [last, *reversed(highs)]
    consts = {f"c{first + k}": int(BF16.encode(v)) for k, v in enumerate(values)} | {"clamp": int(BF16.encode(clamp))}
    certificate = certify(case.program.with_consts(consts))
    if certificate.max_abs_error < case.bound and (certificate.exact_tails or not case.tails):
        return {"error": certificate.max_abs_error, "clamp": clamp, **{f"c{first + k}": float(v) for k, v in enumerate(values)}}
    return None
