"""Lowers a Program to PTX for one pair of lanes: the text that every GPU target wraps.

A 16-bit value is one 32-bit register with both lanes, an fp32 value two registers. On an architecture that
has the packed instruction an operation is that one instruction; below it, a documented sequence that gives
the same bits (a NaN may have another sign there, and so may what takes its sign):

=====================  =======  =============================================================================
operation              below    becomes
=====================  =======  =============================================================================
add, sub, mul (bf16)   sm_90    one fma with 1, -1 or -0
set.ge, set.gt (bf16)  sm_90    both lanes to fp32, two compares, one lop3 that joins the masks
min(.nan).xorsign.abs  sm_86    abs of what may be negative, min(.nan), lop3 for the sign
=====================  =======  =============================================================================

``tanh.approx`` and ``ex2.approx`` have no substitute: an architecture without them is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from polyfma.emit.architecture import DEFAULT, LEAST, Architecture, first_with, get_architecture
from polyfma.errors import ProgramError, UnknownNameError
from polyfma.formats import Format, get_format
from polyfma.program import Op, Straightline

# What goes in and out: 16-bit pairs; two fp32 values in and a 16-bit pair out; two fp32 values in and out.
LAYOUTS = ("packed", "f32-packed", "f32")
SUFFIX = {"bf16": "bf16x2", "fp16": "f16x2", "fp32": "f32"}
OPCODES = {
    "fma": "fma.rn.{t}",
    "fma.relu": "fma.rn.relu.{t}",
    "fma.sat": "fma.rn.sat.{t}",
    "mul": "mul.rn.{t}",
    "add": "add.rn.{t}",
    "sub": "sub.rn.{t}",
    "min": "min.{t}",
    "max": "max.{t}",
    "min.nan": "min.NaN.{t}",
    "max.nan": "max.NaN.{t}",
    "min.xorsign.abs": "min.xorsign.abs.{t}",
    "min.nan.xorsign.abs": "min.NaN.xorsign.abs.{t}",
    "abs": "abs.{t}",
    "neg": "neg.{t}",
    "set.ge": "set.ge.u32.{t}",
    "set.gt": "set.gt.u32.{t}",
    "tanh.approx": "tanh.approx.{t}",
    "ex2.approx": "ex2.approx{ftz}.{t}",
}
# Truth tables of lop3.b32 d, a, b, c, TABLE with a = 0xf0, b = 0xcc, c = 0xaa.
_SELECT = 0xF0 & 0xCC | ~0xF0 & 0xAA & 0xFF
_A_WHERE_C = 0xF0 & 0xAA | 0xCC & ~0xAA & 0xFF
_A_OR_B_AND_C = 0xF0 | 0xCC & 0xAA
_SIGNS = "0x80008000"


def opcode(operation: str, fmt: Format) -> str:
    """The PTX instruction of an operation on one register of the format (``abs.bf16x2``, ``fma.rn.f32``)."""
    ftz = ".ftz" if fmt.name == "bf16" else ""  # bf16 has no ex2.approx without it
    return OPCODES[operation].format(t=SUFFIX[fmt.name], ftz=ftz)


@dataclass(frozen=True)
class Instruction:
    """``code operands...;`` with the destination first."""

    code: str
    operands: tuple[str, ...]


@dataclass(frozen=True)
class Block:
    """PTX for one pair of lanes. ``inputs`` and ``outputs`` are (register, type), type b32 or f32."""

    inputs: tuple[tuple[str, str], ...]
    outputs: tuple[tuple[str, str], ...]
    registers: tuple[tuple[str, str], ...]
    instructions: tuple[Instruction, ...]

    @property
    def cost(self) -> int:
        """Instructions besides moves of constants and lanes, which cost nothing or are counted with a cvt."""
        return sum(not i.code.startswith("mov.") for i in self.instructions)

    def text(self, names: dict[str, str] | None = None, *, indent: str = "  ", separator: str = "\n") -> str:
        """The block in braces; ``names`` replaces input and output registers (``x`` by ``%1``)."""
        names = names or {}
        declared: dict[str, list[str]] = {}
        for register, kind in self.registers:
            declared.setdefault(kind, []).append(register)
        lines = [f".reg .{kind} {', '.join(rs)};" for kind, rs in declared.items()]
        for instruction in self.instructions:
            lines.append(f"{instruction.code} {', '.join(names.get(o, o) for o in instruction.operands)};")
        return separator.join(["{", *(indent + line for line in lines), "}"])


@dataclass
class _Draft:
    program: Straightline
    architecture: Architecture
    registers: list[tuple[str, str]] = field(default_factory=list)
    instructions: list[Instruction] = field(default_factory=list)
    values: dict[str, tuple[str, ...]] = field(default_factory=dict)
    formats: dict[str, Format] = field(default_factory=dict)
    kept: set[str] = field(default_factory=set)

    def new(self, name: str, kind: str, prefix: str = "r") -> str:
        """A register. Prefixes keep apart what names of a program could confuse, and PTX words: ``r`` results, ``r0`` and
        ``r1`` lanes, ``k`` constants, ``h0``, ``h1`` halves, ``s`` what stands for one operation, ``p`` the input
        in a register of its own. Ports are ``x`` or ``x_INPUT``, with 0 and 1 for fp32 lanes, ``y`` and ``y_OUTPUT``."""
        register = f"{prefix}_{name}"
        self.registers.append((register, kind))
        return register

    def put(self, code: str, *operands: str) -> None:
        self.instructions.append(Instruction(code, operands))

    def constant(self, name: str, bits: int | None = None) -> str:
        """A constant of the program (or given bits, for a stand-in) in both lanes of a register, or as an fp32 immediate."""
        pattern = int(self.program.consts[name], 16) if bits is None else bits
        if bits is None and self.program.const_formats[name].width == 32:
            return f"0f{pattern:08X}"
        prefix = "k" if bits is None else "s"  # the program may have a constant of the stand-in's name
        register = f"{prefix}_{name}"
        if register not in self.kept:
            self.kept.add(register)
            self.put("mov.b32", self.new(name, "b32", prefix), f"0x{pattern:04x}{pattern:04x}")
        return register

    def operand(self, name: str, lane: int) -> str:
        if name in self.program.consts:
            return self.constant(name)
        registers = self.values[name]
        return registers[lane if len(registers) > 1 else 0]


def needed_ops(program: Straightline, outputs: Sequence[str]) -> tuple[Op, ...]:
    """The operations that these outputs use, in order."""
    wanted = {program.outputs[o] for o in outputs}
    kept: list[Op] = []
    for op in reversed(program.ops):
        if op.dst in wanted:
            kept.append(op)
            wanted.update(op.src)
    return tuple(reversed(kept))


def check_outputs(program: Straightline, outputs: Sequence[str] | None) -> tuple[str, ...]:
    """The outputs asked for, all by default. Raises UnknownNameError for one that the program lacks."""
    if isinstance(outputs, str) or not (outputs is None or (isinstance(outputs, Sequence) and all(isinstance(o, str) for o in outputs))):
        raise UnknownNameError(f"outputs {outputs!r} must be a list of names; {program.name} has {', '.join(program.outputs)}")
    chosen = tuple(program.outputs) if outputs is None else tuple(dict.fromkeys(outputs))
    unknown = [o for o in chosen if o not in program.outputs]
    if unknown or not chosen:
        raise UnknownNameError(f"{program.name} has no output {', '.join(map(repr, unknown)) or '(none asked for)'};"
                               f" it has {', '.join(program.outputs)}")  # fmt: skip
    return chosen


def check_architecture(program: Straightline, architecture: Architecture, ops: Sequence[Op]) -> None:
    """Raises ProgramError that names the instruction and the first architecture with it, where nothing can stand in."""
    for op in ops:
        first = first_with(op.op, op.format)
        least = first if op.op.endswith(".approx") else min(first, LEAST)  # the others have a stand-in, or are there
        if architecture.number < least:
            named = "cvt.rn" if op.op == "cvt" else opcode(op.op, get_format(op.format))
            since = f"sm_{first}" + (f" (with a longer sequence: sm_{least})" if first > least else "")
            raise ProgramError(f"{program.name} cannot run on {architecture}: it uses {named}, which begins with {since}")
    if architecture.number < LEAST:
        raise ProgramError(f"{program.name} cannot run on {architecture}: programs are lowered for sm_{LEAST} and later")


def lower(program: Straightline, architecture: str | Architecture = DEFAULT, layout: str = "packed",
          outputs: Sequence[str] | None = None) -> Block:  # fmt: skip
    """The PTX block of a program's outputs (all by default) for one pair of lanes.

    ``layout`` is one of LAYOUTS; fp32 inputs are rounded to the program's format first, as the hardware's
    ``cvt.rn`` does. Raises UnknownNameError, and ProgramError where the architecture lacks an instruction.
    """
    architecture = get_architecture(architecture)
    if layout not in LAYOUTS:
        raise UnknownNameError(f"unknown layout {layout!r}; known: {', '.join(LAYOUTS)}")
    chosen = check_outputs(program, outputs)
    ops = needed_ops(program, chosen)
    check_architecture(program, architecture, ops)
    draft = _Draft(program, architecture)
    inputs = tuple(port for name, stem in _ports(program.inputs) for port in _take_input(draft, name, stem, layout))
    for op in ops:
        _lower_op(draft, op)
    results = [r for name in chosen for r in _give_output(draft, name, layout, single=len(chosen) == 1)]
    return Block(inputs, tuple(results), tuple(draft.registers), tuple(draft.instructions))


def _take_input(draft: _Draft, name: str, port: str, layout: str) -> tuple[tuple[str, str], ...]:
    """Registers of one input; its ports are ``port``, or ``port`` with 0 and 1 for two fp32 lanes."""
    fmt = draft.program.fmt
    draft.formats[name] = fmt
    lanes = (f"{port}0", f"{port}1")
    if fmt.width == 32:
        draft.values[name] = lanes
        return tuple((lane, "f32") for lane in lanes)
    register = port if layout == "packed" and name not in draft.program.outputs.values() else draft.new(name, "b32", "p")
    draft.values[name] = (register,)
    if layout == "packed":
        if register != port:  # the input is an output too: another output may be written over its port before
            draft.put("mov.b32", register, port)
        return ((port, "b32"),)
    draft.put(f"cvt.rn.{SUFFIX[fmt.name]}.f32", register, lanes[1], lanes[0])  # the upper lane comes first
    return tuple((lane, "f32") for lane in lanes)


def _ports(inputs: Sequence[str]) -> list[tuple[str, str]]:
    """(input, port): the only input is ``x`` whatever the program calls it, several keep their names behind ``x_``."""
    return [(name, "x" if len(inputs) == 1 else f"x_{name}") for name in inputs]


def _give_output(draft: _Draft, output: str, layout: str, *, single: bool) -> list[tuple[str, str]]:
    """Move a result into the block's output registers: ``y`` for a single one, else ``y_OUTPUT``."""
    stem = "y" if single else f"y_{output}"
    source = draft.values[draft.program.outputs[output]]
    if draft.program.fmt.width == 32 or layout == "f32":
        results = [(f"{stem}0", "f32"), (f"{stem}1", "f32")]
        if draft.program.fmt.width == 32:
            for (register, _), lane in zip(results, source, strict=True):
                draft.put("mov.f32", register, lane)
        else:
            _unpack(draft, draft.program.fmt, source[0], tuple(r for r, _ in results))
        return results
    draft.put("mov.b32", stem, source[0])
    return [(stem, "b32")]


