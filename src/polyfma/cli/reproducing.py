"""``reproduce`` and ``doctor``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from polyfma.cli.shell import (
    Json,
    app,
    err,
    out,
    print_json,
    print_table,
    progress_bar,
)
from polyfma.doctor import examine
from polyfma.errors import UnknownNameError


@app.command("reproduce")
def reproduce_command(
    what: Annotated[str, typer.Argument(help="table2, table3, table4, table6, table8, table9, table10, figure1, figure2, figure4 or figure5.")],
    directory: Annotated[Path, typer.Option("--out", help="Folder for pictures.")] = Path("polyfma-out"),
    as_json: Json = False,
) -> None:
    """Set a published table or figure beside what this library measures."""
    from polyfma.reproduce import FIGURES, TABLES

    if what in TABLES:
        with progress_bar(what) as progress:
            result = TABLES[what](progress)
        if as_json:
            print_json(result.rows())
            for note in result.notes:
                err.print(f"- {note}", markup=False)
        else:
            print_table(result.table())
            for note in result.notes:
                out.print(f"- {note}", markup=False)
    elif what in FIGURES:
        with progress_bar(what) as progress:
            files = FIGURES[what](directory, progress)
        if as_json:
            print_json({"files": [str(f) for f in files]})
        else:
            out.print("written: " + ", ".join(str(f) for f in files), markup=False)
    else:
        raise UnknownNameError(f"unknown table or figure {what!r}; known: {', '.join([*TABLES, *FIGURES])}")


@app.command("doctor")
def doctor_command(as_json: Json = False) -> None:
    """Say what is installed, what is missing, and what that switches off."""
    findings = examine()
    if as_json:
        print_json([f.to_dict() for f in findings])
        return
    table = Table(show_lines=False)
    for heading in ("what", "found", "used for"):
        table.add_column(heading, overflow="fold")
    for f in findings:
        table.add_row(f.name, f.found or "[red]missing[/red]", f.used_for if f.found else f"{f.without} ({f.how_to_get})")
    print_table(table)
