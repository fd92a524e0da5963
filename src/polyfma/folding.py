"""Folds scales of input and output into a program's constants, where the format can hold them.

A program computes p(x); the folded one computes S_out p(S_in x) with the same operations. How a constant
scales follows from the operations alone. Let every value v become v 2^k(v): ``fma`` and ``mul`` add the k of
their factors, ``add``, ``min`` and the like need equal ones, the input has k = -log2 S_in, an output log2 S_out.
That is a linear system, solved exactly. Scales that are powers of two give the same bits, scaled, unless an intermediate
result becomes subnormal, which in FP16 it soon does; any other rounds the constants anew.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from fractions import Fraction

from polyfma.errors import CoefficientError, ProgramError
from polyfma.program import Op, Program

_Row = dict[str, Fraction]
_RIGHT = ""  # the column of the right-hand side; no value has an empty name
_MOST_EXPONENT = 900  # of 2, beyond every format, within float64
_SLACK = Fraction(1, 10**12)  # log2 of an arbitrary scale is rounded


def fold(program: Program, *, input_scale: float = 1.0, output_scale: float = 1.0) -> Program:
    """The program of ``output_scale * p(input_scale * x)``, its name with the scales.

    Raises ProgramError where the operations do not admit the scales (x sigmoid(x) needs S_out = 1/S_in, a hardware
    function no scale at its input), CoefficientError where a constant overflows or becomes subnormal in its format.
    """
    if not isinstance(program, Program):
        raise ProgramError(f"fold takes a Program, not {type(program).__name__}; polyfma.load(name) gives one")
    s_in, s_out = _checked("input_scale", input_scale), _checked("output_scale", output_scale)
    if s_in == s_out == 1:
        return program
    k_in, k_out = Fraction(-math.log2(s_in)), Fraction(math.log2(s_out))
    exponents = _solve(program, k_in, k_out, strict=True)
    if exponents is None:
        raise ProgramError(f"{program.name} cannot take input_scale {s_in:g} with output_scale {s_out:g}: an"
                           " operation would mix values of different scales; scale outside the program")  # fmt: skip
    try:
        bits = _scaled(program, exponents)
    except CoefficientError:
        # A limit at the largest number, which only keeps infinities out, may stay where it is.
        relaxed = _solve(program, k_in, k_out, strict=False)
        if relaxed is None or all(not _only_bounds(program, n) for n in program.consts):
            raise
        bits = _scaled(program, {n: k for n, k in relaxed.items() if not _only_bounds(program, n)})
    return program.with_consts(bits).renamed(_scaled_name(program, s_in, s_out))


def scaled_outside(program: Program, *, input_scale: float = 1.0, output_scale: float = 1.0) -> Program:
    """The program of ``output_scale * p(input_scale * x)`` with a multiplication before and after, each rounded.

    For scales that the constants cannot hold (:func:`fold` says so). Raises CoefficientError where the format cannot hold the scale.
    """
    s_in, s_out = _checked("input_scale", input_scale), _checked("output_scale", output_scale)
    fmt, ops, consts = program.fmt, list(program.ops), dict(program.consts)
    (x,), (label,), (result,) = program.inputs, program.outputs, program.outputs.values()
    if s_in != 1:
        consts["scale_in"] = fmt.hex(fmt.constant(s_in, what=f"input scale of {program.name}"))
        ops = [Op(op.op, op.dst, tuple("x_scaled" if s == x else s for s in op.src), op.format) for op in ops]
        ops.insert(0, Op("mul", "x_scaled", (x, "scale_in"), fmt.name))
    if s_out != 1:
        consts["scale_out"] = fmt.hex(fmt.constant(s_out, what=f"output scale of {program.name}"))
        ops.append(Op("mul", "y_scaled", (result, "scale_out"), fmt.name))
        result = "y_scaled"
    return Program(_scaled_name(program, s_in, s_out), program.function, program.direction, program.format, program.degree,
                   f"{program.form}-scaled", program.inputs, consts, tuple(ops), {label: result})  # fmt: skip


def _scaled_name(program: Program, s_in: float, s_out: float) -> str:
    suffix = "".join(f".{word}{value:.17g}" for word, value in (("in", s_in), ("out", s_out)) if value != 1)
    return (program.name + suffix).replace("+", "")


def _checked(what: str, value: object) -> float:
    try:
        number = float(value) if isinstance(value, int | float) and not isinstance(value, bool) else math.nan
    except OverflowError:
        number = math.inf
    if not 0 < number < math.inf:
        raise ProgramError(f"{what} {str(value)[:40]} must be a positive number")
    return number


def _scaled(program: Program, exponents: dict[str, Fraction]) -> dict[str, int]:
    """Bit patterns of the constants times 2^k. Raises CoefficientError where a format cannot hold one."""
    found = {}
    for name, k in exponents.items():
        value, fmt = program.const_value(name), program.const_formats[name]
        if not k or value == 0 or not math.isfinite(value):
            continue
        what = f"constant {name} of {program.name}, scaled,"
        if abs(k) > _MOST_EXPONENT:
            raise CoefficientError(f"{what} {value:g} * 2^{float(k):.4g} is far outside {fmt}; scale outside the program")
        scaled = value * 2.0 ** float(k)
        if abs(scaled) < fmt.min_normal:  # also in bf16 and fp32: its relative error would be large
            raise CoefficientError(f"{what} {scaled!r} becomes subnormal in {fmt}; magnitudes from {fmt.min_normal:g} are allowed")
        found[name] = fmt.constant(scaled, what=what)
    return found


def _free(program: Program, name: str, *, strict: bool) -> bool:
    """Constants that mean the same at every scale: 0 and infinities, and unless ``strict`` a limit that only bounds."""
    if name not in program.consts:
        return False
    value = program.const_value(name)
    return value == 0 or not math.isfinite(value) or (not strict and _only_bounds(program, name))


def _only_bounds(program: Program, name: str) -> bool:
    """The largest number of its format, used in min and max alone."""
    largest = name in program.consts and abs(program.const_value(name)) == program.const_formats[name].max_finite
    return largest and all(op.op.startswith(("min", "max")) for op in program.ops if name in op.src)


def _equations(op: Op) -> Iterator[tuple[list[str], list[str]]]:
    """(left, right) for each condition: the k of the left names and of the right ones have equal sums."""
    first, last = op.src[0], op.src[-1]
    if op.op.startswith("fma"):
        yield list(op.src[:2]), [op.dst]
        yield [last], [op.dst]
        if op.op == "fma.sat":
            yield [op.dst], []
    elif op.op == "mul":
        yield list(op.src), [op.dst]
    elif op.op.startswith("set."):
        yield [first], [last]
    elif op.op == "copysign":
        yield [first], [op.dst]
    elif op.op.endswith(".approx"):
        yield [first], []
        yield [op.dst], []
    else:  # select, and all that keep or choose a value
        for name in op.src[1:] if op.op == "select" else op.src:
            yield [name], [op.dst]


def _solve(program: Program, of_input: Fraction, of_output: Fraction, *, strict: bool) -> dict[str, Fraction] | None:
    """k of every constant; None where there is no solution. What is left open stays as it is (k = 0)."""
    rows: list[_Row] = [{name: Fraction(1), _RIGHT: of_input} for name in program.inputs]
    rows += [{source: Fraction(1), _RIGHT: of_output} for source in program.outputs.values()]
    for op in program.ops:
        for left, right in _equations(op):
            if any(_free(program, n, strict=strict) for n in (*left, *right)):
                continue
            row: _Row = {}
            for names, sign in ((left, 1), (right, -1)):
                for n in names:
                    row[n] = row.get(n, Fraction(0)) + sign
            rows.append(row)
    return _eliminate(rows, _columns(program), list(program.consts))


def _columns(program: Program) -> list[str]:
    """Results first, then coefficients, then the other constants: those stay unchanged where there is a choice."""
    coefficients = [c for c in program.consts if re.fullmatch(r"[a-z]\d+", c)]
    return [*program.inputs, *(op.dst for op in program.ops), *coefficients, *(c for c in program.consts if c not in coefficients)]


def _eliminate(rows: list[_Row], columns: list[str], wanted: list[str]) -> dict[str, Fraction] | None:
    """Gauss-Jordan elimination in rationals."""
    pivots: dict[str, _Row] = {}
    for column in columns:
        pivot = next((r for r in rows if r.get(column)), None)
        if pivot is None:
            continue
        rows.remove(pivot)
        pivot = {n: v / pivot[column] for n, v in pivot.items() if v}
        for row in (*rows, *pivots.values()):
            factor = row.get(column, Fraction(0))
            if factor:
                for n, v in pivot.items():
                    row[n] = row.get(n, Fraction(0)) - factor * v
        pivots[column] = pivot
    if any(abs(row.get(_RIGHT, Fraction(0))) > _SLACK for row in rows):
        return None
    return {n: _clean(pivots[n].get(_RIGHT, Fraction(0))) if n in pivots else Fraction(0) for n in wanted}


def _clean(k: Fraction) -> Fraction:
    """A k that is whole but for the rounding of a logarithm is whole."""
    return Fraction(round(k)) if abs(k - round(k)) <= _SLACK else k
