"""CuTe DSL: ``@dsl_user_op`` functions over ``llvm.inline_asm`` for a pair of fp32 values or a packed register."""

from __future__ import annotations

from collections.abc import Sequence

from polyfma.emit.architecture import Architecture
from polyfma.emit.header import identifier
from polyfma.emit.lowering import Block, lower
from polyfma.emit.triton import inline_asm
from polyfma.errors import ProgramError
from polyfma.program import Program

_IMPORTS = """from cutlass import Float32, Int32
from cutlass._mlir.dialects import llvm
from cutlass.cutlass_dsl import T, dsl_user_op
"""
_ONE = '''@dsl_user_op
def {name}({parameters}, *, loc=None, ip=None) -> {annotation}:
    """{doc}"""
    operands = [{operands}]
    y = llvm.inline_asm({type}, operands, {asm!r}, {constraints!r},
                        has_side_effects=False, is_align_stack=False, asm_dialect=llvm.AsmDialect.AD_ATT, loc=loc, ip=ip)
    return {result}
'''
_SUFFIXES = {"packed": "_packed", "f32-packed": "", "f32": "_f32"}
_TYPES = {"b32": ("Int32", "T.i32()"), "f32": ("Float32", "T.f32()")}


def cute_source(program: Program, outputs: Sequence[str], architecture: Architecture, layout: str | None,
                comments: Sequence[str]) -> str:  # fmt: skip
    """A Python module with NAME (two Float32 in, a packed Int32 out), NAME_f32 (out as two Float32), NAME_packed (Int32 in)."""
    if program.fmt.width != 16:
        raise ProgramError(f"{program.name} is a {program.format} program; CuTe functions are emitted for bf16 and fp16")
    head = "\n".join(f"# {line}" for line in comments)
    layouts = (layout,) if layout else ("f32-packed", "f32", "packed")
    functions = [cute_function(identifier(program) + _SUFFIXES[one], program, outputs, architecture, one) for one in layouts]
    return f"{head}\n{_IMPORTS}\n\n" + "\n\n".join(functions)


def cute_function(name: str, program: Program, outputs: Sequence[str], architecture: Architecture, layout: str) -> str:
    """One ``dsl_user_op``; several results come as a tuple, each output's lanes in order."""
    block = lower(program, architecture, layout, outputs)
    asm, constraints = inline_asm(block)
    parameters = ", ".join(f"{register}: {_TYPES[kind][0]}" for register, kind in block.inputs)
    operands = ", ".join(f"{_TYPES[kind][0]}({register}).ir_value(loc=loc, ip=ip)" for register, kind in block.inputs)
    taken = f"a packed {program.format} pair" if layout == "packed" else "two fp32 values"
    given = "two fp32 values" if layout == "f32" else f"a packed {program.format} pair"
    each = " for each" if len(outputs) > 1 else ""
    return _ONE.format(name=name, parameters=parameters, operands=operands, asm=asm, constraints=constraints,
                       doc=f"{program.name}, {', '.join(outputs)}: {taken} in, {given} out{each}; {architecture} and later.",
                       **_results(block))  # fmt: skip


def _results(block: Block) -> dict[str, str]:
    """How the assembly's result becomes Python values: itself, or the members of a structure."""
    types = [_TYPES[kind] for _, kind in block.outputs]
    if len(types) == 1:
        return {"annotation": types[0][0], "type": types[0][1], "result": f"{types[0][0]}(y)"}
    members = ", ".join(f"{outer}(llvm.extractvalue({inner}, y, [{i}], loc=loc, ip=ip))" for i, (outer, inner) in enumerate(types))
    structure = f"llvm.StructType.get_literal([{', '.join(inner for _, inner in types)}])"
    return {"annotation": f"tuple[{', '.join(outer for outer, _ in types)}]", "type": structure, "result": f"({members})"}
