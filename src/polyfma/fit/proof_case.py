"""Step 1 of a proof of optimality (:mod:`polyfma.fit.proof`): what the error bound leaves of the polynomial at every input."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from polyfma.certify import certify
from polyfma.errors import FitError
from polyfma.formats import BF16, Bits, Values
from polyfma.forms import centre_of, get_form
from polyfma.functions import Function, function_scale
from polyfma.program import Program

MARGIN = 1e-9
LARGEST_CLAMP = 64.0  # in the function's own scale
_ASSUMPTIONS = (
    "all inputs and coefficients in BF16; every operation rounds once to nearest even, as in certificates",
    "the objective is the largest absolute error over all finite inputs",
    "float64 values of the function are within an ulp of the real ones, hence the margin of 1e-9",
    "coefficients up to 2^12 in magnitude",
)
_SUPPORTED = ("fused-odd", "fused-odd-relu", "fused-odd-limited", "rounded-odd", "rounded-odd-limited", "fused-even")


def _check_form(program: Program) -> None:
    """The claim is about a form: the program's operations must be those that the form builds."""
    values = {name: program.const_value(name) for name in program.consts}
    degree = max((int(n[1:]) for n in program.consts if re.fullmatch(r"c\d+", n)), default=0)
    built = get_form(program.form).build(program.name, program.function, program.direction, program.format, degree, values)
    if (built.ops, built.outputs) != (program.ops, program.outputs):
        raise FitError(f"{program.name}: its operations are not those of form {program.form}, which it names; there is nothing to prove")


class Case:
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
            y = BF16.decode(self.finish(from_ordinal(middle), t, negative))
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


def from_ordinal(ordinal: NDArray[np.int64]) -> Bits:
    return np.where(ordinal >= 0, ordinal, (BF16.sign_bit - 1 - ordinal)).astype(np.uint16)


def _preimage(least: NDArray[np.int64], most: NDArray[np.int64]) -> tuple[Values, Values]:
    """Ordinals of s to the reals that round into them, ties included; empty ones as (inf, -inf)."""

    def value(ordinal: NDArray[np.int64]) -> Values:
        top = BF16.inf_bits - 1
        return BF16.decode(from_ordinal(np.clip(ordinal, -top - 1, top)))

    low, high = (value(least) + value(least - 1)) / 2, (value(most) + value(most + 1)) / 2
    empty = least > most
    return np.where(empty, np.inf, low), np.where(empty, -np.inf, high)
