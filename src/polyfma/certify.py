"""Certificates: what a Program does on every input of its format.

Errors are of the whole operation against the real function (float64, within an ulp of the rigorous
value). A 16-bit program is run on all 65,536 bit patterns; an fp32 program on 65,536 of them, and the
certificate says so in ``skipped``.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyfma.errors import ProgramError
from polyfma.formats import Bits, Format, Values
from polyfma.functions import Function, Table
from polyfma.program import Program
from polyfma.replay import replay

SIGMAS = (0.25, 1.0, 2.0)
# Sums of 65,536 terms with weights from erf may differ in the last digits between machines.
_SUM_TOLERANCE = 1e-9


@dataclass(frozen=True)
class Extreme:
    """A largest error and the input where it happens."""

    error: float
    x: float
    bits: str


@dataclass(frozen=True)
class Certificate:
    """The measured properties of one output of a Program; see :func:`certify`.

    Errors are absolute unless named; ``max_weighted_error`` divides by max(1, |f|/2), ``max_ulp``
    by the format's spacing at f. ``floor_*`` is what correct rounding would give. ``bias`` is the mean
    error and ``rel_rms`` sqrt(E e^2 / E f^2) under x ~ N(0, s), keyed by s (``uniform`` on the domain of
    exp2). ``monotone_ulps`` is the largest step against the function's own direction within a stretch
    where that direction is one, in ulps of the larger value. The ``*_quarter`` figures take the ulp of
    max(|value|, 1/4), the measure of the accurate tier, which does not ask for relative accuracy near 0.
    """

    program: str
    digest: str
    function: str
    direction: str
    format: str
    output: str
    mode: str
    inputs: int
    skipped: str
    instructions: int
    fma: int
    max_abs_error: float
    max_abs_at: Extreme
    max_ulp: float
    max_ulp_at: Extreme
    max_weighted_error: float
    max_weighted_at: Extreme
    max_rel_error: float
    max_rel_at: Extreme
    relative_scope: str
    floor_abs_error: float
    floor_weighted_error: float
    floor_ulp: float
    misrounded: int
    bias: Mapping[str, float]
    rel_rms: Mapping[str, float]
    monotone_ulps: float
    max_ulp_quarter: float
    monotone_ulps_quarter: float
    tails: Mapping[str, Any]
    nan: str
    zero: Mapping[str, Any]
    subnormal: Mapping[str, Any]
    symmetry: Mapping[str, Any]
    range: Mapping[str, Any]
    others: tuple[Certificate, ...] = field(default=())

    @property
    def exact_tails(self) -> bool:
        """Whether +-largest finite and +-inf give the correctly rounded value (the sign of a zero aside)."""
        return bool(self.tails["exact"])

    def to_dict(self) -> dict[str, Any]:
        """JSON-safe: infinities and NaN become the strings ``inf``, ``-inf``, ``nan``."""
        return {k: _safe(v) for k, v in dataclasses.asdict(self).items()}

    def to_json(self) -> str:
        return json.dumps(self.to_dict(), indent=1) + "\n"

    def differences(self, stored: Mapping[str, Any]) -> list[str]:
        """Lines that say where a stored certificate (:meth:`to_dict`) no longer holds; empty if it does."""
        return _differences(self.to_dict(), stored, "")

    def summary(self) -> list[tuple[str, str]]:
        """Label and text, for a readable table."""
        return _summary(self)


def certify(program: Program, *, mode: str = "fused") -> Certificate:
    """Run a program on every input of its format and measure it against the real function.

    ``mode`` is ``fused`` (the hardware) or ``split``. A program with several outputs gives the
    certificate of the first one, with the rest in ``others``. Deterministic.
    """
    if not isinstance(program, Program):
        raise ProgramError(f"certify takes a Program, not {type(program).__name__}; polyfma.load(name) gives one")
    if mode not in ("fused", "split"):
        raise ProgramError(f"a certificate is of mode fused or split, not {mode!r}")
    inputs, skipped = _inputs(program)
    outputs = replay(program, inputs, mode=mode)
    by_name = outputs if isinstance(outputs, dict) else {next(iter(program.outputs)): outputs}
    certificates = [_certify_output(program, name, inputs, y, skipped, mode) for name, y in by_name.items()]
    return dataclasses.replace(certificates[0], others=tuple(certificates[1:]))


def faults(certificate: Certificate, *, free: bool = False) -> list[str]:
    """What keeps a program from being a default one; empty if nothing does.

    A default program is finite at finite inputs, propagates NaN, has exact tails and limits, stays in the
    range of sigmoid and tanh, keeps its symmetry, and is exact at 0 (even derivatives aside). With
    ``free`` only finiteness, NaN and the symmetry are asked for.
    """
    return faults_of(certificate.to_dict(), free=free)


def faults_of(c: Mapping[str, Any], *, free: bool = False) -> list[str]:
    """:func:`faults` of a stored certificate."""
    found = []
    if c["max_abs_error"] in ("inf", "nan"):
        found.append("a finite input gives a non-finite output")
    if c["nan"] != "propagates":
        found.append(f"NaN is {c['nan']}")
    if c["symmetry"]["kind"] in ("odd", "even") and c["symmetry"]["violations"]:
        found.append(f"{c['symmetry']['violations']} violations of {c['symmetry']['kind']} symmetry")
    if free:
        return found
    if not c["tails"]["exact"]:
        found.append("tails are not exact")
    bounded = c["direction"] == "forward" and c["function"].split("-")[0] in ("sigmoid", "tanh", "softcap")
    if bounded and not c["range"]["inside"]:
        found.append(f"the range [{c['range']['min']}, {c['range']['max']}] leaves the function's")
    if not c["zero"]["exact"] and c["symmetry"]["kind"] != "even":
        found.append("f(0) is not exact")
    return found


def _inputs(program: Program) -> tuple[Bits, str]:
    fmt, domain = program.fmt, program.target.domain
    if fmt.width == 16:
        return fmt.all_bits(), "" if domain is None else f"errors on {domain[0]:g} <= x <= {domain[1]:g} only"
    if domain is not None:
        grid = np.linspace(*domain, (1 << 16) + 1)
        return fmt.encode(grid), f"fp32: {grid.size} evenly spaced inputs of [{domain[0]:g}, {domain[1]:g}]"
    stride = np.arange(1 << 16, dtype=np.uint32) << np.uint32(16)
    return stride, "fp32: 65,536 of 2^32 inputs, those whose low 16 bits are zero"


def _table_for(target: Function, fmt: Format, inputs: Bits) -> Table:
    if fmt.width == 16:
        return target.table(fmt)
    return Table(*target._tabulate(inputs, fmt))


def _certify_output(program: Program, output: str, inputs: Bits, y_bits: Bits, skipped: str, mode: str) -> Certificate:
    fmt, target = program.fmt, program.target_of(output)
    table = _table_for(target, fmt, inputs)
    x, y, exact = fmt.decode(inputs), fmt.decode(y_bits), table.exact
    judged = target._inside(x)
    errors = _Errors(fmt, x, y, exact, fmt.decode(table.rounded), inputs, judged, program.clamp)
    weights = _weights(fmt, x, judged, target.domain)
    with np.errstate(invalid="ignore", over="ignore"):
        bias = {s: _sum(w * errors.signed) for s, w in weights.items()}
        power = {s: (_sum(w * errors.signed**2), _sum(w * np.where(judged, exact, 0) ** 2)) for s, w in weights.items()}
    absolute, ulps, weighted, relative = errors.extremes()
    return Certificate(
        program=program.name, digest=program.digest, function=program.function, direction=target.direction,
        format=program.format, output=output, mode=mode, inputs=int(inputs.size), skipped=skipped,
        instructions=program.counts.instructions, fma=program.counts.fma,
        max_abs_error=absolute.error, max_abs_at=absolute, max_ulp=ulps.error, max_ulp_at=ulps,
        max_weighted_error=weighted.error, max_weighted_at=weighted,
        max_rel_error=relative.error, max_rel_at=relative,
        relative_scope="" if program.clamp is None else f" and |x| <= {program.clamp:g}, the clamp",
        floor_abs_error=errors.floor(np.ones_like(x)), floor_weighted_error=errors.floor(errors.weight),
        floor_ulp=errors.floor(errors.ulp),
        misrounded=int(np.sum(judged & (y_bits != table.rounded) & ~((y == 0) & (errors.best == 0)))),
        bias=bias,
        rel_rms={s: math.sqrt(e / f) if f else 0.0 for s, (e, f) in power.items()},
        monotone_ulps=_monotone_ulps(fmt, x, y, exact, judged, 0.0),
        max_ulp_quarter=float(np.max(errors.absolute / fmt.ulp(np.maximum(np.abs(errors.exact), 0.25)))),
        monotone_ulps_quarter=_monotone_ulps(fmt, x, y, exact, judged, 0.25),
        tails=_tails(program, target, table, y_bits), nan=_nan(fmt, inputs, y_bits),
        zero=_zero(fmt, target, inputs, y_bits), subnormal=_subnormal(fmt, inputs, y, errors),
        symmetry=_symmetry(fmt, target, inputs, y), range=_range(target, x, y, errors.best, judged),
    )  # fmt: skip


class _Errors:
    """Errors at the judged inputs; a non-finite output there is an infinite error."""

    def __init__(self, fmt: Format, x: Values, y: Values, exact: Values, best: Values, bits: Bits,
                 judged: NDArray[np.bool_], clamp: float | None) -> None:  # fmt: skip
        self.fmt, self.x, self.bits, self.judged, self.best = fmt, x, bits, judged, best
        f = np.where(judged, exact, 1.0)
        with np.errstate(invalid="ignore"):
            self.signed = np.where(judged, np.where(np.isfinite(y), y - f, np.inf), 0.0)
        self.absolute = np.abs(self.signed)
        self.exact, self.ulp = f, fmt.ulp(f)
        self.weight = np.maximum(1.0, np.abs(f) / 2)
        normal = judged & (np.abs(f) >= fmt.min_normal)
        self.relative_here = normal if clamp is None else normal & (np.abs(x) <= clamp)

    def extremes(self) -> tuple[Extreme, Extreme, Extreme, Extreme]:
        relative = np.where(self.relative_here, self.absolute / np.where(self.relative_here, np.abs(self.exact), 1), 0)
        return (self._worst(self.absolute), self._worst(self.absolute / self.ulp),
                self._worst(self.absolute / self.weight), self._worst(relative))  # fmt: skip

    def _worst(self, error: Values) -> Extreme:
        i = int(np.argmax(error))
        return Extreme(float(error[i]), float(self.x[i]), self.fmt.hex(int(self.bits[i])))

    def floor(self, scale: Values) -> float:
        """The largest error of the correctly rounded result, in units of ``scale``."""
        with np.errstate(invalid="ignore"):
            error = np.where(self.judged, np.abs(self.best - self.exact) / scale, 0)
        return float(np.max(error))


def _sum(terms: Values) -> float:
    return math.fsum(terms) if np.all(np.isfinite(terms)) else math.inf


def _weights(fmt: Format, x: Values, judged: NDArray[np.bool_], domain: tuple[float, float] | None) -> dict[str, Values]:
    """The probability of each input's rounding interval under N(0, s), or uniform on the domain."""
    order = np.argsort(np.where(judged, x, np.inf), kind="stable")[: int(judged.sum())]
    sorted_x = x[order]
    middles = (sorted_x[1:] + sorted_x[:-1]) / 2

    def spread(cdf: Values) -> Values:
        weights = np.zeros_like(x)
        weights[order] = np.diff(np.concatenate([[0.0], cdf, [1.0]]))
        return weights

    if domain is not None:
        return {"uniform": spread((middles - domain[0]) / (domain[1] - domain[0]))}
    from scipy.special import ndtr

    return {f"{s:g}": spread(ndtr(middles / s)) for s in SIGMAS}


