"""``emit`` and ``audit``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from polyfma import catalog
from polyfma.cli.shell import (
    Json,
    app,
    out,
    print_json,
    print_table,
    progress_bar,
)
from polyfma.emit import TARGETS, Hybrid, emit
from polyfma.emit.architecture import get_architecture
from polyfma.emit.lowering import LAYOUTS
from polyfma.errors import UnknownNameError
from polyfma.files import write_text
from polyfma.program import Program


@app.command("emit")
def emit_command(
    program: Annotated[str, typer.Argument(help="A catalogue name or the path of a program's JSON.")],
    target: Annotated[str, typer.Option(help=f"{', '.join(TARGETS)}.")],
    arch: Annotated[str | None, typer.Option(help="ptx, triton, cute: the least architecture; default sm_90.")] = None,
    layout: Annotated[str | None, typer.Option(help=f"{', '.join(LAYOUTS)}; default: packed for ptx, else all.")] = None,
    output: Annotated[list[str] | None, typer.Option(help="Only this output of a coupled program: value or derivative.")] = None,
    input_scale: Annotated[float, typer.Option(help="Fold a scale of the input into the constants: p(S x).")] = 1.0,
    output_scale: Annotated[float, typer.Option(help="Fold a scale of the output into the constants: S p(x).")] = 1.0,
    hybrid: Annotated[str | None, typer.Option(help="cuda, cute: a hardware program to alternate with.")] = None,
    period: Annotated[int | None, typer.Option(help="hybrid: lane pairs after which the choice repeats; default 2.")] = None,
    hardware_pairs: Annotated[int | None, typer.Option(help="hybrid: of those, so many go to the hardware program; default 1.")] = None,
    out_file: Annotated[Path | None, typer.Option("--out", help="Write to this file instead of stdout.")] = None,
    as_json: Json = False,
) -> None:  # fmt: skip
    """Print a program as source for a kernel language, with its certificate in a comment."""
    loaded: Program | Hybrid = catalog.load(program)
    if hybrid is not None:
        loaded = Hybrid(catalog.load(hybrid), catalog.load(program), 2 if period is None else period, 1 if hardware_pairs is None else hardware_pairs)
    elif period is not None or hardware_pairs is not None:
        raise UnknownNameError("--period and --hardware-pairs belong to a hybrid; give --hybrid with it")
    source = emit(loaded, target, arch=arch, layout=layout, outputs=output or None, input_scale=input_scale, output_scale=output_scale)
    if out_file is not None:
        write_text(out_file, source)
    if as_json:
        print_json({"program": loaded.name, "target": target, "source": source, "file": str(out_file) if out_file else None})
    elif out_file is None:
        print(source, end="")
    else:
        out.print(f"written: {out_file}", markup=False)


@app.command("audit")
def audit_command(
    program: Annotated[str, typer.Argument(help="A catalogue name or the path of a program's JSON.")],
    arch: Annotated[str, typer.Option(help="Architectures, separated by commas.")] = "sm_90",
    layout: Annotated[str, typer.Option(help=", ".join(LAYOUTS))] = "packed",
    as_json: Json = False,
) -> None:
    """Compile a program and count its machine instructions by pipe, beside the program's own count."""
    from polyfma.audit import PIPES, audit

    loaded = catalog.load(program)
    names = [name.strip() for name in arch.split(",") if name.strip()]
    if not names:
        raise UnknownNameError("no architecture given; for example --arch sm_90,sm_100")
    for name in names:
        get_architecture(name)  # a mistyped one is refused before the others are compiled
    audits = []
    with progress_bar("compiling") as progress:
        for i, name in enumerate(names):
            audits.append(audit(loaded, name, layout=layout))
            progress(i + 1, len(names))
    if as_json:
        print_json([a.to_dict() for a in audits])
        return
    table = Table(title=Text(f"{loaded.name}: machine instructions for a pair of lanes"), title_justify="left")
    for heading in ("", *PIPES, "sum", "clocks per SM for 32 pairs"):
        table.add_column(heading, justify="left" if not heading else "right", no_wrap=True)
    counts = loaded.counts
    table.add_row("the program's own count", *(str(getattr(counts, p, "")) for p in PIPES), str(counts.instructions), "")
    for a in audits:
        cost = "rates unknown" if a.cost is None else f"{a.cost:g}"
        table.add_row(f"{a.architecture} (ptxas {a.assembler})", *(f"{a.pipes[p]:g}" for p in PIPES), f"{a.instructions:g}", cost)
    print_table(table)
    for a in audits:
        text = ", ".join(f"{n:g} {o}" for o, n in a.opcodes.items())
        once = ", ".join(f"{n} {o}" for o, n in a.setup.items()) or "nothing"
        out.print(f"{a.architecture}: {text}; once for a thread: {once}" + ("; USES LOCAL MEMORY" if a.local_memory else ""), markup=False)
