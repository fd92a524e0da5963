"""The compiled search: coefficients drawn near a centre, the last one solved for, the best ones polished and kicked.

It scores with the machine of :mod:`polyfma.fit.vm`.
"""

from __future__ import annotations

import numpy as np
from numba import njit, prange
from numpy.typing import NDArray

from polyfma.fit.vm import BLOCK, Floats, _bits, _precision, _rounded, _value, score


@njit(cache=True)
def _step(value: float, steps: int, fmt: int) -> float:
    """The neighbour ``steps`` places away on the format's grid; 0 lies between the smallest normals."""
    drop, least, _, _ = _precision(fmt)
    base = (_bits(least) >> drop) - 1
    rank = 0 if abs(value) < least else (_bits(abs(value)) >> drop) - base
    rank = (rank if value >= 0 else -rank) + steps
    if rank == 0:
        return 0.0
    magnitude = _value((abs(rank) + base) << drop)
    return magnitude if rank > 0 else -magnitude


@njit(cache=True)
def _nearest(value: float, fmt: int) -> float:
    """The nearest coefficient: zero or a normal number."""
    drop, least, adder, largest = _precision(fmt)
    if abs(value) < least:
        return 0.0 if abs(value) < least / 2 else np.copysign(least, value)
    return _rounded(value, drop, least, adder, largest)


@njit(cache=True)
def _uniform(state: NDArray[np.uint64]) -> float:
    """Xorshift: a number in [0, 1)."""
    z = state[0]
    z ^= z << np.uint64(13)
    z ^= z >> np.uint64(7)
    z ^= z << np.uint64(17)
    state[0] = z
    return np.float64(z >> np.uint64(11)) * 2.0**-53


@njit(cache=True)
def _normal(state: NDArray[np.uint64]) -> float:
    """A standard normal number: the sum of four uniforms, near enough for choosing candidates."""
    total = 0.0
    for _ in range(4):
        total += _uniform(state)
    return (total - 2.0) * 1.7320508075688772


@njit(cache=True)
def _put(slots: Floats, slot: int, value: float) -> None:
    for i in range(slots.shape[1]):
        slots[slot, i] = value


@njit(cache=True)
def _solve_last(ops, slots, output, where, c, fmt, x, target, low, high, weight, slope, order, bias, bound):
    """The best first coefficient for the others as they are: errors are monotone in it, so refusals bracket it.

    Returns the score (inf if none is below ``bound``); ``c[0]`` becomes the coefficient.
    """
    best, best_c = np.inf, c[0]
    centre = c[0]
    below, above = -40, 40  # the bracket, in steps from the centre
    at, jump = 0, 1
    for _ in range(14):
        value = _step(centre, at, fmt)
        _put(slots, where[0], value)
        found, side = score(ops, slots, output, x, target, low, high, weight, slope, order, bias, bound)
        if found < bound:
            best, best_c, bound = found, value, found
            side = 1.0 if at > 0 else -1.0  # an improvement: look once on the far side
            break
        if side > 0:
            above = at
        elif side < 0:
            below = at
        else:
            break
        if above - below <= 1:
            break
        if below == -40:
            at = max(above - jump, below + 1)
            jump *= 2
        elif above == 40:
            at = min(below + jump, above - 1)
            jump *= 2
        else:
            at = (above + below) // 2
    if best < np.inf:
        for direction in (-1, 1):
            for _ in range(8):
                value = _step(best_c, direction, fmt)
                _put(slots, where[0], value)
                found, side = score(ops, slots, output, x, target, low, high, weight, slope, order, bias, bound)
                if not found < bound:
                    break
                best, best_c, bound = found, value, found
    c[0] = best_c
    return best


@njit(cache=True)
def _search_one(ops, constants, where, output, fmt, centre, r, start, x, target, low, high, weight, slope, bias, bound, samples, spread, seed, best):
    """Randomised nearest-plane search around one real solution, then coordinate steps from the best point.

    Coefficients are fixed from the last to the first; each is rounded near its real optimum given those
    already fixed (r is the triangular factor of the weighted basis), with a normal offset of ``spread``
    units of error and down; the first is solved exactly. ``best`` receives the coefficients.
    """
    n = where.size
    slots = np.empty((constants.size, BLOCK))
    for s in range(constants.size):
        _put(slots, s, constants[s])
    state = np.array([np.uint64(seed * 2654435761 + 88172645463325252)], dtype=np.uint64)
    order = np.arange(x.shape[0])
    c = np.empty(n)
    top = bound
    have = False
    for sample in range(samples + 1):
        # From half the error itself down to a 128th of it: where rounding costs little, the good points lie close.
        width = spread * 2.0 ** -(sample % 8) if sample > 1 else 0.0
        if sample == 0 and start[0] == start[0]:
            for j in range(n):
                c[j] = start[j]
        else:
            use_best = have and sample % 3 == 2
            for j in range(n - 1, -1, -1):
                offset = 0.0
                for k in range(j + 1, n):
                    offset += r[j, k] * (c[k] - (best[k] if use_best else centre[k]))
                ideal = (best[j] if use_best else centre[j]) - offset / r[j, j]
                if j > 0:
                    ideal += _normal(state) * width / abs(r[j, j])
                c[j] = _nearest(ideal, fmt)
        for j in range(n):
            _put(slots, where[j], c[j])
        found = _solve_last(ops, slots, output, where, c, fmt, x, target, low, high, weight, slope, order, bias, top)
        if found < top:
            top = found
            have = True
            for j in range(n):
                best[j] = c[j]
    if have:
        top = _polish(ops, slots, output, where, fmt, x, target, low, high, weight, slope, order, bias, top, best)
    return top


