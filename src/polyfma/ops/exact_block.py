"""PTX of the exact operations: fp32 sequences of both lanes around one rounding to the format.

Products of a gated unit and of a gradient are taken in fp32 too, so the result is rounded once.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from polyfma.emit.architecture import Architecture, first_with
from polyfma.emit.lowering import SUFFIX, Block, Instruction
from polyfma.errors import ProgramError
from polyfma.formats import get_format
from polyfma.ops.choice import Choice
from polyfma.ops.exact import both_steps, steps
from polyfma.ops.lane import Step


def exact_block(choice: Choice, kind: str, architecture: Architecture, layout: str, inputs: Sequence[str], outputs: Sequence[str]) -> Block:
    """The block of one kind of operation (:mod:`polyfma.ops.operation`); ``layout`` is packed or f32."""
    lane = _needed(_lane(choice, kind), outputs)
    draft = _Draft(choice.format, layout)
    ports_in = [port for name in inputs for port in draft.take(name, f"x_{name}" if len(inputs) > 1 else "x")]
    for step in (part for whole in lane for part in _available(whole, architecture)):
        draft.put_lanes(step)
    ports_out = [port for name in outputs for port in draft.give(name, f"y_{name}" if len(outputs) > 1 else "y")]
    return Block(tuple(ports_in), tuple(ports_out), tuple(draft.registers), tuple(draft.instructions))


def _available(step: Step, architecture: Architecture) -> list[Step]:
    """The step, or what stands in for it where the architecture lacks it: a clamp from both sides below sm_86."""
    if not step.opcode.startswith("min.NaN.xorsign.abs") or architecture.number >= first_with("min.nan.xorsign.abs", "fp32"):
        return [step]
    x, end = step.src
    if isinstance(end, str):
        raise ProgramError(f"{step.opcode} of two registers has no stand-in on {architecture}")
    return [Step("min.NaN.f32", f"{step.dst}_above", (x, end)), Step("max.NaN.f32", step.dst, (f"{step.dst}_above", -end))]


def _lane(choice: Choice, kind: str) -> list[Step]:
    """One lane's fp32 sequence from the named inputs to the named outputs."""
    if kind == "unary":
        return _call(choice, "forward", "x", "y")
    if kind == "unary_backward":
        return [*_call(choice, "backward", "x", "slope"), Step("mul.rn.f32", "dx", ("grad", "slope"))]
    before, gate, up = _clamped(choice.limit)
    if kind == "gated":
        return [*before, *_call(choice, "forward", gate, "near"), *_zero_kept(gate), Step("mul.rn.f32", "y", ("value", up))]
    both = _renamed(both_steps(choice.function, choice.format), {"x": gate, "value": "near", "slope": "slope"}, "f")
    products = [Step("mul.rn.f32", "du", ("grad", "value")), Step("mul.rn.f32", "scaled", ("grad", "slope")), Step("mul.rn.f32", "dg", ("scaled", up))]
    return [*before, *both, *_zero_kept(gate), *products, *_cut(choice.limit)]


def _zero_kept(gate: str) -> list[Step]:
    """A gate of 0 gives a value far below the format, so that ties of subnormals round right: times up it could be seen."""
    return [Step("setp.eq.f32", "is_zero", (gate, 0.0)), Step("selp.f32", "value", (gate, "near", "is_zero"))]


def _clamped(limit: float | None) -> tuple[list[Step], str, str]:
    if limit is None:
        return [], "gate", "up"
    return [Step("min.NaN.f32", "gate_limited", ("gate", limit)), Step("min.NaN.f32", "up_below", ("up", limit)),
            Step("max.NaN.f32", "up_limited", ("up_below", -limit)), Step("add.rn.f32", "up_raised", ("up_limited", 1.0))], "gate_limited", "up_raised"  # fmt: skip