def _unpack(draft: _Draft, fmt: Format, source: str, lanes: tuple[str, ...]) -> None:
    """Both lanes of a 16-bit register as fp32. A bfloat16 is the upper half of its fp32 value."""
    if fmt.name == "bf16":
        draft.put("shl.b32", lanes[0], source, "16")
        draft.put("and.b32", lanes[1], source, "0xffff0000")
        return
    halves = tuple(draft.new(lane, "b16", f"h{i}") for i, lane in enumerate(lanes))
    draft.put("mov.b32", f"{{{halves[0]}, {halves[1]}}}", source)
    for lane, half in zip(lanes, halves, strict=True):
        draft.put("cvt.f32.f16", lane, half)


def _lower_op(draft: _Draft, op: Op) -> None:
    fmt = get_format(op.format)
    draft.formats[op.dst] = fmt
    if op.op == "cvt":
        _convert(draft, op, fmt)
    elif fmt.width == 32:
        _lower_fp32(draft, op)
    else:
        _lower_packed(draft, op, fmt)


def _convert(draft: _Draft, op: Op, fmt: Format) -> None:
    """To fp32: one register a lane; from it: both lanes in one instruction; between 16-bit formats through it."""
    source, name = draft.formats[op.src[0]], op.src[0]
    lanes = draft.values[name]
    if source.width == 16 and source.name != fmt.name:
        wide = (draft.new(op.dst, "f32", "r0"), draft.new(op.dst, "f32", "r1"))
        _unpack(draft, source, lanes[0], wide)
        lanes = wide
    elif source.name == fmt.name:
        draft.values[op.dst] = lanes
        return
    if fmt.width == 32:
        draft.values[op.dst] = lanes
        return
    register = draft.new(op.dst, "b32")
    draft.put(f"cvt.rn.{SUFFIX[fmt.name]}.f32", register, lanes[1], lanes[0])
    draft.values[op.dst] = (register,)