@njit(cache=True)
def _polish(ops, slots, output, where, fmt, x, target, low, high, weight, slope, order, bias, top, best):
    """Steps of up to two places in every pair of coefficients, the first solved each time, until none helps."""
    n = where.size
    c = np.empty(n)
    improved = True
    rounds = 0
    while improved and rounds < 12:
        improved = False
        rounds += 1
        for i in range(1, n):
            for j in range(i, n):
                for di in range(-2, 3):
                    for dj in range(-2, 3):
                        if (j == i and dj != 0) or (di == 0 and dj == 0):
                            continue
                        for k in range(n):
                            c[k] = best[k]
                        c[i] = _step(c[i], di, fmt)
                        if j != i:
                            c[j] = _step(c[j], dj, fmt)
                        for k in range(n):
                            _put(slots, where[k], c[k])
                        found = _solve_last(ops, slots, output, where, c, fmt, x, target, low, high, weight, slope, order, bias, top)
                        if found < top:
                            top = found
                            improved = True
                            for k in range(n):
                                best[k] = c[k]
    return top


@njit(cache=True)
def _kick(ops, slots, output, where, fmt, x, target, low, high, weight, slope, order, bias, top, best, samples, seed):
    """Random steps of two to four constants at once from the best point, the first solved each time; each find is polished."""
    n = where.size
    state = np.array([np.uint64(seed * 2654435761 + 88172645463325252)], dtype=np.uint64)
    c = np.empty(n)
    for _ in range(samples):
        for k in range(n):
            c[k] = best[k]
        for _ in range(2 + int(abs(_normal(state)) * 1.2) % 3):
            k = min(n - 1, int(_uniform(state) * n))
            c[k] = _step(c[k], int(np.rint(_normal(state) * 2.5)), fmt)
        for k in range(n):
            _put(slots, where[k], c[k])
        found = _solve_last(ops, slots, output, where, c, fmt, x, target, low, high, weight, slope, order, bias, top)
        if found < top:
            for k in range(n):
                best[k] = c[k]
            top = _polish(ops, slots, output, where, fmt, x, target, low, high, weight, slope, order, bias, found, best)
    return top


@njit(cache=True)
def polish_one(ops, constants, where, output, fmt, x, target, low, high, weight, slope, bias, best, samples, seed):
    """:func:`_polish` and :func:`_kick` from the constants in ``best``, which receives what they find; whether that is better."""
    slots = np.empty((constants.size, BLOCK))
    for s in range(constants.size):
        _put(slots, s, constants[s])
    for k in range(where.size):
        _put(slots, where[k], best[k])
    order = np.arange(x.shape[0])
    start, _ = score(ops, slots, output, x, target, low, high, weight, slope, order, bias, 1e30)
    top = _polish(ops, slots, output, where, fmt, x, target, low, high, weight, slope, order, bias, start, best)
    return _kick(ops, slots, output, where, fmt, x, target, low, high, weight, slope, order, bias, top, best, samples, seed) < start


@njit(cache=True, parallel=True)
def search_many(ops, constants, where, output, fmt, centres, rs, starts, x, target, low, high, weight, slope, bias, bounds, samples, spreads, seeds, best):
    """:func:`_search_one` for every clamp (a row of ``constants``, ``centres``, ...), in parallel.

    Returns the scores; the rows of ``best`` receive the coefficients. The result does not depend on the
    number of threads: rows share nothing.
    """
    scores = np.full(centres.shape[0], np.inf)
    for row in prange(centres.shape[0]):
        scores[row] = _search_one(ops, constants[row], where, output, fmt, centres[row], rs[row], starts[row], x, target, low,
                                  high, weight, slope, bias, bounds[row], samples, spreads[row], seeds[row], best[row])  # fmt: skip
    return scores
