"""The inputs on which a search scores its candidates, with the values, weights and limits there."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from polyfma.fit.request import Request
from polyfma.formats import Format, Values
from polyfma.functions import Function, function_scale
from polyfma.program import Program


@dataclass(frozen=True)
class Inputs:
    """Where candidates are scored: blocks of x, exact values, weights and limits (see :func:`vm.score`)."""

    x: Values
    f: Values
    weight: Values
    low: Values
    high: Values


def scored_inputs(request: Request, reach: float, *, every: bool = False) -> Inputs:
    """Both signs up to twice the largest clamp from a size below which nothing changes, and both tails.

    Symmetric functions need one sign; FP16 leaves out two thirds of the small inputs unless ``every`` one is asked for. A coarse part comes first, so that most candidates fall early.
    """
    target, fmt = request.target, request.fmt
    start = int(fmt.encode(2.0**-9 * function_scale(target)))
    positive = np.arange(start, int(fmt.encode(2 * reach)) + 1, dtype=fmt.dtype)
    if fmt.precision > 8 and not every:  # every value near the clamp, a part of the others: the certificate sees them all
        fine = fmt.decode(positive) > 0.25 * reach
        positive = positive[fine | (np.arange(positive.size) % 3 == 0)]
    positive = np.concatenate([positive[::8], np.delete(positive, np.s_[::8])])
    one_sided = target.shape.symmetry in ("odd", "even") and request.objective.distribution is None
    sides = [positive] if one_sided else [positive, positive | fmt.dtype.type(fmt.sign_bit)]
    bits = np.concatenate(sides)
    exact = target.table(fmt).exact[bits]
    x = fmt.decode(bits)
    weight = request.objective.weights(target, fmt, x, exact)
    if request.objective.distribution is not None:
        order = np.argsort(x)
        weight = np.empty_like(x)
        weight[order] = np.sqrt(request.objective.distribution.probabilities(x[order]))
    low, high = _output_limits(request, x.size)
    if not request.free:
        tail_x, tail_f = _tail_inputs(target, fmt)
        x, exact = np.concatenate([x, tail_x]), np.concatenate([exact, tail_f])
        weight = np.concatenate([weight, np.full(tail_x.size, 1e30)])
        low, high = _output_limits(request, x.size)
    return Inputs(x, exact, weight, low, high)


def wide_reach(program: Program) -> float:
    """A reach for moves from a program: its clamp may wander, and some forms have a second piece far beyond it."""
    return max(1.5 * (program.clamp or 0.0), 6.0 * function_scale(program.target))


def _tail_inputs(target: Function, fmt: Format) -> tuple[Values, Values]:
    """+-largest finite and 0, where the correctly rounded value itself is required."""
    bits = np.array([fmt.max_bits, fmt.max_bits | fmt.sign_bit, 0], dtype=fmt.dtype)
    bits = bits[:2] if target.shape.symmetry == "even" else bits
    return fmt.decode(bits), fmt.decode(target.table(fmt).rounded[bits])


def _output_limits(request: Request, size: int) -> tuple[Values, Values]:
    low, high = request.target.shape.range
    if request.free or request.direction == "backward" or request.target.shape.symmetry == "residual":
        low, high = -np.inf, np.inf
    return np.full(size, low), np.full(size, high)
