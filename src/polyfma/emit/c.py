"""Portable C99: a function on one bit pattern, with the arithmetic it needs (``arithmetic.h``) in front."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from importlib.resources import files

from polyfma.emit.header import guarded, identifier
from polyfma.emit.lowering import needed_ops
from polyfma.errors import ProgramError
from polyfma.program import Op, Program


@cache
def arithmetic() -> str:
    """The text of ``arithmetic.h``, guarded so that several emitted files may be included together."""
    return files("polyfma.emit").joinpath("arithmetic.h").read_text(encoding="utf-8")


def c_source(program: Program, outputs: Sequence[str], comments: Sequence[str]) -> str:
    """A C99 source or header: ``uintN_t polyfma_NAME(uintN_t x)``, one function an output where there are several.

    Raises ProgramError for a program with a hardware function, which has no portable form.
    """
    comment = "\n".join(f" * {line}" for line in comments)
    functions = "\n".join(c_function(program, output, single=len(outputs) == 1) for output in outputs)
    return f"/*\n{comment}\n */\n{arithmetic()}\n{guarded(identifier(program), program.digest, functions)}"


def c_name(program: Program, output: str, *, single: bool) -> str:
    return f"polyfma_{identifier(program)}" + ("" if single else f"_{output}")


def c_function(program: Program, output: str, *, single: bool = True) -> str:
    """One output's function alone, without the arithmetic."""
    ops = needed_ops(program, (output,))
    width = program.fmt.width
    used = {*(s for op in ops for s in op.src), program.outputs[output]}
    lines = [f"PF_UNUSED static inline uint{width}_t {c_name(program, output, single=single)}(uint{width}_t v_{program.inputs[0]}) {{"]
    for name, text in program.consts.items():
        if name in used:
            lines.append(f"  const uint32_t v_{name} = 0x{text}u; /* {program.const_value(name):.9g} */")
    if program.inputs[0] not in used:
        lines.append(f"  (void)v_{program.inputs[0]};")
    formats = {program.inputs[0]: program.format}
    for op in ops:
        formats[op.dst] = op.format
        lines.append(f"  const uint32_t v_{op.dst} = {_call(program, op, formats)};")
    lines += [f"  return (uint{width}_t)v_{program.outputs[output]};", "}", ""]
    return "\n".join(lines)


def _call(program: Program, op: Op, formats: dict[str, str]) -> str:
    if op.op.endswith(".approx"):
        raise ProgramError(f"{program.name} uses {op.op}, the GPU's own function, which has no portable C form; emit it for ptx,"
                           " cuda, triton or cute")  # fmt: skip
    if op.op == "cvt":
        return f"pf_cvt(pf_{op.format}, pf_{formats[op.src[0]]}, v_{op.src[0]})"
    return f"pf_{op.op.replace('.', '_')}(pf_{op.format}, {', '.join(f'v_{s}' for s in op.src)})"
