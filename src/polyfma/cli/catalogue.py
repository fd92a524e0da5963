"""``list``, ``show``, ``report`` and ``catalog build``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from polyfma import catalog
from polyfma.certify import certify
from polyfma.cli.shell import (
    Json,
    app,
    check_picture,
    milli,
    out,
    print_json,
    print_summary,
    print_table,
    progress_bar,
)
from polyfma.errors import UnknownNameError

catalog_app = typer.Typer(no_args_is_help=True, help="Make the shipped catalogue.")
app.add_typer(catalog_app, name="catalog")


@app.command("list")
def list_command(
    function: Annotated[str | None, typer.Option(help="Only this function.")] = None,
    direction: Annotated[str | None, typer.Option(help="Only forward or backward.")] = None,
    format: Annotated[str | None, typer.Option(help="Only bf16 or fp16.")] = None,
    pareto: Annotated[bool, typer.Option(help="Only programs that no other beats in error and instructions.")] = False,
    picture: Annotated[Path | None, typer.Option(help="With --pareto: also write the picture (.png or .svg).")] = None,
    as_json: Json = False,
) -> None:
    """List the catalogue with the figures of its certificates."""
    if picture is not None and not pareto:
        raise UnknownNameError("--picture draws the Pareto front; give --pareto with it")
    if pareto:
        _list_pareto(function, direction, format, picture, as_json)
        return
    wanted = {"function": function, "direction": direction, "format": format}
    rows = []
    for name in catalog.programs():
        c = catalog.record(name)["certificate"]
        if all(v is None or c[k] == v for k, v in wanted.items()):
            rows.append(c)
    if not rows:
        asked = ", ".join(f"{k}={v}" for k, v in wanted.items() if v is not None)
        raise UnknownNameError(f"no catalogue program with {asked}; polyfma list shows all")
    if as_json:
        keys = ("program", "function", "direction", "format", "instructions", "fma", "max_abs_error", "max_weighted_error",
                "max_ulp", "floor_abs_error", "nan", "digest")  # fmt: skip
        print_json([{k: c[k] for k in keys} | {"exact_tails": c["tails"]["exact"]} for c in rows])
        return
    table = Table(title=f"{len(rows)} programs; errors x 1e-3 over all finite inputs, fused", title_justify="left")
    for heading in ("program", "instr.", "FMA", "max abs", "max weighted", "floor", "tails", "NaN"):
        table.add_column(heading, justify="left" if heading in ("program", "tails", "NaN") else "right", no_wrap=True)
    for c in rows:
        table.add_row(c["program"], str(c["instructions"]), str(c["fma"]), milli(c["max_abs_error"]),
                      milli(c["max_weighted_error"]), milli(c["floor_weighted_error"]),
                      _tail_word(c), c["nan"].split(" at ")[0])  # fmt: skip
    print_table(table)


def _list_pareto(function: str | None, direction: str | None, fmt: str | None, picture: Path | None, as_json: bool) -> None:
    """Per function, direction and format: the default programs that no other beats."""
    from polyfma import plots
    from polyfma.pareto import entries, front

    keys = [k for k in dict.fromkeys((e.function, e.direction, e.format) for e in entries())
            if function in (None, k[0]) and direction in (None, k[1]) and fmt in (None, k[2])]  # fmt: skip
    if not keys:
        raise UnknownNameError("no catalogue program of that function, direction and format; polyfma list shows all")
    fronts = {k: {cost: front((e for e in entries() if (e.function, e.direction, e.format) == k and e.default), cost=cost)
                  for cost in ("instructions", "pipe_bound")} for k in keys}  # fmt: skip
    if picture is not None:
        check_picture(picture)
        plots.save(plots.pareto_picture([e for e in entries() if (e.function, e.direction, e.format) in keys]), picture)
    if as_json:
        print_json([{"function": k[0], "direction": k[1], "format": k[2], **{f"by_{c}": [e.to_dict() for e in es]
                    for c, es in by_cost.items()}} for k, by_cost in fronts.items()])  # fmt: skip
        return
    table = Table(title="default programs that no other beats in error and instructions", title_justify="left")
    for heading in ("program", "instr.", "FMA", "pipe bound", "weighted error x 1e-3"):
        table.add_column(heading, justify="left" if heading == "program" else "right", no_wrap=True)
    for by_cost in fronts.values():
        for e in by_cost["instructions"]:
            table.add_row(e.name, str(e.instructions), str(e.fma), str(e.pipe_bound), milli(e.error))
        table.add_section()
    print_table(table)
    if picture is not None:
        out.print(f"written: {picture}", markup=False)


@app.command("report")
def report_command(
    what: Annotated[str, typer.Argument(help="fits: one page with Pareto pictures, error curves and certificates.")] = "fits",
    output: Annotated[Path, typer.Option("--out", help="The HTML file.")] = Path("polyfma-out/fits.html"),
    as_json: Json = False,
) -> None:
    """Write a self-contained HTML page."""
    from polyfma.report import write_fits

    if what != "fits":
        raise UnknownNameError(f"unknown report {what!r}; known: fits")
    with progress_bar("report") as progress:
        write_fits(output, progress)
    if as_json:
        print_json({"file": str(output)})
    else:
        out.print(f"written: {output}", markup=False)


def _tail_word(c: dict[str, Any]) -> str:
    return {True: "exact", False: "not exact", None: "-"}[c["tails"]["exact"]]


@app.command("show")
def show_command(
    program: Annotated[str, typer.Argument(help="A catalogue name or the path of a program's JSON.")],
    png: Annotated[Path | None, typer.Option(help="Also write the picture of the error (.png or .svg).")] = None,
    as_json: Json = False,
) -> None:
    """Show a program: formula, instructions, certificate and error curve."""
    from polyfma import plots
    from polyfma.forms import FORMS

    loaded = catalog.load(program)
    certificate = certify(loaded)
    if png is not None:
        check_picture(png)
        plots.save(plots.error_picture(loaded, certificate), png)
    if as_json:
        print_json({"program": loaded.to_dict(), "listing": loaded.listing(), "certificate": certificate.to_dict()})
        return
    form = FORMS.get(loaded.form)
    out.print(f"{loaded.function} {loaded.direction}: {loaded.target.formula}", markup=False)
    if form:
        out.print(f"form {form.name}: {form.formula}" + (f" ({form.note})" if form.note else ""), markup=False)
    for line in loaded.listing():
        out.print(f"    {line}", markup=False)
    print_summary(loaded, certificate)
    for line in plots.text_plot(loaded):
        out.print(line, markup=False)
    if png is not None:
        out.print(f"written: {png}", markup=False)


@catalog_app.command("build")
def catalog_build_command(
    only: Annotated[str, typer.Option(help="Only rows whose name contains this text.")] = "",
    force: Annotated[bool, typer.Option(help="Make rows anew that are there already.")] = False,
    workers: Annotated[int, typer.Option(min=1, help="Processes.")] = 2,
    effort: Annotated[str, typer.Option(help="Of the search in the format: quick, normal or thorough.")] = "normal",
    as_json: Json = False,
) -> None:
    """Make the missing rows of the catalogue; goes on where an interrupted build stopped."""
    from polyfma.catalog.build import build, plan

    rows = [r for r in plan() if only in r.name]
    if not rows:
        raise UnknownNameError(f"no catalogue row contains {only!r}")
    with progress_bar("catalogue") as progress:
        refused = build(rows, workers=workers, force=force, effort=effort, progress=progress)
    if as_json:
        print_json({"rows": len(rows), "refused": refused})
        return
    out.print(f"{len(rows)} rows, {len(refused)} refused")
    for name, reason in refused.items():
        out.print(f"  {name}: {reason[:100]}", markup=False)
