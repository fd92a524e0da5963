"""What the commands share: the consoles, tables, JSON, the progress bar."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.measure import Measurement
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from polyfma.certify import Certificate
from polyfma.errors import UnknownNameError
from polyfma.program import Program

app = typer.Typer(name="polyfma", no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False,
                  help="Short certified polynomial programs for 16-bit GPU arithmetic.")  # fmt: skip
catalog_app = typer.Typer(no_args_is_help=True, help="Make the shipped catalogue.")
out = Console(highlight=False, soft_wrap=True)
err = Console(stderr=True, highlight=False)

Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]


@contextmanager
def progress_bar(label: str) -> Iterator[Callable[..., None]]:
    """A callback (done, total, text) that draws a bar on stderr; nothing when stderr is not a terminal."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=err, transient=True, disable=not sys.stderr.isatty()) as bar:
        task = bar.add_task(label, total=None)

        def update(done: int, total: int, text: str = "") -> None:
            bar.update(task, completed=done, total=total, description=text or label)

        yield update


def print_table(table: Table) -> None:
    """A table at its natural width: a figure is never cut, a narrow terminal wraps the line."""
    natural = Measurement.get(out, out.options.update(width=1000, max_width=1000), table).maximum
    Console(highlight=False, width=max(out.width, natural), soft_wrap=True).print(table)


def print_json(data: Any) -> None:
    print(json.dumps(data, indent=1))


def print_summary(program: Program, certificate: Certificate) -> None:
    # Text, not strings: names and figures such as [inf, inf] are not markup.
    title = Text(f"{program.name}  ({program.form}, digest {program.digest[:12]})", style="bold")
    table = Table(title=title, title_justify="left", show_header=False)
    table.add_column(style="cyan", no_wrap=True)
    table.add_column(overflow="fold")
    for label, text in certificate.summary():
        table.add_row(Text(label), Text(text))
    print_table(table)


def milli(value: Any) -> str:
    return f"{1e3 * value:.4g}" if isinstance(value, float | int) else str(value)


def check_picture(path: Path) -> None:
    if path.suffix not in (".png", ".svg"):
        raise UnknownNameError(f"picture {str(path)!r} must end in .png or .svg")