def _lower_fp32(draft: _Draft, op: Op) -> None:
    """Two scalar instructions, one a lane."""
    fmt, registers = get_format("fp32"), []
    for lane in (0, 1):
        operands = [draft.operand(s, lane) for s in op.src]
        register = draft.new(op.dst, "pred" if op.op.startswith("set.") else "f32", f"r{lane}")
        if op.op.startswith("set."):
            draft.put(f"setp.{op.op[4:]}.f32", register, *operands)
        elif op.op == "select":
            draft.put("selp.f32", register, operands[1], operands[2], operands[0])
        elif op.op == "copysign":
            draft.put("copysign.f32", register, operands[1], operands[0])  # PTX takes the sign first
        elif op.op.endswith("xorsign.abs") and draft.architecture.number < first_with(op.op, "fp32"):
            _xorsign_fp32(draft, op, register, operands, lane)
        else:
            draft.put(opcode(op.op, fmt), register, *operands)
        registers.append(register)
    draft.values[op.dst] = tuple(registers)


def _xorsign_fp32(draft: _Draft, op: Op, register: str, operands: list[str], lane: int) -> None:
    a, b, least, sign = (draft.new(op.dst, "f32", f"s{4 * lane + part}") for part in range(4))
    draft.put("abs.f32", a, operands[0])
    draft.put("abs.f32", b, operands[1])
    draft.put(opcode("min.nan" if ".nan" in op.op else "min", get_format("fp32")), least, a, b)
    # Bit operations take an immediate in hexadecimal, not as a float.
    draft.put("xor.b32", sign, *(f"0x{o[2:]}" if o.startswith("0f") else o for o in operands))
    draft.put("lop3.b32", register, least, sign, "0x80000000", f"0x{_A_OR_B_AND_C:02x}")


