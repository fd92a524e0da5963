"""What a softcap's program may do to a logit, and what it does.

A logit's error is what the softmax sees, so programs are judged by cap (p(s / cap) - tanh(s / cap)) over every score s,
infinities included, and near 0, where most scores lie, by the relative error: not by the largest |p - tanh|.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from polyfma.attention.mix import HARDWARE, Given, in_fp32, parse, value_bits
from polyfma.attention.scalars import positive, real
from polyfma.errors import PolyfmaError
from polyfma.fit.objective import MIDDLE, NEAR_ZERO, OUTER
from polyfma.formats import FP32, Values, get_format
from polyfma.program import Program

_TANH_APPROX = 2.0**-11  # the relative error that PTX states for tanh.approx.f32
_SMALLEST = 2.0**-12  # below this |u| an error counts as at it: a score so small does not move a weight
_POINTS = 1 << 17


@dataclass(frozen=True)
class LogitBudget:
    """Bounds on the error of a softcapped logit, and of the output.

    ``relative``: |error| / |u| for |u| <= 1/2, u = score / cap. ``middle``: |error| / cap for |u| <= 1/2. ``outer``: for every score.
    ``output``: relative L2 error of a BF16 output against fp64, as measured for the arm, with q, k ~ N(0, 1) and at twice that
    scale; ``gradient``: of dq, dk and dv at the first. Raises PolyfmaError for a bound that is not a positive number.
    """

    relative: float = NEAR_ZERO
    middle: float = MIDDLE
    outer: float = OUTER
    output: float = 2.5e-3
    gradient: float = 3e-3

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            number = real(value)
            if number is None or not number > 0:
                raise PolyfmaError(f"budget {name} = {value!r} must be a positive number, or infinity for no bound")

    def holds(self, error: LogitError) -> bool:
        """Whether an error is within the bounds on logits."""
        return error.relative <= self.relative and error.middle <= self.middle and error.outer <= self.outer


DEFAULT = LogitBudget()


@dataclass(frozen=True)
class LogitError:
    """What a mix does: the largest errors in the units of :class:`LogitBudget`."""

    relative: float
    middle: float
    outer: float

    @classmethod
    def worst(cls, errors: list[LogitError]) -> LogitError:
        return cls(*(max(getattr(e, name) for e in errors) for name in ("relative", "middle", "outer")))


def logit_error(given: Given, scale: float = 1 / (50 * math.sqrt(128))) -> LogitError:
    """The worst of a mix's parts (``hardware``, tanh programs). ``scale`` is softmax_scale / cap, which 16-bit programs round to their format once, and the
    scores again: both are counted, on a dense grid of fp32 scores."""
    mix, scale = parse(given, "tanh", (HARDWARE,)), positive("scale", scale)
    hardware = LogitError(_TANH_APPROX, _TANH_APPROX * math.tanh(0.5), _TANH_APPROX)
    packed = mix.packed
    return LogitError.worst([hardware] * (HARDWARE in mix.parts) + [_program_error(p, scale, p in packed) for p in mix.programs])


@lru_cache(maxsize=256)
def _program_error(program: Program, scale: float, packed: bool) -> LogitError:
    u = np.concatenate([np.geomspace(_SMALLEST / 16, 16.0, _POINTS), [np.inf]])
    got = packed_tanh(program, u, scale) if packed else FP32.decode(value_bits(in_fp32(program), FP32.encode(u)))
    error = np.abs(got - np.tanh(u))
    error = np.where(np.isfinite(error), error, np.inf)
    inner = u <= 0.5
    return LogitError(float(np.max(error[inner] / np.maximum(u[inner], _SMALLEST))), float(np.max(error[inner])), float(np.max(error)))


def packed_tanh(program: Program, u: Values, scale: float) -> Values:
    """What a kernel makes of u with a 16-bit program: raw scores rounded, times the rounded scale, and the program; the rounding
    of the scale is made good at the end (:func:`rounded_scale`)."""
    fmt = program.fmt
    narrow, correction = rounded_scale(scale, program.format)
    raw = fmt.encode(u / scale)
    with np.errstate(over="ignore"):
        scores = fmt.encode(fmt.decode(raw) * narrow)
    return np.asarray(fmt.decode(value_bits(program, scores)) * correction)


def rounded_scale(scale: float, fmt: str) -> tuple[float, float]:
    """(the scale as the format holds it, scale over it). Raises PolyfmaError where fp16 would make it subnormal."""
    f = get_format(fmt)
    narrow = float(f.decode(f.encode(scale)))
    if not f.min_normal <= narrow < math.inf:
        raise PolyfmaError(f"softmax_scale / cap = {scale:g} is outside {fmt}; take a program that computes in bf16 or fp32, or {HARDWARE!r}")
    return narrow, scale / narrow


__all__ = ["DEFAULT", "LogitBudget", "LogitError", "logit_error", "packed_tanh", "rounded_scale"]
