"""Choosing a program: error against instructions and pipe cost, over the catalogue.

Pipe cost is in units of one packed FMA at nominal rates per clock and SM of Hopper (128 FMA lanes, 64 for
min, max, logic and conversions, 16 for the special-function unit): FMA 1, ALU 2, conversion 2, MUFU 16 for a
pair. The pipes run beside each other: ``bound`` is the busiest one, ``sum`` all of them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from typing import Any

from polyfma import catalog
from polyfma.certify import faults_of
from polyfma.errors import PolyfmaError, UnknownNameError
from polyfma.formats import Format, get_format
from polyfma.functions import get_function
from polyfma.hardware.rates import UNITS
from polyfma.program import Counts, Program

TIERS = ("fast", "balanced", "accurate", "faithful")
BALANCED_FACTOR = 1.5
FAITHFUL_FACTOR = 1.05


@dataclass(frozen=True)
class PipeCost:
    """Units of one packed FMA for a lane pair."""

    bound: int
    sum: int


def pipe_cost(counts: Counts) -> PipeCost:
    """The cost of a program's instruction counts."""
    units = {pipe: cost * getattr(counts, pipe) for pipe, cost in UNITS.items()}
    # min, max, logic and conversions share one pipe.
    return PipeCost(max(units["fma"], units["alu"] + units["cvt"], units["mufu"]), sum(units.values()))


@dataclass(frozen=True)
class Entry:
    """A catalogue program with the figures by which it is chosen."""

    name: str
    function: str
    direction: str
    format: str
    instructions: int
    fma: int
    pipe_bound: int
    pipe_sum: int
    error: float
    max_abs_error: float
    max_ulp: float
    max_ulp_quarter: float
    monotone_ulps_quarter: float
    default: bool
    wider: bool
    hardware: bool
    rel_rms: float

    def to_dict(self) -> dict[str, Any]:
        return dict(vars(self))

    @property
    def accurate(self) -> bool:
        """Within an ulp of max(|f|, 1/4) everywhere, and monotone to an ulp of that."""
        return self.default and self.max_ulp_quarter <= 1 and self.monotone_ulps_quarter <= 1


@cache
def entries() -> tuple[Entry, ...]:
    """Every catalogue program but the exp2 cores, which have a domain of their own."""
    return tuple(e for e in map(_entry, catalog.programs()) if e is not None)


@cache
def _entry(name: str) -> Entry | None:
    c = catalog.record(name)["certificate"]
    if c["function"] == "exp2" or c["others"]:
        return None
    counts = catalog.load(name).counts
    cost = pipe_cost(counts)
    return Entry(name, c["function"], c["direction"], c["format"], c["instructions"], c["fma"], cost.bound, cost.sum,
                 float(c["max_weighted_error"]), float(c["max_abs_error"]), float(c["max_ulp"]),
                 float(c["max_ulp_quarter"]), float(c["monotone_ulps_quarter"]), not faults_of(c) and not counts.mufu, counts.cvt > 0, counts.mufu > 0,
                 max(map(float, c["rel_rms"].values())))  # fmt: skip


def front(candidates: Iterable[Entry], *, cost: str = "instructions") -> list[Entry]:
    """The entries that no other one beats in both error and ``cost`` (an attribute), cheapest first."""
    kept: list[Entry] = []
    for e in sorted(candidates, key=lambda e: (getattr(e, cost), e.error, e.pipe_sum, e.name)):
        if not kept or e.error < kept[-1].error:
            kept.append(e)
    return kept


def candidates_for(function: str, direction: str, fmt: str, tails: bool, hardware: bool = False) -> list[Entry]:
    """Entries of a function; with ``tails`` only those that a default program may be, and hardware ones if admitted."""
    get_function(function, direction)
    get_format(fmt)
    # Names begin with these three, so that one function's programs are read without all the others.
    named = (n for n in catalog.programs() if n.startswith(f"{function}.{direction}.{fmt}."))
    return [e for e in map(_entry, named) if e is not None and (hardware if e.hardware else e.default or not tails)]


