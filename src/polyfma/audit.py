"""What a program becomes: machine instructions by pipe for an architecture, beside the program's own count.

The block of :mod:`polyfma.emit.lowering` is put into straight-line kernels that load, compute and store 8 and 40 pairs;
kernels without the block are taken off. A 32nd of the difference is what a pair costs, the rest what a thread pays once
for constants in registers (moves, and the PRMT with which ptxas doubles a 16-bit constant). A loop would not tell the
two apart: ptxas makes the constants anew in every pass of a short one.

The machine may differ from the program's own count, which is of operations: ``abs.bf16x2`` is an HFMA2 on the FMA pipe
at half its rate, ``abs.f16x2`` a free modifier of the next instruction, ``neg`` too; a packed ``tanh.approx`` or
``ex2.approx`` is two MUFU and a PRMT that joins them.
"""

from __future__ import annotations

import re
import tempfile
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from polyfma.emit.architecture import Architecture, get_architecture
from polyfma.emit.lowering import Block, Instruction, lower
from polyfma.emit.ptx import ptx_version
from polyfma.emit.tools import assemble, disassemble
from polyfma.errors import ProgramError
from polyfma.hardware.rates import RATES, SOURCE, Rates
from polyfma.program import Program

_PAIRS = (8, 40)
_ADDRESSING = ("NOP", "BRA", "EXIT", "LDC", "ULDC", "LDCU", "LDG", "STG", "S2R")
Ports = tuple[tuple[str, str], ...]
PIPES = ("fma", "alu", "cvt", "mufu", "move", "other")
# First part of a SASS instruction: its pipe. HADD2.F32 is the conversion from FP16; an HFMA2 or IMAD that only brings a
# constant or copies is found by its operands.
_PIPE = {
    **dict.fromkeys(("HFMA2", "HMUL2", "HADD2", "FFMA", "FMUL", "FADD", "FFMA2", "FMUL2", "FADD2"), "fma"),
    **dict.fromkeys(("HMNMX2", "HSET2", "HSETP2", "FMNMX", "FSET", "FSETP", "FSEL", "SEL", "LOP3", "VHMNMX", "SHF", "SHL", "LOP", "FMNMX3", "PRMT",
                     "ISETP", "IADD3", "PLOP3", "HMNMX"), "alu"),
    **dict.fromkeys(("F2F", "F2FP", "I2F", "F2I"), "cvt"),
    "MUFU": "mufu",
    **dict.fromkeys(("MOV", "UMOV", "IMAD", "CS2R", "R2UR", "MOV64IUR", "UPRMT"), "move"),
}  # fmt: skip
_LINE = re.compile(r"/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\d\s+)?([A-Z][A-Z0-9_.]*)\s*([^;]*);")


@dataclass(frozen=True)
class Audit:
    """Machine instructions of a program for one pair of lanes.

    ``pipes`` and ``opcodes`` are for a pair, ``setup`` once for a thread; ``claimed`` is the program's own count.
    ``cost`` is the busiest pipe in clocks of an SM for 32 pairs, None where the rates are unknown.
    """

    program: str
    digest: str
    architecture: str
    assembler: str
    layout: str
    pipes: Mapping[str, float]
    opcodes: Mapping[str, float]
    setup: Mapping[str, int]
    claimed: Mapping[str, int]
    cost: float | None
    rates: str

    @property
    def instructions(self) -> float:
        """Machine instructions for a pair."""
        return sum(self.pipes.values())

    @property
    def local_memory(self) -> bool:
        """Whether a register was spilled."""
        return any(o.startswith(("LDL", "STL")) for o in (*self.opcodes, *self.setup))

    def to_dict(self) -> dict[str, Any]:
        plain = {k: dict(v) if isinstance(v, Mapping) else v for k, v in vars(self).items()}
        return plain | {"instructions": self.instructions, "local_memory": self.local_memory}


def audit(program: Program, arch: str | Architecture = "sm_90", *, layout: str = "packed") -> Audit:
    """Compile a program for an architecture and count its machine instructions by pipe.

    Needs ptxas and cuobjdump, of the triton package or a CUDA toolkit. Raises MissingToolError, UnknownNameError, and
    ProgramError where the architecture lacks an instruction.
    """
    if not isinstance(program, Program):
        raise ProgramError(f"audit takes a Program, not {type(program).__name__}; polyfma.load(name) gives one")
    architecture = get_architecture(arch)
    block = lower(program, architecture, layout)
    version, few = _own_code(block, architecture, _PAIRS[0])
    _, many = _own_code(block, architecture, _PAIRS[1])
    each = {o: _clean((many[o] - few[o]) / (_PAIRS[1] - _PAIRS[0])) for o in sorted({*few, *many})}
    opcodes = {o: n for o, n in each.items() if n > 0}
    setup = {o: n for o in each if (n := round(few[o] - _PAIRS[0] * each[o])) > 0 and (_pipe(o) == "move" or o == "PRMT")}
    pipes = dict.fromkeys(PIPES, 0.0)
    for opcode, count in opcodes.items():
        pipes[_pipe(opcode)] += count
    pipes = {p: _clean(n) for p, n in pipes.items()}
    rates = RATES.get(architecture.number)
    return Audit(program.name, program.digest, str(architecture), version, layout, pipes, opcodes, setup,
                 {p: getattr(program.counts, p) for p in ("fma", "alu", "cvt", "mufu")},
                 None if rates is None else _cost(opcodes, rates), SOURCE if rates else "unknown for this architecture")  # fmt: skip


