"""Straight-line fp32 arithmetic of one lane, written down step by step: what exact sequences are made of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

Operand = str | float


@dataclass(frozen=True)
class Step:
    """``opcode dst, src...`` as in PTX. An operand is a register or an fp32 immediate.

    Registers hold fp32; the destination of ``setp`` is a predicate.
    """

    opcode: str
    dst: str
    src: tuple[Operand, ...]


def _fp32(value: float) -> float:
    return float(np.float32(value))


class Lane:
    """A sequence under construction; every method appends a step and returns the register it wrote."""

    def __init__(self, fmt: str) -> None:
        self.format = fmt
        self.steps: list[Step] = []

    def op(self, opcode: str, *src: Operand) -> str:
        dst = f"{'p' if opcode.startswith('setp') else 'r'}{len(self.steps)}"
        operands = tuple(v if isinstance(v, str) else _fp32(v) for v in src)
        self.steps.append(Step(opcode, dst, operands))
        return dst

    def mul(self, a: Operand, b: Operand) -> str:
        return self.op("mul.rn.f32", a, b)

    def add(self, a: Operand, b: Operand) -> str:
        return self.op("add.rn.f32", a, b)

    def fma(self, a: Operand, b: Operand, c: Operand) -> str:
        return self.op("fma.rn.f32", a, b, c)

    def exp2(self, a: str) -> str:
        return self.op("ex2.approx.ftz.f32", a)

    def reciprocal(self, a: str) -> str:
        return self.op("rcp.approx.ftz.f32", a)

    def horner(self, coefficients: Sequence[float], a: str) -> str:
        """A polynomial of degree one or more, coefficients from the constant upwards."""
        *rest, result = coefficients
        register: Operand = result
        for c in reversed(rest):
            register = self.fma(register, a, c)
        return str(register)

    def with_sign_of(self, x: str, magnitude: str) -> str:
        return self.op("copysign.f32", x, magnitude)

    def finished(self) -> tuple[Step, ...]:
        """The steps, the last one writing ``y``."""
        return self.named({self.steps[-1].dst: "y"})

    def named(self, names: dict[str, str]) -> tuple[Step, ...]:
        """The steps with other names for some registers."""
        return tuple(Step(s.opcode, names.get(s.dst, s.dst), tuple(names.get(v, v) if isinstance(v, str) else v for v in s.src)) for s in self.steps)
