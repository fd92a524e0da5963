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
import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linprog

from polyfma.certify import certify
from polyfma.errors import FitError
from polyfma.formats import BF16, Bits, Values
from polyfma.forms import centre_of, get_form
from polyfma.functions import Function, function_scale
from polyfma.program import Program

UNIT = 2.0**-8  # unit roundoff of BF16
MARGIN = 1e-9
LARGEST = 2.0**12  # no coefficient beyond this is considered
SURVIVORS = 4000
FLOAT_MARGIN = 1e-11
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


_ASSUMPTIONS = (
    "all inputs and coefficients in BF16; every operation rounds once to nearest even, as in certificates",
    "the objective is the largest absolute error over all finite inputs",
    "float64 values of the function are within an ulp of the real ones, hence the margin of 1e-9",
    "coefficients up to 2^12 in magnitude",
)
LARGEST_CLAMP = 64.0  # in the function's own scale
_SUPPORTED = ("fused-odd", "fused-odd-relu", "fused-odd-limited", "rounded-odd", "rounded-odd-limited", "fused-even")


def _check_form(program: Program) -> None:
    """The claim is about a form: the program's operations must be those that the form builds."""
    values = {name: program.const_value(name) for name in program.consts}
    degree = max((int(n[1:]) for n in program.consts if re.fullmatch(r"c\d+", n)), default=0)
    built = get_form(program.form).build(program.name, program.function, program.direction, program.format, degree, values)
    if (built.ops, built.outputs) != (program.ops, program.outputs):
        raise FitError(f"{program.name}: its operations are not those of form {program.form}, which it names; there is nothing to prove")


