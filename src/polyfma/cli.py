"""The command line: ``polyfma fit | certify | list | show | emit | audit | catalog | reproduce | doctor``.

Results go to stdout, as a table or with ``--json`` as JSON; progress and messages to stderr. Bad input
exits with status 2 and one line; ``certify`` exits with 1 when a stored certificate no longer holds.
"""

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

from polyfma import catalog
from polyfma.certify import Certificate, certify
from polyfma.doctor import examine
from polyfma.emit import TARGETS, Hybrid, emit
from polyfma.emit.lowering import LAYOUTS
from polyfma.errors import PolyfmaError, UnknownNameError
from polyfma.files import check_writable, replacing_all, write_text
from polyfma.fit import EXP2_METHODS, METHODS, default_method, search
from polyfma.functions import function_names
from polyfma.program import Program

app = typer.Typer(name="polyfma", no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False,
                  help="Short certified polynomial programs for 16-bit GPU arithmetic.")  # fmt: skip
catalog_app = typer.Typer(no_args_is_help=True, help="Make the shipped catalogue.")
app.add_typer(catalog_app, name="catalog")
# ClickException, the base of typer's own complaints, which typer does not export.
CLICK_ERROR: type[Any] = typer.BadParameter.__mro__[2]
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


@app.command("fit")
def fit_command(
    function: Annotated[str, typer.Argument(help=f"One of {', '.join(function_names())}.")],
    format: Annotated[str, typer.Option(help="bf16 or fp16.")] = "bf16",
    degree: Annotated[int | None, typer.Option(help="1 to 8; default 4, exp2: 2.")] = None,
    direction: Annotated[str, typer.Option(help="forward, or backward for the derivative.")] = "forward",
    free: Annotated[bool, typer.Option(help="lattice: drop the requirements of exact tails and range.")] = False,
    objective: Annotated[str | None, typer.Option(help="lattice: weighted (default), absolute, relative, ulp, ulp-quarter, logit.")] = None,
    distribution: Annotated[Path | None, typer.Option(help="lattice: minimise the expected error under this histogram (JSON edges, counts).")] = None,
    sigma: Annotated[float | None, typer.Option(help="lattice: minimise the expected error under N(0, SIGMA).")] = None,
    monotone: Annotated[float | None, typer.Option(help="lattice: monotone within so many ulps of max(|f|, 1/4).")] = None,
    effort: Annotated[str | None, typer.Option(help="lattice: quick, normal (default) or thorough.")] = None,
    seed: Annotated[int | None, typer.Option(help="lattice: seed of the random search.")] = None,
    method: Annotated[str | None, typer.Option(help=f"{', '.join(METHODS)} (default {METHODS[0]}); exp2: {', '.join(EXP2_METHODS)}.")] = None,
    form: Annotated[str | None, typer.Option(help="How the polynomial becomes a program; default: the published form.")] = None,
    fit_interval: Annotated[float | None, typer.Option("--fit-interval", "--li", help="Fix Li instead of searching it.")] = None,
    clamp: Annotated[float | None, typer.Option("--clamp", "--lc", help="Fix Lc instead of searching it; at most Li + 1.")] = None,
    clamp_step: Annotated[float | None, typer.Option(help="Grid step of Lc (default 0.25).")] = None,
    mode: Annotated[str | None, typer.Option(help="Replay arithmetic of the controls' search: fused (default) or split (published).")] = None,
    gates: Annotated[bool, typer.Option(help="Refuse candidates by shape and boundary.")] = True,
    directory: Annotated[Path, typer.Option("--out", help="Folder to write into; a folder of the program's name is made in it.")] = Path("polyfma-out"),
    as_json: Json = False,
) -> None:  # fmt: skip
    """Fit a program, certify it on every input, and write it with its certificate and a picture."""
    given = {"form": form, "fit_interval": fit_interval, "clamp": clamp, "clamp_step": clamp_step, "mode": mode,
             "monotone": monotone, "effort": effort, "seed": seed, "objective": _objective(objective, distribution, sigma),
             "gates": None if gates else False, "free": True if free else None}  # fmt: skip
    options: dict[str, Any] = {k: v for k, v in given.items() if v is not None}
    if (method or default_method(function)) == "lattice":
        options["seeds"] = _catalogue_seeds(function, direction, format, degree, free, form)
    check_writable(directory)
    with progress_bar(f"fitting {function}") as progress:
        if function != "exp2":
            options["progress"] = progress
        fit = search(function, direction, format, degree, method, **options)
    program, record = fit.program, fit.record()
    certificate = certify(program)
    files = _write_result(program, certificate, record, directory / program.name)
    if as_json:
        print_json({"program": program.to_dict(), "certificate": certificate.to_dict(), "fit": record, "note": fit.note,
                    "files": [str(f) for f in files]})  # fmt: skip
        return
    print_summary(program, certificate)
    for line in program.listing():
        out.print(f"    {line}", markup=False)
    if fit.note:
        out.print(f"note: {fit.note}", markup=False)
    _say_what_the_catalogue_has(program, certificate)
    out.print("written: " + ", ".join(str(f) for f in files), markup=False)