def _monotone_ulps(fmt: Format, x: Values, y: Values, exact: Values, judged: NDArray[np.bool_], least: float) -> float:
    """The largest backward step; its ulp is that of the larger value, or of ``least`` if that is more."""
    order = np.lexsort((~np.signbit(x), np.where(judged, x, np.inf)))[: int(judged.sum())]
    f, v = exact[order], y[order]
    if not np.all(np.isfinite(v)):
        return math.inf
    step = np.diff(f)
    step[np.abs(step) <= 8 * np.finfo(float).eps * np.abs(f[1:])] = 0  # below what the table resolves
    moving = np.flatnonzero(step)
    if moving.size == 0:
        return 0.0
    # Where f stands still it continues the way it went.
    direction = np.sign(step[moving[np.clip(np.searchsorted(moving, np.arange(step.size), "right") - 1, 0, None)]])
    turns = np.flatnonzero(np.diff(direction)) + 1
    worst = 0.0
    for start, stop in zip([0, *turns], [*turns, step.size], strict=True):
        rising = v[start : stop + 1] * direction[start]
        high = np.maximum.accumulate(rising)
        size = np.maximum(np.maximum(np.abs(high), np.abs(rising)), least)
        worst = max(worst, float(np.max((high - rising) / fmt.ulp(size))))
    return worst


