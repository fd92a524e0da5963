"""Compiled scoring of candidate coefficients: a small machine that runs a Program's operations on blocks of inputs.

The arithmetic is that of :mod:`polyfma.formats` (float64, round to odd, one rounding), written for numba so
that a candidate costs about a microsecond: it is given up at the first block of inputs where its error passes
the bound, and blocks that refuse often are asked first. Every program that a search returns is certified by
the exhaustive replay afterwards; nothing here is taken on trust.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic
from numpy.typing import NDArray

from polyfma.formats import Format, get_format
from polyfma.program import Program

BLOCK = 64
_CODES = {"fma": 0, "fma.relu": 1, "mul": 2, "add": 3, "sub": 4, "min.nan": 5, "max.nan": 6, "min": 5, "max": 6,
          "min.nan.xorsign.abs": 7, "abs": 8, "neg": 9, "copysign": 10, "set.ge": 11, "set.gt": 12, "select": 13,
          "cvt": 14, "fma.sat": 15}  # fmt: skip
_FORMAT_CODES = {"bf16": 0, "fp16": 1, "fp32": 2}
Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Code:
    """A Program as arrays: operation codes, operand and result slots, formats; and where things lie."""

    ops: Ints  # (n, 6): code, format, dst, src0, src1, src2
    constants: Floats  # by slot; zero elsewhere
    coefficient_slots: Ints
    output: int
    coefficient_format: int


def compile_program(program: Program, coefficients: list[str]) -> Code:
    """Slots: 0 the input, then constants, then results."""
    slots = {program.inputs[0]: 0}
    for name in (*program.consts, *(op.dst for op in program.ops)):
        slots[name] = len(slots)
    rows = []
    for op in program.ops:
        source = [slots[s] for s in op.src] + [0] * (3 - len(op.src))
        rows.append([_CODES[op.op], _FORMAT_CODES[op.format], slots[op.dst], *source])
    constants = np.zeros(len(slots))
    for name in program.consts:
        constants[slots[name]] = program.const_value(name)
    output = slots[next(iter(program.outputs.values()))]
    inner = program.const_formats[coefficients[0]]
    return Code(np.array(rows, dtype=np.int64), constants, np.array([slots[c] for c in coefficients], dtype=np.int64),
                output, _FORMAT_CODES[inner.name])  # fmt: skip


def layout(values: Floats) -> Floats:
    """Values in whole blocks, the last one filled up with its own last value."""
    missing = -values.size % BLOCK
    return np.concatenate([values, np.repeat(values[-1:], missing)]).reshape(-1, BLOCK)


@njit(inline="always")
def _precision(fmt: int) -> tuple[int, float, float, float]:
    """(bits that rounding drops of a float64, smallest normal, adder that rounds subnormals, largest finite)."""
    if fmt == 0:
        return 45, 2.0**-126, 1.5 * 2.0**-81, (2.0 - 2.0**-7) * 2.0**127
    if fmt == 1:
        return 42, 2.0**-14, 1.5 * 2.0**28, 65504.0
    return 29, 2.0**-126, 1.5 * 2.0**-97, (2.0 - 2.0**-23) * 2.0**127


@intrinsic
def _bits(typing_context: Any, value: Any) -> Any:
    """The bit pattern of a float64, kept in a register so that loops vectorise."""
    return types.int64(types.float64), lambda context, builder, signature, args: builder.bitcast(args[0], ir.IntType(64))


@intrinsic
def _value(typing_context: Any, pattern: Any) -> Any:
    """The float64 of a bit pattern."""
    return types.float64(types.int64), lambda context, builder, signature, args: builder.bitcast(args[0], ir.DoubleType())


@njit(inline="always")
def _rounded(v: float, drop: int, least: float, adder: float, largest: float) -> float:
    """v rounded to nearest even at ``drop`` bits; see :func:`_precision`."""
    u = _bits(v)
    normal = _value((u + ((1 << (drop - 1)) - 1) + ((u >> drop) & 1)) & ~((1 << drop) - 1))
    r = normal if abs(v) >= least else (v + adder) - adder
    r = np.inf if r > largest else r
    return -np.inf if r < -largest else r


@njit(inline="always")
def _sum_to_odd(p: float, q: float) -> float:
    """p + q rounded to odd: an inexact even significand moves towards the exact sum (TwoSum)."""
    s = p + q
    part = s - p
    error = (p - (s - part)) + (q - part)
    u = _bits(s)
    side = (1 if error > 0 else 0) - (1 if error < 0 else 0)
    return _value(u + (1 - (u & 1)) * side * (1 - 2 * (1 if u < 0 else 0)))


@njit(cache=True, error_model="numpy")
def _fused(d: Floats, a: Floats, b: Floats, c: Floats, sign: float, low: float, high: float, fmt: int) -> None:
    """d = min(max(round(a b + sign c), low), high)."""
    drop, least, adder, largest = _precision(fmt)
    for i in range(BLOCK):
        r = _rounded(_sum_to_odd(a[i] * b[i], sign * c[i]), drop, least, adder, largest)
        r = r if r > low else low
        d[i] = r if r < high else high


@njit(cache=True, error_model="numpy")
def _product(d: Floats, a: Floats, b: Floats, fmt: int) -> None:
    drop, least, adder, largest = _precision(fmt)
    for i in range(BLOCK):
        d[i] = _rounded(a[i] * b[i], drop, least, adder, largest)


@njit(cache=True, error_model="numpy")
def _sum(d: Floats, a: Floats, b: Floats, sign: float, fmt: int) -> None:
    drop, least, adder, largest = _precision(fmt)
    for i in range(BLOCK):
        d[i] = _rounded(_sum_to_odd(a[i], sign * b[i]), drop, least, adder, largest)


@njit(cache=True, error_model="numpy")
def _run(ops: Ints, slots: Floats) -> None:
    """Run every operation on the block in slot 0."""
    n = BLOCK
    for k in range(ops.shape[0]):
        code, fmt = ops[k, 0], ops[k, 1]
        d = slots[ops[k, 2]]
        a, b, c = slots[ops[k, 3]], slots[ops[k, 4]], slots[ops[k, 5]]
        if code == 0:
            _fused(d, a, b, c, 1.0, -np.inf, np.inf, fmt)
        elif code == 1:
            _fused(d, a, b, c, 1.0, 0.0, np.inf, fmt)
        elif code == 15:
            _fused(d, a, b, c, 1.0, 0.0, 1.0, fmt)
        elif code == 2:
            _product(d, a, b, fmt)
        elif code == 3:
            _sum(d, a, b, 1.0, fmt)
        elif code == 4:
            _sum(d, a, b, -1.0, fmt)
        elif code == 5:
            for i in range(n):
                d[i] = min(a[i], b[i])
        elif code == 6:
            for i in range(n):
                d[i] = max(a[i], b[i])
        elif code == 7:
            for i in range(n):
                smaller = min(abs(a[i]), abs(b[i]))
                d[i] = -smaller if (a[i] < 0) != (b[i] < 0) else smaller
        elif code == 8:
            for i in range(n):
                d[i] = abs(a[i])
        elif code == 9:
            for i in range(n):
                d[i] = -a[i]
        elif code == 10:
            for i in range(n):
                d[i] = np.copysign(a[i], b[i])
        elif code == 11:
            for i in range(n):
                d[i] = 1.0 if a[i] >= b[i] else 0.0
        elif code == 12:
            for i in range(n):
                d[i] = 1.0 if a[i] > b[i] else 0.0
        elif code == 13:
            for i in range(n):
                d[i] = b[i] if a[i] != 0 else c[i]
        else:
            drop, least, adder, largest = _precision(fmt)
            for i in range(n):
                d[i] = _rounded(a[i], drop, least, adder, largest)


@njit(cache=True, error_model="numpy")
def _worst(y: Floats, target: Floats, low: Floats, high: Floats, weight: Floats) -> float:
    """The largest weighted error of a block; infinite (or NaN) where an output passes a limit.

    The maximum is taken on bit patterns, whose order is that of the magnitudes, because an integer maximum
    vectorises and lets a NaN win.
    """
    most = 0
    for i in range(BLOCK):
        e = abs(y[i] - target[i]) * weight[i]
        e = e if y[i] >= low[i] else np.inf
        e = e if y[i] <= high[i] else np.inf
        most = max(most, _bits(e))
    return _value(most)


@njit(cache=True)
def _mean_score(ops: Ints, slots: Floats, output: int, x: Floats, target: Floats, low: Floats, high: Floats,
                weight: Floats, slope: Floats, bias: float, bound: float) -> tuple[float, float]:  # fmt: skip
    squares, mean, gradient = 0.0, 0.0, 0.0
    for block in range(x.shape[0]):
        slots[0, :] = x[block]
        _run(ops, slots)
        y = slots[output]
        for i in range(BLOCK):
            e = y[i] - target[block, i]
            w = weight[block, i]
            if not abs(e) * w < 1e9 or y[i] < low[block, i] or y[i] > high[block, i]:
                return np.inf, (1.0 if e > 0 else -1.0) * slope[block, i]
            squares += (e * w) ** 2
            mean += e * w * w
            gradient += e * w * w * slope[block, i]
    found = np.sqrt(squares + bias * mean * mean)
    if found <= bound:
        return found, 0.0
    return np.inf, 1.0 if gradient > 0 else -1.0


@njit(cache=True)
def score(ops: Ints, slots: Floats, output: int, x: Floats, target: Floats, low: Floats, high: Floats, weight: Floats,
          slope: Floats, order: Ints, bias: float, bound: float) -> tuple[float, float]:  # fmt: skip
    """(largest weighted error, 0) of the constants in ``slots``, or (inf, side) as soon as one passes ``bound``.

    ``low`` and ``high`` are limits that no output may pass. ``side`` is the sign of the refusing error times
    ``slope``, the sign of the output's slope in the last coefficient: positive asks for a smaller one.

    With ``bias`` >= 0 the score is sqrt(sum (weight e)^2 + bias (sum weight^2 e)^2) instead, the weights being
    square roots of probabilities, and ``side`` the direction in which it grows.
    """
    if bias >= 0:
        return _mean_score(ops, slots, output, x, target, low, high, weight, slope, bias, bound)
    worst = 0.0
    for position in range(order.size):
        block = order[position]
        slots[0, :] = x[block]
        _run(ops, slots)
        y = slots[output]
        found = _worst(y, target[block], low[block], high[block], weight[block])
        if not found <= bound:
            if position > 0:  # ask this block earlier next time
                ahead = position // 2
                order[position], order[ahead] = order[ahead], order[position]
            for i in range(BLOCK):
                e = (y[i] - target[block, i]) * weight[block, i]
                if not abs(e) <= bound or y[i] < low[block, i] or y[i] > high[block, i]:
                    return np.inf, (1.0 if y[i] > target[block, i] else -1.0) * slope[block, i]
            return np.inf, 0.0
        worst = max(worst, found)
    return worst, 0.0


def program_scores(program: Program, x: Floats, weight: Floats, target: Floats) -> float:
    """The largest weighted error of a program, by this machine: to test it against the replay."""
    code = compile_program(program, [next(iter(program.consts))])
    slots = np.repeat(code.constants[:, None], BLOCK, axis=1)
    blocks = [layout(v) for v in (x, target, np.full_like(x, -np.inf), np.full_like(x, np.inf), weight, np.ones_like(x))]
    found, _ = score(code.ops, slots, code.output, *blocks,
                     np.arange(blocks[0].shape[0]), -1.0, np.inf)  # fmt: skip
    return float(found)


def coefficient_format(code: Code) -> Format:
    return get_format({v: k for k, v in _FORMAT_CODES.items()}[code.coefficient_format])


