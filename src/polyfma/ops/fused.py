"""Fused operations: what one kernel computes for one element, put together from Programs and packed operations.

A :class:`Fused` is a straight line of steps over 16-bit inputs. A step is a packed operation or a :class:`Call` of a Program.
Emission and replay read it as one program (``ops``, with every call written out); the CPU twin reads the steps and
looks each call up in a table. So gated units multiply in one defined order everywhere::

    y     = round(f(gate) * up)                     gradients:  d_up   = round(grad * f(gate))
                                                                d_gate = round(round(grad * f'(gate)) * up)

``grad * f'`` comes first because |f'| stays near 1: ``grad * up`` could overflow where the gradient is 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from polyfma.errors import ProgramError
from polyfma.formats import get_format
from polyfma.program import Op, Program, Straightline, check_straightline


@dataclass(frozen=True)
class Call:
    """``dst = program(src)``."""

    program: Program
    dst: str
    src: str

    def inlined(self) -> tuple[list[Op], dict[str, str]]:
        """The program's operations and constants, its names behind ``dst``."""
        (x,), (result,) = self.program.inputs, self.program.outputs.values()
        names = {name: f"{self.dst}_{name}" for name in (*self.program.consts, *(op.dst for op in self.program.ops))}
        names |= {x: self.src, result: self.dst}
        ops = [Op(op.op, names[op.dst], tuple(names[s] for s in op.src), op.format) for op in self.program.ops]
        return ops, {names[name]: bits for name, bits in self.program.consts.items()}


@dataclass(frozen=True, eq=False)
class Fused(Straightline):
    """Steps over ``inputs`` of ``format`` with named ``outputs``. Raises ProgramError where a step uses what is not defined."""

    name: str
    format: str
    inputs: tuple[str, ...]
    constants: Mapping[str, str]
    steps: tuple[Op | Call, ...]
    outputs: Mapping[str, str]

    def __post_init__(self) -> None:
        def refuse(problem: str) -> None:
            raise ProgramError(f"fused operation {self.name!r}: {problem}")

        check_straightline(self, refuse)

    @cached_property
    def ops(self) -> tuple[Op, ...]:  # type: ignore[override]
        return tuple(op for step in self.steps for op in (step.inlined()[0] if isinstance(step, Call) else [step]))

    @cached_property
    def consts(self) -> Mapping[str, str]:  # type: ignore[override]
        merged = dict(self.constants)
        for step in self.steps:
            if isinstance(step, Call):
                merged |= step.inlined()[1]
        return merged


Activation = Program | None  # None is relu, which is exact in one operation


def _relu(dst: str, src: str, fmt: str) -> list[Op | Call]:
    return [Op("max.nan", dst, (src, "zero"), fmt)]


def _relu_prime(dst: str, src: str, fmt: str) -> list[Op | Call]:
    """0 where src <= 0, else 1 (as torch has it, also at NaN: the product with up is NaN)."""
    return [Op("set.ge", f"{dst}_off", ("zero", src), fmt), Op("select", dst, (f"{dst}_off", "zero", "one"), fmt)]


def _value(program: Activation, dst: str, src: str, fmt: str) -> list[Op | Call]:
    return _relu(dst, src, fmt) if program is None else [Call(program, dst, src)]


def _slope(program: Activation, dst: str, src: str, fmt: str) -> list[Op | Call]:
    return _relu_prime(dst, src, fmt) if program is None else [Call(program, dst, src)]


def _constants(fmt: str, used: tuple[str, ...], limit: float | None = None) -> dict[str, str]:
    f = get_format(fmt)
    values = {"zero": 0.0, "one": 1.0, "limit": limit or 0.0, "below": -(limit or 0.0)}
    return {name: f.hex(f.constant(values[name], what=f"{name} of a fused operation")) for name in used}


def unary(program: Program) -> Fused:
    """y = p(x)."""
    return Fused(program.name, program.format, ("x",), {}, (Call(program, "y", "x"),), {"y": "y"})


def unary_backward(slope: Program) -> Fused:
    """dx = grad * p'(x)."""
    steps = (Call(slope, "slope", "x"), Op("mul", "dx", ("grad", "slope"), slope.format))
    return Fused(f"{slope.name}.times-grad", slope.format, ("grad", "x"), {}, steps, {"dx": "dx"})


def _clamped(fmt: str, limit: float | None) -> tuple[list[Op | Call], str, str]:
    """The gate limited above, up limited on both sides and raised by 1; what the product reads as gate and up."""
    if limit is None:
        return [], "gate", "up"
    return [
        Op("min.nan", "gate_limited", ("gate", "limit"), fmt),
        Op("min.nan", "up_below", ("up", "limit"), fmt),
        Op("max.nan", "up_limited", ("up_below", "below"), fmt),
        Op("add", "up_raised", ("up_limited", "one"), fmt),
    ], "gate_limited", "up_raised"  # fmt: skip


def gated(fmt: str, program: Activation, limit: float | None = None) -> Fused:
    """y = p(gate) * up; with ``limit`` the clamped unit p(min(gate, limit)) * (clamp(up, -limit, limit) + 1)."""
    before, gate, up = _clamped(fmt, limit)
    value = _value(program, "value", gate, fmt)
    used = (("limit", "below", "one") if limit is not None else ()) + (("zero",) if program is None else ())
    steps = (*before, *value, Op("mul", "y", ("value", up), fmt))
    return Fused(f"{_name(program)}.gated", fmt, ("gate", "up"), _constants(fmt, used, limit), steps, {"y": "y"})


def gated_backward(fmt: str, program: Activation, slope: Activation, limit: float | None = None) -> Fused:
    """Both gradients of :func:`gated` from the incoming one, the gate and up, with nothing saved."""
    before, gate, up = _clamped(fmt, limit)
    value, derivative = _value(program, "value", gate, fmt), _slope(slope, "slope", gate, fmt)
    products = [Op("mul", "d_up", ("grad", "value"), fmt), Op("mul", "scaled", ("grad", "slope"), fmt), Op("mul", "d_gate", ("scaled", up), fmt)]
    masks: list[Op | Call] = []
    used: tuple[str, ...] = ("zero", "one") if program is None else ()
    outputs = {"d_gate": "d_gate", "d_up": "d_up"}
    if limit is not None:  # what was cut off has no gradient
        masks = [Op("set.gt", "gate_cut", ("gate", "limit"), fmt), Op("select", "d_gate_in", ("gate_cut", "zero", "d_gate"), fmt),
                 Op("abs", "up_size", ("up",), fmt), Op("set.gt", "up_cut", ("up_size", "limit"), fmt),
                 Op("select", "d_up_in", ("up_cut", "zero", "d_up"), fmt)]  # fmt: skip
        used, outputs = ("limit", "below", "one", "zero"), {"d_gate": "d_gate_in", "d_up": "d_up_in"}
    steps = (*before, *value, *derivative, *products, *masks)
    return Fused(f"{_name(program)}.gated-backward", fmt, ("grad", "gate", "up"), _constants(fmt, used, limit), steps, outputs)


def _name(program: Activation) -> str:
    return "relu" if program is None else program.name
