"""Arithmetic on pairs of fp32 accumulator values, in registers: what a kernel's hooks are made of.

Everything here runs while CuTe traces a kernel. A 16-bit pair is one Int32 register, the first value in its lower half.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache

from cutlass import Float32, Int32
from cutlass._mlir.dialects import llvm
from cutlass.cutlass_dsl import T

from polyfma.emit.lowering import SUFFIX, lower, opcode
from polyfma.emit.triton import inline_asm
from polyfma.formats import get_format
from polyfma.program import Program, Straightline

Operand = Float32 | Int32
_TYPES = {"b32": (Int32, T.i32), "f32": (Float32, T.f32)}


def assembly(text: str, constraints: str, operands: Sequence[Operand], results: Sequence[str], *, in_place: bool = False) -> tuple[Operand, ...]:
    """One block of PTX; ``results`` are "b32" or "f32". With ``in_place`` the compiler may not move it past what waits for a product."""
    types = [_TYPES[kind][1]() for kind in results]
    whole = types[0] if len(types) == 1 else llvm.StructType.get_literal(types)
    value = llvm.inline_asm(whole, [o.ir_value() for o in operands], text, constraints,
                            has_side_effects=in_place, is_align_stack=False, asm_dialect=llvm.AsmDialect.AD_ATT)  # fmt: skip
    parts = [value] if len(types) == 1 else [llvm.extractvalue(t, value, [i]) for i, t in enumerate(types)]
    return tuple(_TYPES[kind][0](part) for kind, part in zip(results, parts, strict=True))


@cache
def _block(program: Straightline, layout: str) -> tuple[str, str, tuple[str, ...]]:
    block = lower(program, "sm_90", layout)
    text, constraints = inline_asm(block)
    return text, constraints, tuple(kind for _, kind in block.outputs)


def run(program: Straightline, layout: str, *operands: Operand) -> tuple[Operand, ...]:
    """A program's instructions on one pair: ``layout`` as in :func:`polyfma.emit.lowering.lower`."""
    text, constraints, results = _block(program, layout)
    return assembly(text, constraints, operands, results)


def narrow(x0: Float32, x1: Float32, fmt: str, *, in_place: bool = False) -> Int32:
    """Both values rounded to ``fmt`` (bf16, fp16), packed."""
    (pair,) = assembly(f"cvt.rn.{SUFFIX[fmt]}.f32 $0, $2, $1;", "=r,f,f", (x0, x1), ("b32",), in_place=in_place)
    return pair


def widen(pair: Int32, fmt: str) -> tuple[Float32, Float32]:
    """Both values of a packed pair as fp32, exactly."""
    text = {
        "bf16": "shl.b32 $0, $2, 16; and.b32 $1, $2, 0xffff0000;",
        "fp16": "{ .reg .b16 h0, h1; mov.b32 {h0, h1}, $2; cvt.f32.f16 $0, h0; cvt.f32.f16 $1, h1; }",
    }[fmt]
    return assembly(text, "=f,=f,r", (pair,), ("f32", "f32"))


def packed(operation: str, fmt: str, *operands: Int32, in_place: bool = False) -> Int32:
    """One packed instruction of a Program's operation: ``packed("fma", "bf16", a, b, c)``."""
    names = ", ".join(f"${i}" for i in range(len(operands) + 1))
    text = f"{opcode(operation, get_format(fmt))} {names};"
    (pair,) = assembly(text, ",".join(["=r", *"r" * len(operands)]), operands, ("b32",), in_place=in_place)
    return pair


def both(value: float, fmt: str) -> Int32:
    """A constant in both halves of a register."""
    bits = int(get_format(fmt).encode(value)) * 0x10001
    return Int32(bits - (1 << 32) if bits >> 31 else bits)


@cache
def head_of(program: Program) -> Program:
    """All but the last operation of a program with one output: its outputs are that operation's operands."""
    kept = [name for name in program.ops[-1].src if name not in program.consts]
    return replace(program, name=f"{program.name}.head", ops=program.ops[:-1], outputs={n: n for n in kept})


def finish(program: Program, values: Sequence[Int32]) -> Int32:
    """The last operation of a program on what :func:`head_of` gave, where it stands."""
    last, given = program.ops[-1], iter(values)
    operands = [both(program.const_value(n), program.format) if n in program.consts else next(given) for n in last.src]
    return packed(last.op, program.format, *operands, in_place=True)


def unary(operation: str, x: Float32) -> Float32:
    """One fp32 instruction: ``unary("tanh.approx.f32", x)``."""
    (y,) = assembly(f"{operation} $0, $1;", "=f,f", (x,), ("f32",))
    return y