def _tails(program: Program, target: Function, table: Table, y: Bits) -> dict[str, Any]:
    """The four tail values, compared by value: the sign of a zero does not count."""
    fmt = program.fmt
    if target.domain is not None or fmt.width != 16:
        return {"exact": None, "skipped": "outside the domain" if target.domain else "not among the sampled inputs"}
    entries: dict[str, Any] = {}
    exact = True
    for label, bits in (("-inf", fmt.inf_bits | fmt.sign_bit), ("-max", fmt.max_bits | fmt.sign_bit),
                        ("+max", fmt.max_bits), ("+inf", fmt.inf_bits)):  # fmt: skip
        got, wanted = float(fmt.decode(y[bits])), float(fmt.decode(table.rounded[bits]))
        entries[label] = {"value": got, "correct": wanted, "bits": fmt.hex(int(y[bits]))}
        exact &= got == wanted
    return {"exact": exact, **entries}


def _nan(fmt: Format, inputs: Bits, y: Bits) -> str:
    here = fmt.is_nan(inputs)
    if not here.any():
        return "not among the inputs"
    kept = int(np.sum(fmt.is_nan(y[here])))
    return "propagates" if kept == int(here.sum()) else f"lost at {int(here.sum()) - kept} of {int(here.sum())}"


def _zero(fmt: Format, target: Function, inputs: Bits, y: Bits) -> dict[str, Any]:
    wanted = target.zero_value()
    result: dict[str, Any] = {"f(0)": wanted}
    signs_kept = True
    for label, bits in (("+0", 0), ("-0", fmt.sign_bit)):
        index = np.flatnonzero(inputs == bits)
        if index.size:
            got = int(y[index[0]])
            result[label] = fmt.hex(got)
            signs_kept &= wanted != 0 or (got & fmt.sign_bit) == (bits & fmt.sign_bit)
    result["exact"] = bool(float(fmt.decode(y[np.flatnonzero(inputs == 0)[0]])) == float(fmt.decode(fmt.encode(wanted))))
    result["sign_kept"] = bool(signs_kept)
    return result