def _lower_packed(draft: _Draft, op: Op, fmt: Format) -> None:
    operands = [draft.operand(s, 0) for s in op.src]
    register = draft.new(op.dst, "b32")
    draft.values[op.dst] = (register,)
    if op.op == "select":
        draft.put("lop3.b32", register, *operands, f"0x{_SELECT:02x}")
    elif op.op == "copysign":
        draft.put("lop3.b32", register, operands[1], operands[0], _SIGNS, f"0x{_A_WHERE_C:02x}")
    elif draft.architecture.number >= first_with(op.op, fmt.name):
        draft.put(opcode(op.op, fmt), register, *operands)
    else:
        _STAND_INS[op.op](draft, op, fmt, register, operands)


def _as_fma(draft: _Draft, op: Op, fmt: Format, register: str, operands: list[str]) -> None:
    """a + b = a * 1 + b, a - b = b * -1 + a, a * b = a * b + -0: one rounding either way."""
    a, b = operands
    if op.op == "mul":
        third = (a, b, draft.constant("minus_zero", fmt.sign_bit))
    elif op.op == "add":
        third = (a, draft.constant("plus_one", int(fmt.encode(1.0))), b)
    else:
        third = (b, draft.constant("minus_one", int(fmt.encode(-1.0))), a)
    draft.put(opcode("fma", fmt), register, *third)


def _xorsign(draft: _Draft, op: Op, fmt: Format, register: str, operands: list[str]) -> None:
    magnitudes = []
    for position, (name, operand) in enumerate(zip(op.src, operands, strict=True)):
        if name in draft.program.consts and not int(draft.program.consts[name], 16) & fmt.sign_bit:
            magnitudes.append(operand)
            continue
        magnitudes.append(draft.new(op.dst, "b32", f"s{position}"))
        draft.put(opcode("abs", fmt), magnitudes[-1], operand)
    least, sign = draft.new(op.dst, "b32", "s2"), draft.new(op.dst, "b32", "s3")
    draft.put(opcode("min.nan" if ".nan" in op.op else "min", fmt), least, *magnitudes)
    draft.put("xor.b32", sign, *operands)
    draft.put("lop3.b32", register, least, sign, _SIGNS, f"0x{_A_OR_B_AND_C:02x}")


def _compare(draft: _Draft, op: Op, fmt: Format, register: str, operands: list[str]) -> None:
    """BF16 only: each lane's fp32 value, compared, and the two masks joined."""
    lanes = []
    for position, operand in enumerate(operands):
        lanes.append((draft.new(op.dst, "f32", f"s{2 * position}"), draft.new(op.dst, "f32", f"s{2 * position + 1}")))
        _unpack(draft, fmt, operand, lanes[-1])
    masks = [draft.new(op.dst, "b32", f"s{4 + lane}") for lane in (0, 1)]
    for lane, mask in enumerate(masks):
        draft.put(f"set.{op.op[4:]}.u32.f32", mask, lanes[0][lane], lanes[1][lane])
    draft.put("lop3.b32", register, *masks, "0x0000ffff", f"0x{_A_WHERE_C:02x}")


_STAND_INS: dict[str, Callable[[_Draft, Op, Format, str, list[str]], None]] = {
    "add": _as_fma,
    "sub": _as_fma,
    "mul": _as_fma,
    "min.xorsign.abs": _xorsign,
    "min.nan.xorsign.abs": _xorsign,
    "set.ge": _compare,
    "set.gt": _compare,
}
