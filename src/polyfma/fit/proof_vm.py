"""The enumeration behind a proof of optimality, compiled: see :mod:`polyfma.fit.proof`."""

from __future__ import annotations

import numpy as np
from numba import njit, prange

from polyfma.fit.vm import _precision, _rounded, _sum_to_odd

EPS = 1e-14  # wider than the float64 rounding of every comparison below (values are below 8)


@njit(inline="always")
def _fma(a, b, c):
    drop, least, adder, largest = _precision(0)
    return _rounded(_sum_to_odd(a * b, c), drop, least, adder, largest)


@njit(cache=True)
def _interval(bounds_low, bounds_high, a_low, a_high, b_low, b_high):
    """The range of the next coefficient by the linear bounds, over a box of the two before it."""
    low, high = -np.inf, np.inf
    for i in range(bounds_high.shape[0]):
        k0, k1, k2 = bounds_high[i]
        high = min(high, k0 + max(k1 * a_low, k1 * a_high) + max(k2 * b_low, k2 * b_high))
    for i in range(bounds_low.shape[0]):
        k0, k1, k2 = bounds_low[i]
        low = max(low, k0 + min(k1 * a_low, k1 * a_high) + min(k2 * b_low, k2 * b_high))
    return low, high


@njit(cache=True)
def _last(t, low, high, order, count, a_low, a_high, b_low, b_high, c_low, c_high, levels):
    """The interval of the last coefficient that the inputs ``order[:count]`` leave; empty if low > high.

    Every operation is monotone in the coefficients, so the ends of the boxes give the ends of the results.
    """
    least, most = -np.inf, np.inf
    for position in range(count):
        i = order[position]
        x = t[i]
        if levels == 3:
            r_low, r_high = _fma(_fma(a_low, x, b_low), x, c_low), _fma(_fma(a_high, x, b_high), x, c_high)
        else:
            r_low, r_high = _fma(b_low, x, c_low), _fma(b_high, x, c_high)
        least = max(least, low[i] - r_high * x - EPS)
        most = min(most, high[i] - r_low * x + EPS)
        if least > most:
            if position > 0:  # ask this input earlier next time
                ahead = position // 2
                order[position], order[ahead] = order[ahead], order[position]
            return least, most
    return least, most


@njit(cache=True, parallel=True)
def enumerate_box(t, low, high, inside, a_values, b_values, c_values, b_low, b_high, c_low, c_high, levels, survivors):
    """Visit every (a, b, c) of the boxes that the linear bounds leave; keep those that no input refuses.

    ``a_values``, ``b_values``, ``c_values`` are rows (low, high) of lattice values, most of them single
    points, ascending. ``inside`` counts the inputs up to the clamp. Returns the numbers of visited and kept
    tuples for each piece of the work (a row of ``a_values``, or of ``b_values`` where there are two levels);
    kept ones are written to ``survivors[piece]`` as far as it has room.
    """
    pieces = survivors.shape[0]
    visited = np.zeros(pieces, dtype=np.int64)
    kept = np.zeros(pieces, dtype=np.int64)
    for ia in prange(pieces):
        order = np.arange(inside)
        al, ah, first, stop = 0.0, 0.0, ia, ia + 1
        if levels == 3:
            al, ah, first, stop = a_values[ia, 0], a_values[ia, 1], 0, b_values.shape[0]
        bl, bh = _interval(b_low, b_high, al, ah, 0.0, 0.0)
        for ib in range(first, stop):
            b0, b1 = b_values[ib, 0], b_values[ib, 1]
            if b1 < bl:
                continue
            if b0 > bh:
                break
            cl, ch = _interval(c_low, c_high, al, ah, b0, b1)
            start = np.searchsorted(c_values[:, 1], cl)
            for ic in range(start, c_values.shape[0]):
                c0, c1 = c_values[ic, 0], c_values[ic, 1]
                if c0 > ch:
                    break
                visited[ia] += 1
                least, most = _last(t, low, high, order, inside, al, ah, b0, b1, c0, c1, levels)
                if least <= most:
                    if kept[ia] < survivors.shape[1]:
                        row = survivors[ia, kept[ia]]
                        row[0], row[1], row[2], row[3], row[4], row[5] = al, ah, b0, b1, c0, c1
                        row[6], row[7] = least, most
                    kept[ia] += 1
    return visited, kept