def _say_what_the_catalogue_has(program: Program, certificate: Certificate) -> None:
    """One name, two programs: say so, and which is better."""
    if program.name not in catalog.programs() or catalog.load(program.name) == program:
        return
    stored = catalog.record(program.name)["certificate"]["max_weighted_error"]
    out.print(f"note: the catalogue's {program.name} is another program, weighted error {_milli(stored)}e-3; this one has"
              f" {_milli(certificate.max_weighted_error)}e-3", markup=False)  # fmt: skip


def _catalogue_seeds(function: str, direction: str, fmt: str, degree: int | None, free: bool,
                     form: str | None) -> list[Program]:  # fmt: skip
    """The catalogue's program of the same name, so that a search ends with nothing worse."""
    shape = "" if form is None else f"{form}-"
    name = f"{function}.{direction}.{fmt}.{shape}d{4 if degree is None else degree}" + (".free" if free else "")
    return [catalog.load(name)] if name in catalog.programs() else []


def _objective(name: str | None, histogram: Path | None, sigma: float | None) -> Any:
    """The Objective that the options describe; None if they say nothing."""
    from polyfma.fit.objective import Distribution, Objective

    if histogram is not None and sigma is not None:
        raise UnknownNameError("give --distribution or --sigma, not both")
    if histogram is None and sigma is None:
        return None if name is None else Objective(name)
    distribution = Distribution.read(histogram) if histogram is not None else Distribution.normal(sigma or 0.0)
    return Objective(name or "weighted", distribution=distribution)


def _write_result(program: Program, certificate: Certificate, record: dict[str, Any], folder: Path) -> list[Path]:
    """All three files or none."""
    from polyfma import plots

    files = [folder / name for name in ("program.json", "certificate.json", "error.png")]
    with replacing_all(files) as (program_file, certificate_file, picture):
        plots.draw(plots.error_picture(program, certificate), picture)
        certificate_file.write_text(json.dumps({"certificate": certificate.to_dict(), "fit": record}, indent=1) + "\n")
        program_file.write_text(program.to_json())
    return files


@app.command("certify")
def certify_command(
    program: Annotated[str, typer.Argument(help="A catalogue name or the path of a program's JSON.")],
    against: Annotated[Path | None, typer.Option(help="Certificate JSON to hold against; default: the stored one.")] = None,
    mode: Annotated[str, typer.Option(help="fused (the hardware) or split.")] = "fused",
    as_json: Json = False,
) -> None:
    """Certify a program again, and fail with status 1 if its stored certificate no longer holds."""
    loaded = catalog.load(program)
    certificate = certify(loaded, mode=mode)
    stored = _stored_certificate(program, against) if mode == "fused" or against else None
    differences = [] if stored is None else certificate.differences(stored)
    if as_json:
        print_json({"certificate": certificate.to_dict(), "holds": None if stored is None else not differences,
                    "differences": differences})  # fmt: skip
    else:
        print_summary(loaded, certificate)
    if differences:
        for line in differences:
            err.print(f"certificate does not hold: {line}", markup=False, soft_wrap=True)
        raise typer.Exit(1)
    if not as_json:
        nothing = "stored certificates are of fused replay" if mode != "fused" else "no stored certificate to hold against"
        out.print(nothing if stored is None else "stored certificate holds")