class _Case:
    """Everything about one program that the steps share."""

    def __init__(self, program: Program) -> None:
        form = get_form(program.form)
        if program.format != "bf16" or form.name not in _SUPPORTED:
            raise FitError(f"{program.name}: proofs exist for BF16 programs of the forms {', '.join(_SUPPORTED)}, not"
                           f" {program.format} {program.form}")  # fmt: skip
        _check_form(program)
        self.program, self.form = program, form
        self.even = form.name == "fused-even"
        names = [n for n in program.consts if n[0] == "c" and n[1:].isdigit()]
        self.degree = max(int(n[1:]) for n in names)
        # Powers of t in r t + c: the last coefficient first.
        self.powers = list(range(self.degree + 1 if self.even else self.degree))
        self.levels = len(self.powers) - 1
        if self.levels not in (2, 3):
            raise FitError(f"{program.name}: proofs enumerate two or three high coefficients; this form at degree"
                           f" {self.degree} has {self.levels}")  # fmt: skip
        certificate = certify(program)
        self.error = certificate.max_abs_error
        self.bound = self.error * (1 - MARGIN)
        self.tails = certificate.exact_tails
        self.target: Function = program.target
        self.exact = self.target.table(BF16).exact
        scale = function_scale(self.target)
        self.assumptions = (*_ASSUMPTIONS, f"clamps from {2.0**-5 * scale:g} to {LARGEST_CLAMP * scale:g}")
        self.t_bits: Bits = np.arange(int(BF16.encode(2.0**-5 * scale)), int(BF16.encode(LARGEST_CLAMP * scale)) + 1, dtype=np.uint16)
        self.t = BF16.decode(self.t_bits)
        if not self.t[0] <= (program.clamp or 0.0) <= self.t[-1]:
            raise FitError(f"{program.name}: its clamp {program.clamp:g} is not among those enumerated, {self.t[0]:g} to {self.t[-1]:g}")
        self.low, self.high = self._intervals()

    # -- step 1 --------------------------------------------------------------------------------------

    def finish(self, s: Bits, t: Bits, negative: bool) -> Bits:
        """The form's operations after the chain, for x = t or x = -t."""
        ts = BF16.neg(t) if negative else t
        name = self.form.name
        if self.even:
            return BF16.relu(s)
        centre = centre_of(self.target)
        c = BF16.encode(centre)
        if name.startswith("rounded"):
            m = BF16.mul(s, ts)
            return BF16.add(BF16.min_xorsign_abs(m, c) if name.endswith("limited") else m, c)
        y = BF16.mul(s, ts) if centre == 0 else BF16.fma(s, ts, c)
        if name == "fused-odd-relu" or (name == "fused-odd-limited" and centre != 0):
            y = BF16.relu(y)
        if name == "fused-odd-limited":
            one = BF16.encode(self.target._special(np.inf))
            y = BF16.min_xorsign_abs(y, one) if centre == 0 else BF16.min(y, one)
        return y

    def _signs(self) -> tuple[bool, ...]:
        return (False,) if self.even else (False, True)

    def _extreme(self, t: Bits, f_low: Values, f_high: Values, negative: bool, want_high: bool) -> NDArray[np.int64]:
        """The largest (smallest) ordinal of s whose result lies in [f_low, f_high], or next to it where none does.

        The result is monotone in s (falling for x < 0); bisection over ordinals, all t at once.
        """
        falling = negative and not self.even
        top = BF16.inf_bits - 1
        low = np.full(t.shape, -top - 1, dtype=np.int64)
        high = np.full(t.shape, top, dtype=np.int64)
        upper = want_high != falling  # does the wanted end of s come from the upper limit of y?
        while np.any(low < high):
            middle = (low + high + want_high) // 2
            y = BF16.decode(self.finish(_from_ordinal(middle), t, negative))
            ok = y <= f_high if upper else y >= f_low
            if want_high:
                low, high = np.where(ok, middle, low), np.where(ok, high, middle - 1)
            else:
                low, high = np.where(ok, low, middle + 1), np.where(ok, middle, high)
        return low

    def _s_range(self, t: Bits, limits: Sequence[tuple[Values, Values]]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Ordinals of s that every sign of x allows; ``limits`` are those of y for each sign."""
        least = np.full(t.shape, -(1 << 20), dtype=np.int64)
        most = np.full(t.shape, 1 << 20, dtype=np.int64)
        for negative, (f_low, f_high) in zip(self._signs(), limits, strict=True):
            least = np.maximum(least, self._extreme(t, f_low, f_high, negative, False))
            most = np.minimum(most, self._extreme(t, f_low, f_high, negative, True))
        return least, most

    def _intervals(self) -> tuple[Values, Values]:
        """[A, B] for r t + c at each t below the clamp."""
        limits = []
        for negative in self._signs():
            f = self.exact[self.t_bits | (BF16.sign_bit if negative else 0)]
            limits.append((f - self.bound, f + self.bound))
        return _preimage(*self._s_range(self.t_bits, limits))

    def saturated(self, clamp_bits: Bits) -> tuple[Values, Values]:
        """[A, B] for r Lc + c at clamps: the output there stands for every |x| >= Lc (and is exact, with tails)."""
        limits = []
        for negative in self._signs():
            side = BF16.sign_bit if negative else 0
            every = self.exact[np.arange(BF16.inf_bits) + side]
            limit = self.target._special(-np.inf if negative else np.inf)
            most = np.maximum.accumulate(np.append(every, limit)[::-1])[::-1][clamp_bits]
            least = np.minimum.accumulate(np.append(every, limit)[::-1])[::-1][clamp_bits]
            low, high = most - self.bound, least + self.bound
            if self.tails:
                low, high = np.maximum(low, limit), np.minimum(high, limit)
            limits.append((low, high))
        return _preimage(*self._s_range(clamp_bits, limits))


def _from_ordinal(ordinal: NDArray[np.int64]) -> Bits:
    return np.where(ordinal >= 0, ordinal, (BF16.sign_bit - 1 - ordinal)).astype(np.uint16)


def _preimage(least: NDArray[np.int64], most: NDArray[np.int64]) -> tuple[Values, Values]:
    """Ordinals of s to the reals that round into them, ties included; empty ones as (inf, -inf)."""

    def value(ordinal: NDArray[np.int64]) -> Values:
        top = BF16.inf_bits - 1
        return BF16.decode(_from_ordinal(np.clip(ordinal, -top - 1, top)))

    low, high = (value(least) + value(least - 1)) / 2, (value(most) + value(most + 1)) / 2
    empty = least > most
    return np.where(empty, np.inf, low), np.where(empty, -np.inf, high)


# -- step 2 --------------------------------------------------------------------------------------------


class _UndecidedError(Exception):
    """Whether an orthant is empty is too close to call."""


def _constraints(case: _Case, low: Values, high: Values, signs: tuple[int, ...]) -> _Linear:
    """The constraints; widened until their emptiness or their bounds are certain, which only admits more."""
    for slack in (1e-12, 1e-7, 1e-5, 1e-4):
        try:
            return _Linear(case, low, high, signs, slack)
        except _UndecidedError:
            continue
    raise FitError("whether an orthant of coefficients is empty could not be decided safely")


class _Linear:
    """The linear constraints of one clamp and orthant, and safe bounds from their duals."""

    def __init__(self, case: _Case, low: Values, high: Values, signs: tuple[int, ...], slack: float = 1e-12) -> None:
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


def _lattice(low: float, high: float, sign: int, tiny: float) -> NDArray[np.float64]:
    """Rows (value, value) of all BF16 numbers of one sign in [low, high]; those below ``tiny`` as one row."""
    if sign < 0:
        return -_lattice(-high, -low, 1, tiny)[::-1, ::-1]
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


# -- steps 3 and 4 -----------------------------------------------------------------------------------------


def prove(program: Program, *, progress: Progress | None = None) -> Proof:
    """Enumerate every program of the same form that could be better. See the top of this module.

    Raises FitError for a form, format or degree that the method does not reach.
    """
    started = time.perf_counter()
    case = _Case(program)
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


def _none_beyond(case: _Case, clamp: int, totals: dict[str, int]) -> bool:
    """Whether the inputs up to a clamp alone leave no orthant: then no larger clamp has a program either."""
    low, high = case.low[: clamp + 1], case.high[: clamp + 1]
    linears = [_constraints(case, low, high, signs) for signs in itertools.product((1, -1), repeat=len(case.powers))]
    totals["linear_programmes"] += sum(v.solved for v in linears)
    return not any(v.feasible for v in linears)


def _clamps(case: _Case) -> tuple[NDArray[np.int64], Values]:
    """Indices into t of the clamps whose output can stand for all inputs beyond, and [A, B] there."""
    low, high = case.saturated(case.t_bits)
    # An input below the clamp that nothing satisfies ends the list.
    dead = np.flatnonzero(case.low > case.high)
    stop = dead[0] if dead.size else case.t.size
    possible = np.flatnonzero((low <= high) & (np.arange(case.t.size) < stop))
    return possible, np.stack([low[possible], high[possible]], axis=1)


def _prove_clamp(case: _Case, clamp: int, ends: tuple[float, float], totals: dict[str, int]) -> dict[str, float] | None:
    """Every orthant of coefficients at one clamp (an index into t)."""
    low, high = case.low[: clamp + 1].copy(), case.high[: clamp + 1].copy()
    low[-1], high[-1] = max(low[-1], ends[0]), min(high[-1], ends[1])
    if low[-1] > high[-1]:
        return None
    for signs in itertools.product((1, -1), repeat=len(case.powers)):
        linear = _constraints(case, low, high, signs)
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


def _bounds(linear: _Linear, index: int, fixed_ranges: list[tuple[int, float, float]], width: int) -> tuple[Values, Values]:
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


def _enumerate(case: _Case, clamp: int, low: Values, high: Values, linear: _Linear, totals: dict[str, int]) -> dict[str, float] | None:
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
        a_values = _lattice(*a_range, int(linear.signs[top]), tiny_c / reach**2)
        b_values = _lattice(*b_range, int(linear.signs[second]), tiny_c / reach)
        c_values = _lattice(*c_range, int(linear.signs[third]), tiny_c)
    else:
        # Two levels: a is no coefficient, and its bounds do not count.
        a_values = np.zeros((1, 2))
        b_range, c_range = _plain_range(linear, top), _plain_range(linear, second)
        b_low, b_high = np.array([[b_range[0], 0, 0]]), np.array([[b_range[1], 0, 0]])
        c_low, c_high = _bounds(linear, second, [(top, *b_range)], 2)
        c_low, c_high = (np.insert(v, 1, 0.0, axis=1) for v in (c_low, c_high))
        tiny_c = 2.0**-12 * linear.size / reach
        b_values = _lattice(*b_range, int(linear.signs[top]), tiny_c / reach)
        c_values = _lattice(*c_range, int(linear.signs[second]), tiny_c)
    if not (a_values.size and b_values.size and c_values.size):
        return None
    # Two levels spread the rows of b over the workers, three those of a.
    pieces = b_values.shape[0] if case.levels == 2 else a_values.shape[0]
    survivors = np.zeros((pieces, SURVIVORS, 8))
    visited, kept = enumerate_box(case.t, low, high, clamp + 1, a_values, b_values, c_values, b_low, b_high, c_low, c_high,
                                  case.levels, survivors)  # fmt: skip
    totals["visited"] += int(visited.sum())
    return _replay_survivors(case, clamp, low, high, survivors, kept, totals)


def _plain_range(linear: _Linear, index: int) -> tuple[float, float]:
    high, low = linear.bound(index, 1, {}), linear.bound(index, -1, {})
    if high is None or low is None:
        raise FitError("a coefficient is not bounded by the constraints")
    return -float(low[0]), float(high[0])


def _replay_survivors(case: _Case, clamp: int, low: Values, high: Values, survivors: NDArray[np.float64],
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


def _chain(case: _Case, values: Sequence[float], clamp: int) -> Values:
    """r at every input up to the clamp, by the exact operations."""
    t = case.t_bits[: clamp + 1]
    r = np.full(t.shape, BF16.encode(np.array(values[0])), dtype=np.uint16)
    for c in values[1:]:
        r = BF16.fma(r, t, np.broadcast_to(BF16.encode(np.array(c)), t.shape))
    return BF16.decode(r)


def _resolve(case: _Case, boxes: list[tuple[float, float]], clamp: int, low: Values, high: Values) -> Iterator[tuple[list[float], float, float]]:
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
    cut, after = (float(BF16.decode(_from_ordinal(np.array(v)))) for v in (middle, middle + 1))
    for side in ((boxes[widest][0], cut), (after, boxes[widest][1])):
        yield from _resolve(case, [side if i == widest else b for i, b in enumerate(boxes)], clamp, low, high)


def _between(low: float, high: float) -> list[float]:
    """BF16 numbers in [low, high]. Raises FitError if they are too many for a proof by replay."""
    first, last = (int(BF16.ordinal(BF16.encode(np.array(v)))) for v in (low, high))
    if last - first > 4096:
        raise FitError("the last coefficient is left too free; the error is too far from the optimum for a proof")
    values = BF16.decode(_from_ordinal(np.arange(first - 1, last + 2)))
    return [float(v) for v in values if low <= v <= high]


def _error_of(case: _Case, highs: Sequence[float], last: float, clamp: float) -> dict[str, float] | None:
    """The candidate's constants if its certificate beats the bound with the tails asked for."""
    first = 0 if case.even else 1
    values = [last, *reversed(highs)]
    consts = {f"c{first + k}": int(BF16.encode(v)) for k, v in enumerate(values)} | {"clamp": int(BF16.encode(clamp))}
    certificate = certify(case.program.with_consts(consts))
    if certificate.max_abs_error < case.bound and (certificate.exact_tails or not case.tails):
        return {"error": certificate.max_abs_error, "clamp": clamp, **{f"c{first + k}": float(v) for k, v in enumerate(values)}}
    return None