def _subnormal(fmt: Format, inputs: Bits, y: Values, errors: _Errors) -> dict[str, Any]:
    magnitude = fmt.abs(inputs)
    here = (magnitude > 0) & (magnitude < 1 << (fmt.precision - 1)) & errors.judged
    flushed = here & (y == 0) & (errors.best != 0)
    return {
        "inputs": int(here.sum()),
        "max_abs_error": float(np.max(errors.absolute[here], initial=0.0)),
        "flushed": int(flushed.sum()),
    }


def _symmetry(fmt: Format, target: Function, inputs: Bits, y: Values) -> dict[str, Any]:
    kind = target.shape.symmetry
    if kind == "none" or fmt.width != 16:
        return {"kind": kind, "violations": 0, "max_deviation": 0.0}
    positive = np.arange(fmt.inf_bits, dtype=np.int64)
    x, right, left = fmt.decode(positive), y[positive], y[positive + fmt.sign_bit]
    with np.errstate(invalid="ignore"):
        deviation = {
            "odd": lambda: np.abs(right + left),
            "even": lambda: np.abs(right - left),
            "centred": lambda: np.abs(right + left - (target._special(-np.inf) + target._special(np.inf))),
            "residual": lambda: np.abs(right - left - x),
        }[kind]()
        # Rounding the two results apart may cost half an ulp each; odd and even ones round alike.
        allowed = (fmt.ulp(right) + fmt.ulp(left)) / 2 if kind in ("centred", "residual") else np.zeros_like(right)
        violations = int(np.sum(~(deviation <= allowed)))
    worst = float(np.max(np.where(np.isnan(deviation), np.inf, deviation)))
    return {"kind": kind, "violations": violations, "max_deviation": worst}


