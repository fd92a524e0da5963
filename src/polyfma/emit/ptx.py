"""PTX: a module with one device function, whose braces hold the inline block."""

from __future__ import annotations

from collections.abc import Sequence

from polyfma.emit.architecture import Architecture
from polyfma.emit.header import identifier
from polyfma.emit.lowering import lower
from polyfma.program import Program

# The oldest PTX version whose assembler knows the architecture and every instruction here.
_VERSIONS = ((0, "7.8"), (100, "8.6"), (103, "8.8"), (110, "9.0"), (120, "8.7"), (121, "8.8"))


def ptx_version(architecture: Architecture) -> str:
    if architecture.name.endswith("f"):
        return "8.8"
    if architecture.name == "sm_90a":
        return "8.0"
    return next(v for least, v in reversed(_VERSIONS) if architecture.number >= least)


def ptx_source(program: Program, outputs: Sequence[str], architecture: Architecture, layout: str,
               comments: Sequence[str]) -> str:  # fmt: skip
    """A PTX module: ``.func (outputs) NAME (inputs)``. The block in braces can be pasted into inline assembly."""
    block = lower(program, architecture, layout, outputs)
    head = "\n".join(f"// {line}" for line in comments)
    results, arguments = (", ".join(f".reg .{kind} {name}" for name, kind in ports) for ports in (block.outputs, block.inputs))
    body = block.text(indent="    ").replace("\n}", "\n  }")
    return (f"{head}\n// {_layout_line(layout, program)}\n.version {ptx_version(architecture)}\n.target {architecture}\n.address_size 64\n\n"
            f".visible .func ({results}) {identifier(program)} ({arguments})\n{{\n  {body}\n  ret;\n}}\n")  # fmt: skip


def _layout_line(layout: str, program: Program) -> str:
    pair = f"two {program.format} lanes in a 32-bit register"
    return {"packed": f"in and out: {pair}", "f32-packed": f"in: two fp32 lanes, rounded to {program.format} first; out: {pair}",
            "f32": f"in and out: two fp32 lanes; computed in {program.format}"}[layout]  # fmt: skip