def _cut(limit: float | None) -> list[Step]:
    """What the clamp cut off has no gradient."""
    if limit is None:
        return [Step("mov.f32", "d_gate", ("dg",)), Step("mov.f32", "d_up", ("du",))]
    return [Step("setp.gt.f32", "gate_cut", ("gate", limit)), Step("selp.f32", "d_gate", (0.0, "dg", "gate_cut")),
            Step("abs.f32", "up_size", ("up",)), Step("setp.gt.f32", "up_cut", ("up_size", limit)),
            Step("selp.f32", "d_up", (0.0, "du", "up_cut"))]  # fmt: skip


def _call(choice: Choice, direction: str, source: str, result: str) -> list[Step]:
    """The function's sequence with its registers behind the result's name."""
    sequence = steps(choice.function, direction, choice.format, factor=result != "y")
    return _renamed(sequence, {"x": source, "y": result}, result)


def _renamed(sequence: Sequence[Step], names: dict[str, str], prefix: str) -> list[Step]:
    def name(register: str) -> str:
        return names.get(register, f"{prefix}_{register}")

    return [Step(s.opcode, name(s.dst), tuple(name(v) if isinstance(v, str) else v for v in s.src)) for s in sequence]


def _needed(lane: list[Step], outputs: Sequence[str]) -> list[Step]:
    wanted, kept = set(outputs), []
    for step in reversed(lane):
        if step.dst in wanted:
            kept.append(step)
            wanted.update(s for s in step.src if isinstance(s, str))
    return kept[::-1]


class _Draft:
    """Registers: ``f0_NAME`` and ``f1_NAME`` are the two lanes."""

    def __init__(self, fmt: str, layout: str) -> None:
        self.fmt, self.layout = get_format(fmt), layout
        self.registers: list[tuple[str, str]] = []
        self.instructions: list[Instruction] = []

    def new(self, register: str, kind: str) -> str:
        self.registers.append((register, kind))
        return register

    def put(self, code: str, *operands: str) -> None:
        self.instructions.append(Instruction(code, operands))

    def take(self, name: str, port: str) -> tuple[tuple[str, str], ...]:
        lanes = [self.new(f"f{i}_{name}", "f32") for i in (0, 1)]
        if self.layout == "packed":
            self.unpack(port, lanes, name)
            return ((port, "b32"),)
        packed = self.new(f"b_{name}", "b32")  # an fp32 input is rounded to the format first, as the eager operator gets it
        self.put(f"cvt.rn.{SUFFIX[self.fmt.name]}.f32", packed, f"{port}1", f"{port}0")
        self.unpack(packed, lanes, name)
        return ((f"{port}0", "f32"), (f"{port}1", "f32"))

    def unpack(self, source: str, lanes: Sequence[str], name: str) -> None:
        """Both lanes of a 16-bit register as fp32. A bfloat16 is the upper half of its fp32 value."""
        if self.fmt.name == "bf16":
            self.put("shl.b32", lanes[0], source, "16")
            self.put("and.b32", lanes[1], source, "0xffff0000")
            return
        halves = [self.new(f"h{i}_{name}", "b16") for i in (0, 1)]
        self.put("mov.b32", f"{{{halves[0]}, {halves[1]}}}", source)
        for lane, half in zip(lanes, halves, strict=True):
            self.put("cvt.f32.f16", lane, half)

    def give(self, name: str, port: str) -> tuple[tuple[str, str], ...]:
        packed = port if self.layout == "packed" else self.new(f"b_{port}", "b32")
        self.put(f"cvt.rn.{SUFFIX[self.fmt.name]}.f32", packed, f"f1_{name}", f"f0_{name}")
        if self.layout == "packed":
            return ((port, "b32"),)
        self.unpack(packed, (f"{port}0", f"{port}1"), f"out_{name}")
        return ((f"{port}0", "f32"), (f"{port}1", "f32"))

    def put_lanes(self, step: Step) -> None:
        kind = "pred" if step.opcode.startswith("setp") else "f32"
        for i in (0, 1):
            operands = [f"f{i}_{s}" if isinstance(s, str) else _immediate(s) for s in step.src]
            self.put(step.opcode, self.new(f"f{i}_{step.dst}", kind), *operands)


def _immediate(value: float) -> str:
    """An fp32 immediate as PTX writes it."""
    return f"0f{struct.unpack('>I', struct.pack('>f', value))[0]:08X}"