def _range(target: Function, x: Values, y: Values, best: Values, judged: NDArray[np.bool_]) -> dict[str, Any]:
    """The output's range against that of the correctly rounded function, over the same inputs."""
    asked = judged | (np.isinf(x) & (target.domain is None))
    seen = y[asked & ~np.isnan(y)]
    if seen.size == 0:
        return {"min": math.nan, "max": math.nan, "inside": False}
    least, most = float(np.min(seen)), float(np.max(seen))
    return {"min": least, "max": most, "inside": bool(least >= np.nanmin(best[asked]) and most <= np.nanmax(best[asked]))}


def _safe(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return "nan" if math.isnan(value) else ("inf" if value > 0 else "-inf")
    if isinstance(value, Mapping):
        return {k: _safe(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_safe(v) for v in value]
    return value


def _differences(found: Any, stored: Any, path: str) -> list[str]:
    if isinstance(found, Mapping) and isinstance(stored, Mapping):
        keys = [*found, *(k for k in stored if k not in found)]
        return [d for k in keys for d in _differences(found.get(k), stored.get(k), f"{path}.{k}" if path else str(k))]
    if isinstance(found, list) and isinstance(stored, list) and len(found) == len(stored):
        return [d for i, (a, b) in enumerate(zip(found, stored, strict=True)) for d in _differences(a, b, f"{path}[{i}]")]
    summed = path.split(".")[0] in ("bias", "rel_rms") and isinstance(found, float) and isinstance(stored, float)
    if found == stored or (summed and abs(found - stored) <= _SUM_TOLERANCE * abs(found) + 1e-15):
        return []
    return [f"{path}: stored {stored!r}, found {found!r}"]


def _summary(c: Certificate) -> list[tuple[str, str]]:
    def at(e: Extreme) -> str:
        return f"at x = {e.x:.9g} (0x{e.bits})"

    def by_sigma(values: Mapping[str, float], unit: float, suffix: str) -> str:
        return ", ".join(f"{v * unit:.3g}{suffix} ({'' if s == 'uniform' else 's='}{s})" for s, v in values.items())

    tails = c.tails.get("skipped") or ", ".join(f"f({k})={c.tails[k]['value']:.6g}" for k in ("-inf", "-max", "+max", "+inf"))
    rows = [
        ("inputs", f"{c.inputs:,} of {c.format}" + (f"; {c.skipped}" if c.skipped else ", all of them")),
        ("instructions", f"{c.instructions} for a lane pair, {c.fma} of them on the FMA pipe"),
        ("max absolute error", f"{c.max_abs_error:.6g} {at(c.max_abs_at)}; correct rounding {c.floor_abs_error:.4g}"),
        ("max weighted error", f"{c.max_weighted_error:.6g} {at(c.max_weighted_at)}; correct rounding {c.floor_weighted_error:.4g}"),
        ("max ulp error", f"{c.max_ulp:.6g} {at(c.max_ulp_at)}; correct rounding {c.floor_ulp:.4g}"),
        ("max relative error", f"{c.max_rel_error:.4g} {at(c.max_rel_at)}, where f is normal" + c.relative_scope),
        ("misrounded inputs", f"{c.misrounded:,}"),
        ("bias, x ~ N(0, s)" if "uniform" not in c.bias else "bias, uniform", by_sigma(c.bias, 1, "")),
        ("relative RMS", by_sigma(c.rel_rms, 100, " %")),
        ("monotone", "yes" if c.monotone_ulps == 0 else f"within {c.monotone_ulps:.4g} ulp"),
        ("tails", tails if "skipped" in c.tails else f"{tails}; {'exact' if c.exact_tails else 'NOT exact'}"),
        ("NaN", c.nan),
        ("zero", f"f(0) {'exact' if c.zero['exact'] else 'NOT exact'}, sign {'kept' if c.zero['sign_kept'] else 'NOT kept'}"),
        ("subnormal inputs", f"error {c.subnormal['max_abs_error']:.3g}, {c.subnormal['flushed']} flushed to zero"),
        ("symmetry", f"{c.symmetry['kind']}, {c.symmetry['violations']} violations"),
        ("range", f"[{c.range['min']:.6g}, {c.range['max']:.6g}] {'inside' if c.range['inside'] else 'OUTSIDE'} the function's"),
    ]  # fmt: skip
    for other in c.others:
        rows += [(f"{other.output}: {label}", text) for label, text in _summary(other)[2:5]]
    return rows
