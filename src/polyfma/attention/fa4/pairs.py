"""Arithmetic on pairs of fp32 accumulator values, in registers: what a kernel's hooks are made of.

Everything here runs while CuTe traces a kernel. A 16-bit pair is one Int32 register, the first value in its lower half.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from cutlass import Float32, Int32
from cutlass._mlir.dialects import llvm
from cutlass.cutlass_dsl import T

from polyfma.catalog import load
from polyfma.emit.lowering import lower
from polyfma.emit.triton import inline_asm
from polyfma.program import Straightline

Operand = Float32 | Int32
_TYPES = {"b32": (Int32, T.i32), "f32": (Float32, T.f32)}


def assembly(text: str, constraints: str, operands: Sequence[Operand], results: Sequence[str]) -> tuple[Operand, ...]:
    """One block of PTX without side effects; ``results`` are "b32" or "f32"."""
    types = [_TYPES[kind][1]() for kind in results]
    whole = types[0] if len(types) == 1 else llvm.StructType.get_literal(types)
    value = llvm.inline_asm(whole, [o.ir_value() for o in operands], text, constraints,
                            has_side_effects=False, is_align_stack=False, asm_dialect=llvm.AsmDialect.AD_ATT)  # fmt: skip
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


def narrow(x0: Float32, x1: Float32, fmt: str) -> Int32:
    """Both values rounded to ``fmt`` (bf16, fp16), packed."""
    (pair,) = assembly(f"cvt.rn.{SUFFIX[fmt]}.f32 $0, $2, $1;", "=r,f,f", (x0, x1), ("b32",))
    return pair


def widen(pair: Int32, fmt: str) -> tuple[Float32, Float32]:
    """Both values of a packed pair as fp32, exactly."""
    text = {
        "bf16": "shl.b32 $0, $2, 16; and.b32 $1, $2, 0xffff0000;",
        "fp16": "{ .reg .b16 h0, h1; mov.b32 {h0, h1}, $2; cvt.f32.f16 $0, h0; cvt.f32.f16 $1, h1; }",
    }[fmt]
    return assembly(text, "=f,=f,r", (pair,), ("f32", "f32"))


def packed(operation: str, fmt: str, *operands: Int32) -> Int32:
    """One packed instruction: ``packed("fma.rn", "bf16", a, b, c)``."""
    names = ", ".join(f"${i}" for i in range(len(operands) + 1))
    (pair,) = assembly(f"{operation}.{SUFFIX[fmt]} {names};", ",".join(["=r", *"r" * len(operands)]), operands, ("b32",))
    return pair


def unary(operation: str, x: Float32) -> Float32:
    """One fp32 instruction: ``unary("tanh.approx.f32", x)``."""
    (y,) = assembly(f"{operation} $0, $1;", "=f,f", (x,), ("f32",))
    return y


SUFFIX = {"bf16": "bf16x2", "fp16": "f16x2"}
