"""Triton: ``@triton.jit`` functions over ``inline_asm_elementwise`` with two elements a call of the block."""

from __future__ import annotations

from collections.abc import Sequence

from polyfma.emit.architecture import Architecture
from polyfma.emit.header import identifier
from polyfma.emit.lowering import Block, lower
from polyfma.errors import ProgramError
from polyfma.program import Program, Straightline

DTYPES = {"bf16": "tl.bfloat16", "fp16": "tl.float16", "fp32": "tl.float32"}
_FUNCTION = '''@triton.jit
def {name}(x):
    """{doc}"""
    return tl.inline_asm_elementwise({asm!r}, {constraints!r}, [x], dtype={dtype}, is_pure=True, pack=2)
'''


def inline_asm(block: Block) -> tuple[str, str]:
    """The block on one line with operands $0, $1, ... and its constraints: what Triton, Inductor and LLVM take.

    No single quote and no line break, because Inductor pastes the text into a quoted string.
    """
    ports = [*block.outputs, *block.inputs]
    names = {name: f"${i}" for i, (name, _) in enumerate(ports)}
    letters = [("=" if i < len(block.outputs) else "") + {"b32": "r", "f32": "f"}[kind] for i, (_, kind) in enumerate(ports)]
    return block.text(names, indent="", separator=" "), ",".join(letters)


def triton_asm(program: Straightline, architecture: Architecture, layout: str, outputs: Sequence[str]) -> tuple[str, str]:
    """:func:`inline_asm` as Triton wants it: every operand in a 32-bit integer register."""
    asm, constraints = inline_asm(lower(program, architecture, layout, outputs))
    return asm, constraints.replace("f", "r")


def triton_source(program: Program, outputs: Sequence[str], architecture: Architecture, layout: str | None,
                  comments: Sequence[str]) -> str:  # fmt: skip
    """A Python module with NAME (the program's dtype in and out), NAME_f32_packed and NAME_f32 (fp32 in).

    ``layout`` None gives all three; functions of several outputs return a tuple.
    """
    if program.fmt.width != 16:
        raise ProgramError(f"{program.name} is a {program.format} program; Triton functions are emitted for bf16 and fp16")
    head = "\n".join(f"# {line}" for line in comments)
    functions = [_function(program, outputs, architecture, one) for one in ((layout,) if layout else ("packed", "f32-packed", "f32"))]
    return f"{head}\nimport triton\nimport triton.language as tl\n\n\n" + "\n\n".join(functions)


def _function(program: Program, outputs: Sequence[str], architecture: Architecture, layout: str) -> str:
    asm, constraints = triton_asm(program, architecture, layout, outputs)
    result = "tl.float32" if layout == "f32" else DTYPES[program.format]
    dtype = result if len(outputs) == 1 else f"({', '.join([result] * len(outputs))})"
    suffix = {"packed": "", "f32-packed": "_f32_packed", "f32": "_f32"}[layout]
    taken = {"packed": program.format, "f32-packed": "fp32", "f32": "fp32"}[layout]
    doc = f"{', '.join(outputs)}: {taken} in, {'fp32' if layout == 'f32' else program.format} out; for {architecture} and later."
    return _FUNCTION.format(name=identifier(program) + suffix, doc=doc, asm=asm, constraints=constraints, dtype=dtype)