def kernel(block: Block, architecture: Architecture, pairs: int) -> str:
    """PTX of a kernel that for each of some pairs loads the inputs, runs the block and stores the outputs."""
    step, lines = 4 * max(len(block.inputs), len(block.outputs)), []
    for i in range(pairs):
        names = {name: f"{name}_{i}" for name, _ in (*block.inputs, *block.outputs)}
        lines += [f".reg .{kind} {names[name]};" for name, kind in (*block.inputs, *block.outputs)]
        lines += [f"ld.global.nc.{kind} {names[name]}, [%rd1+{step * i + 4 * k}];" for k, (name, kind) in enumerate(block.inputs)]
        lines.append(block.text(names))
        lines += [f"st.global.{kind} [%rd2+{step * i + 4 * k}], {names[name]};" for k, (name, kind) in enumerate(block.outputs)]
    body = "\n".join(lines)
    return (f".version {ptx_version(architecture)}\n.target {architecture}\n.address_size 64\n\n"
            f".visible .entry audited (.param .u64 from, .param .u64 to)\n{{\n.reg .b64 %rd1, %rd2;\n"
            "ld.param.u64 %rd1, [from];\nld.param.u64 %rd2, [to];\ncvta.to.global.u64 %rd1, %rd1;\ncvta.to.global.u64 %rd2, %rd2;\n"
            f"{body}\nret;\n}}\n")  # fmt: skip


def _own_code(block: Block, architecture: Architecture, pairs: int) -> tuple[str, Counter[str]]:
    """The assembler's version, and the instructions of so many pairs beyond those of loads and stores."""
    version, code = _machine_code(kernel(block, architecture, pairs), architecture)
    code.subtract(_ports_code(block.inputs, block.outputs, architecture, pairs))
    return version, code


@cache
def _ports_code(inputs: Ports, outputs: Ports, architecture: Architecture, pairs: int) -> Counter[str]:
    """The code of the same loads and stores with nothing between them."""
    moves = tuple(Instruction("mov.b32", (name, inputs[0][0])) for name, _ in outputs)
    return _machine_code(kernel(Block(inputs, outputs, (), moves), architecture, pairs), architecture)[1]


def _machine_code(text: str, architecture: Architecture) -> tuple[str, Counter[str]]:
    """The assembler's version, and how often each instruction stands in the code, addressing left out."""
    with tempfile.TemporaryDirectory() as folder:
        source, cubin = Path(folder) / "kernel.ptx", Path(folder) / "kernel.cubin"
        source.write_text(text)
        version = assemble(source, cubin, architecture)
        lines = _LINE.findall(disassemble(cubin))
    found: Counter[str] = Counter()
    for opcode, operands in lines:
        if opcode.split(".")[0] not in _ADDRESSING:
            # HFMA2.MMA is HFMA2 on the other half of the pipe.
            found[_named(opcode.replace(".MMA", ""), operands)] += 1
    return version, found


def _clean(count: float) -> float:
    """Where a constant is made anew now and then, the count for a pair is not whole: to the nearest eighth."""
    return round(8 * count) / 8


def _named(opcode: str, operands: str) -> str:
    """The opcode, marked where it only makes a constant: 0 * 0 + constant, or a PRMT of one register's half with itself."""
    stem = opcode.split(".")[0]
    _, *sources = (o.strip() for o in operands.split(","))
    zeros_and_numbers = stem in ("HFMA2", "FFMA", "HADD2", "FADD") and not any(re.search(r"R\d", o) for o in sources)
    if stem == "HFMA2" and sum(o.lstrip("-").split(".")[0] == "RZ" for o in sources) == 2 and "|" in operands:
        return f"{opcode} (abs)"
    if stem == "IMAD" and not opcode.startswith("IMAD.MOV"):
        return f"{opcode} (shift)"
    doubled = stem == "PRMT" and sources[1:2] == ["0x5410"] and sources[0].split(".")[0] == sources[2].split(".")[0]
    return f"MOV ({opcode})" if zeros_and_numbers or doubled else opcode


def _pipe(opcode: str) -> str:
    stem = opcode.split(" ")[0].split(".")[0]
    if opcode.startswith("HADD2.F32"):
        return "cvt"
    if opcode.endswith("(shift)"):  # IMAD.U32 and IMAD.SHL multiply by a power of two, on the FMA pipe
        return "fma"
    return _PIPE.get(stem, "other")


def _cost(opcodes: Mapping[str, float], rates: Rates) -> float:
    """Clocks of an SM for 32 pairs on the busiest pipe; min, max, logic and conversions share one."""
    busy = dict.fromkeys(PIPES, 0.0)
    for opcode, count in opcodes.items():
        pipe = _pipe(opcode)
        rate = {"alu": rates.alu, "cvt": rates.cvt, "mufu": rates.mufu}.get(pipe)
        if pipe == "fma":
            rate = rates.fma_f32 if opcode[0] == "F" else rates.fma_bf16 if ".BF16" in opcode else rates.fma_f16
            if opcode.endswith("(abs)"):  # only one half of the pipe takes it: half the rate, measured on an H200
                rate //= 2
        if rate:
            busy["alu" if pipe == "cvt" else pipe] += 32 * count / rate
    return max(busy.values())