def best(function: str, *, direction: str = "forward", format: str | Format = "bf16", max_error: float | None = None,
         max_ulp: float | None = None, max_instructions: int | None = None, tier: str | None = None,
         tails: bool = True, hardware: bool = False) -> Program:  # fmt: skip
    """The catalogue program that fits.

    With ``max_error`` (weighted, max(1, |f|/2)) or ``max_ulp`` the cheapest program within it; with
    ``max_instructions`` the most accurate one within that; both together, the most accurate. ``tier``:
    ``accurate`` is the cheapest within an ulp of max(|f|, 1/4) and monotone to an ulp (where none is, the
    nearest), ``balanced`` the cheapest within 1.5 times the least error of those that compute in their own
    format, ``fast`` the one of fewest instructions, ``faithful`` the cheapest within 1.05 times the least relative RMS error of f under
    N(0, s) inputs, the worst of s = 1/4, 1 and 2: what a model's layers see. Without any of them, ``balanced``. ``tails=False`` admits programs without exact
    tails and range, ``hardware=True`` the GPU's own functions, whose certificates hold for the architecture that their
    tables were recorded on and whose one instruction is 16 units of the special-function unit; a tier with limits is chosen among the programs within them. Raises PolyfmaError that says what there is when nothing fits.
    """
    format = get_format(format).name
    for what, value in (("max_error", max_error), ("max_ulp", max_ulp), ("max_instructions", max_instructions)):
        if value is not None and (isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0):
            raise PolyfmaError(f"{what} {value!r} must be a number from 0 up")
    if function == "exp2":
        raise UnknownNameError("exp2 programs are cores for [0, 1] and are not ranked; polyfma list --function exp2 shows them, load takes one")
    found = candidates_for(function, direction, format, tails, hardware)
    if not found:
        raise UnknownNameError(f"the catalogue has no {function} {direction} in {format}; polyfma list shows what it has, fit makes one")
    if tier is not None and tier not in TIERS:
        raise UnknownNameError(f"unknown tier {tier!r}; known: {', '.join(TIERS)}")
    fits = [
        e
        for e in found
        if (max_error is None or e.error <= max_error)
        and (max_ulp is None or e.max_ulp <= max_ulp)
        and (max_instructions is None or e.instructions <= max_instructions)
    ]
    if not fits:
        raise PolyfmaError(_nothing_fits(function, direction, format, found))
    if tier is not None:
        return catalog.load(_of_tier(fits, tier).name)
    if max_instructions is not None:
        return catalog.load(min(fits, key=lambda e: (e.error, e.instructions, e.name)).name)
    if max_error is None and max_ulp is None:
        return catalog.load(_of_tier(found, "balanced").name)
    return catalog.load(min(fits, key=lambda e: (e.instructions, e.pipe_sum, e.error, e.name)).name)


def _of_tier(found: list[Entry], tier: str) -> Entry:
    if tier == "faithful":
        within = [e for e in found if e.rel_rms <= FAITHFUL_FACTOR * min(e.rel_rms for e in found)]
        return min(within, key=lambda e: (e.instructions, e.rel_rms, e.name))
    if tier == "accurate":
        accurate = [e for e in found if e.accurate]
        if accurate:
            return min(accurate, key=lambda e: (e.instructions, e.max_ulp_quarter, e.name))
        return min(found, key=lambda e: (e.max_ulp_quarter, e.instructions, e.name))
    found = [e for e in found if not e.wider] or found
    if tier == "fast":
        return min(found, key=lambda e: (e.instructions, e.error, e.name))
    least = min(e.error for e in found)
    within = [e for e in found if e.error <= BALANCED_FACTOR * least]
    return min(within, key=lambda e: (e.instructions, e.error, e.name))


def _nothing_fits(function: str, direction: str, fmt: str, found: list[Entry]) -> str:
    least_error = min(found, key=lambda e: e.error)
    least_ulp = min(found, key=lambda e: e.max_ulp)
    shortest = min(found, key=lambda e: e.instructions)
    return (f"no {function} {direction} program in {fmt} fits; the least error is {least_error.error:.4g} ({least_error.name}), the"
            f" least ulp {least_ulp.max_ulp:.4g} ({least_ulp.name}), the fewest instructions {shortest.instructions} ({shortest.name})")  # fmt: skip