def _stored_certificate(program: str, against: Path | None) -> dict[str, Any] | None:
    """The certificate to hold against: the given file, the one beside a program file, or the catalogue's."""
    if against is None and program in catalog.programs():
        data: Any = catalog.record(program)
    else:
        path = against or Path(program).with_name("certificate.json")
        if against is None and not path.is_file():
            return None
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise UnknownNameError(f"{str(path)!r} is not a certificate: {error}") from error
    data = data.get("certificate", data) if isinstance(data, dict) else data
    if not isinstance(data, dict) or "max_abs_error" not in data:
        raise UnknownNameError(f"{str(against or program)!r} holds no certificate; it is made by polyfma fit or certify --json")
    return data


@app.command("prove")
def prove_command(
    program: Annotated[str, typer.Argument(help="A BF16 program of a form that proofs reach, by name or path.")],
    as_json: Json = False,
) -> None:
    """Enumerate every program of the same form that could be better; status 1 if there is one."""
    from polyfma.fit.proof import prove

    loaded = catalog.load(program)
    with progress_bar(f"proving {loaded.name}") as progress:
        proof = prove(loaded, progress=progress)
    if as_json:
        print_json(proof.to_dict())
    else:
        tails = "with exact tails " if proof.exact_tails else ""
        claim = (f"no {proof.form} program of degree {proof.degree} in {proof.format} {tails}has a largest error below"
                 f" {proof.error:.9g}" if proof.holds else f"a better program exists: {proof.better}")  # fmt: skip
        out.print(claim, markup=False)
        out.print(f"{proof.clamps} clamps, {proof.orthants} orthants, {proof.linear_programmes} linear programmes,"
                  f" {proof.visited:,} coefficient tuples visited, {proof.replayed} programs replayed, {proof.seconds:.1f} s",
                  markup=False)  # fmt: skip
        for assumption in proof.assumptions:
            out.print(f"- {assumption}", markup=False)
    if not proof.holds:
        raise typer.Exit(1)


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
        table.add_row(c["program"], str(c["instructions"]), str(c["fma"]), _milli(c["max_abs_error"]),
                      _milli(c["max_weighted_error"]), _milli(c["floor_weighted_error"]),
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
        _check_picture(picture)
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
            table.add_row(e.name, str(e.instructions), str(e.fma), str(e.pipe_bound), _milli(e.error))
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


def _milli(value: Any) -> str:
    return f"{1e3 * value:.4g}" if isinstance(value, float | int) else str(value)


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
        _check_picture(png)
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


def _check_picture(path: Path) -> None:
    if path.suffix not in (".png", ".svg"):
        raise UnknownNameError(f"picture {str(path)!r} must end in .png or .svg")


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


@app.command("reproduce")
def reproduce_command(
    what: Annotated[str, typer.Argument(help="table2, table8, figure1, figure2, figure4 or figure5.")],
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


@app.callback(invoke_without_command=True)
def version_option(version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False) -> None:
    if version:
        from polyfma import __version__

        print(__version__)
        raise typer.Exit


def main() -> None:
    """Entry point of the ``polyfma`` command."""
    try:
        status = app(standalone_mode=False)
        if status == 130:  # typer's status for Ctrl-C
            raise KeyboardInterrupt
        sys.exit(status)
    except CLICK_ERROR as error:  # a word that is not a number, an unknown option
        if message := error.format_message():  # without a command typer has printed the help, and there is none
            err.print(f"polyfma: {message} (polyfma --help)", markup=False, soft_wrap=True)
        sys.exit(2)
    except PolyfmaError as error:
        err.print(f"polyfma: {error}", markup=False, soft_wrap=True)
        sys.exit(2)
    except OSError as error:
        err.print(f"polyfma: cannot write or read {error.filename or 'a file'}: {error.strerror}", markup=False, soft_wrap=True)
        sys.exit(2)
    except KeyboardInterrupt:
        err.print("polyfma: interrupted")
        sys.exit(130)


if __name__ == "__main__":
    main()
