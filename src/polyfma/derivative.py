"""Differentiates a Program into another Program: forward-mode differentiation of its operations, in its own arithmetic.

The result is the derivative of the polynomial that the program evaluates, not of the function that it stands in for:
what a gradient that "matches" the forward pass is. Where an operation chooses (min, max, relu, select), the derivative is
of the chosen operand; at a kink, of the operand that the operation returns, and 0 at the lower end of a relu.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field

from polyfma.errors import ProgramError
from polyfma.formats import get_format
from polyfma.program import Op, Program

ONE = "one"  # the derivative of the input; folded away in products
_LOG2 = math.log(2)


def differentiate(program: Program) -> Program:
    """The Program of p'(x), named after the program with ``.matched``.

    The input is first limited to the largest finite number, so that +-inf gives the limit and not 0 * inf.
    Raises ProgramError for a program with several outputs, of direction backward, or with an operation that has no derivative
    here (min.xorsign.abs of two varying values).
    """
    if not isinstance(program, Program):
        raise ProgramError(f"differentiate takes a Program, not {type(program).__name__}; polyfma.load(name) gives one")
    if program.direction != "forward" or len(program.outputs) != 1:
        raise ProgramError(f"{program.name} is no forward program of one output; only such are differentiated")
    draft = _Draft(program)
    for op in program.ops:
        draft.differentiate(op)
    (output,) = program.outputs.values()
    result = draft.as_result(draft.slopes.get(output), program.format)
    ops, consts = _live(draft, result)
    return Program(f"{program.name}.matched", program.function, "backward", program.format, program.degree, f"{program.form}-matched",
                   program.inputs, consts, ops, {"value": result})  # fmt: skip


def _live(draft: _Draft, result: str) -> tuple[tuple[Op, ...], dict[str, str]]:
    """The operations and constants that the result uses."""
    wanted, kept = {result}, []
    for op in reversed(draft.ops):
        if op.dst in wanted:
            kept.append(op)
            wanted.update(op.src)
    return tuple(reversed(kept)), {name: bits for name, bits in draft.consts.items() if name in wanted}


@dataclass
class _Draft:
    """``slopes`` holds the name of dv/dx for every value that varies; a value without one is constant."""

    program: Program
    ops: list[Op] = field(default_factory=list)
    consts: dict[str, str] = field(default_factory=dict)
    slopes: dict[str, str] = field(default_factory=dict)
    formats: dict[str, str] = field(default_factory=dict)
    renamed: dict[str, str] = field(default_factory=dict)
    prefix: str = field(default="d", init=False)  # of new names, which must not be that of the input

    def __post_init__(self) -> None:
        (x,) = self.program.inputs
        self.prefix = "d" if not x.startswith("d") else "_"
        self.renamed = {name: f"{self.prefix}p_{name}" for name in self.program.consts}
        self.consts.update({self.renamed[name]: bits for name, bits in self.program.consts.items()})
        self.formats[x] = self.program.format
        limit = self.constant(get_format(self.program.format).max_finite, self.program.format)
        self.renamed[x] = self.put("min.nan.xorsign.abs", self.program.format, x, limit)
        self.slopes[x] = ONE

    def put(self, op: str, fmt: str, *src: str) -> str:
        name = f"{self.prefix}{len(self.ops)}"
        self.ops.append(Op(op, name, tuple(src), fmt))
        return name

    def constant(self, value: float, fmt: str) -> str:
        name = re.sub(r"\W", "_", f"{self.prefix}k{value:g}_{fmt}".replace("-", "m"))
        self.consts[name] = get_format(fmt).hex(int(get_format(fmt).encode(value)))
        return name

    def as_result(self, slope: str | None, fmt: str) -> str:
        """A slope as the result of an operation; a constant is chosen by a mask that is always false."""
        name, zero = self.operand(slope, fmt), self.constant(0.0, fmt)
        return self.put("select", fmt, self.put("set.gt", fmt, zero, zero), zero, name) if name in self.consts else name

    def operand(self, slope: str | None, fmt: str) -> str:
        return self.constant(0.0, fmt) if slope is None else self.constant(1.0, fmt) if slope == ONE else slope

    def plus_product(self, fmt: str, slope: str | None, factor: str, total: str | None) -> str | None:
        """total + slope * factor, with None for 0 and ONE for 1."""
        if slope is None:
            return total
        if slope == ONE:
            return factor if total is None else self.put("add", fmt, factor, self.operand(total, fmt))
        if total is None:
            return self.put("mul", fmt, slope, factor)
        return self.put("fma", fmt, slope, factor, self.operand(total, fmt))

    def choose(self, fmt: str, mask: str, if_true: str | None, if_false: str | None) -> str | None:
        if if_true == if_false:
            return if_true
        return self.put("select", fmt, mask, self.operand(if_true, fmt), self.operand(if_false, fmt))

    def differentiate(self, op: Op) -> None:
        """Repeats the operation on the limited input, and adds the operations of its derivative."""
        src = [self.renamed.get(s, s) for s in op.src]
        slopes = [self.slopes.get(s) for s in op.src]
        value = self.put(op.op, op.format, *src)
        self.renamed[op.dst] = value
        slope = None if op.op.startswith("set.") else self._slope(op, value, src, slopes)
        if slope is not None:
            self.slopes[op.dst] = slope

    def _slope(self, op: Op, value: str, src: list[str], d: list[str | None]) -> str | None:
        fmt = op.format
        if not any(d):
            return None
        if op.op in ("fma", "fma.relu", "fma.sat", "mul", "add", "sub"):
            return self._limited(op.op, fmt, value, self._linear(op.op, fmt, src, d))
        if op.op in ("min", "min.nan", "max", "max.nan"):
            first, second = src if op.op.startswith("min") else src[::-1]
            return self.choose(fmt, self.put("set.gt", fmt, first, second), d[1], d[0])
        if op.op.endswith("xorsign.abs"):
            if d[1] is not None:
                raise ProgramError(f"{self.program.name} cannot be differentiated: {op.op} of two values that depend on x")
            inside = self.put("set.gt", fmt, self.put("abs", fmt, src[0]), src[1])
            return self._signed(fmt, self.choose(fmt, inside, None, d[0]), src[1])
        if op.op == "select":
            return self.choose(fmt, src[0], d[1], d[2])
        if op.op == "cvt":
            return d[0] if d[0] == ONE else self.put("cvt", fmt, d[0] or "")
        return self._unary(op.op, fmt, value, src, d)

    def _linear(self, name: str, fmt: str, src: list[str], d: list[str | None]) -> str | None:
        if name in ("add", "sub"):
            second = None if d[1] is None else d[1] if name == "add" else self.put("neg", fmt, self.operand(d[1], fmt))
            return second if d[0] is None else self.plus_product(fmt, ONE, self.operand(d[0], fmt), second)
        total = self.plus_product(fmt, d[1], src[0], d[2] if len(d) == 3 else None)
        return self.plus_product(fmt, d[0], src[1], total)

    def _limited(self, name: str, fmt: str, value: str, slope: str | None) -> str | None:
        """A result at its limit does not vary. A NaN compares false and stays."""
        if name == "fma.relu":
            return self.choose(fmt, self.put("set.ge", fmt, self.constant(0.0, fmt), value), None, slope)
        if name == "fma.sat":
            low = self.put("set.ge", fmt, self.constant(0.0, fmt), value)
            high = self.put("set.ge", fmt, value, self.constant(1.0, fmt))
            return self.choose(fmt, low, None, self.choose(fmt, high, None, slope))
        return slope

    def _signed(self, fmt: str, slope: str | None, sign: str) -> str | None:
        """slope with its sign changed where ``sign`` is below 0.

        By comparison and not by its sign bit: at -0 all operations then take the side that max(x, 0) takes, the right one.
        """
        if slope is None or (sign in self.consts and not int(self.consts[sign], 16) & get_format(fmt).sign_bit):
            return slope
        negative = self.put("set.gt", fmt, self.constant(0.0, fmt), sign)
        value = self.operand(slope, fmt)
        return self.put("select", fmt, negative, self.put("neg", fmt, value), value)

    def _unary(self, name: str, fmt: str, value: str, src: list[str], d: list[str | None]) -> str | None:
        if name == "neg":
            return self.put("neg", fmt, self.operand(d[0], fmt))
        if name == "abs":
            return self._signed(fmt, d[0], src[0])
        if name == "copysign":
            return self._signed(fmt, self._signed(fmt, d[0], src[0]), src[1])
        if name == "tanh.approx":
            inner = self.put("fma", fmt, self.put("neg", fmt, value), value, self.constant(1.0, fmt))
        elif name == "ex2.approx":
            inner = self.put("mul", fmt, value, self.constant(_LOG2, fmt))
        else:
            raise ProgramError(f"{self.program.name} cannot be differentiated: no rule for {name}")
        return self.plus_product(fmt, d[0], inner, None)
