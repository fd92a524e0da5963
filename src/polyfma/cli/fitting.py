"""``fit``, ``certify`` and ``prove``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from polyfma import catalog
from polyfma.certify import Certificate, certify
from polyfma.cli.shell import (
    Json,
    app,
    err,
    milli,
    out,
    print_json,
    print_summary,
    progress_bar,
)
from polyfma.errors import UnknownNameError
from polyfma.files import check_writable, replacing_all
from polyfma.fit import EXP2_METHODS, METHODS, default_degree, default_method, search
from polyfma.functions import function_names
from polyfma.program import Program


@app.command("fit")
def fit_command(
    function: Annotated[str, typer.Argument(help=f"One of {', '.join(function_names())}.")],
    format: Annotated[str, typer.Option(help="bf16 or fp16.")] = "bf16",
    degree: Annotated[int | None, typer.Option(help="1 to 8; default 4, exp2: 2, method logit: 7.")] = None,
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
    out.print(f"note: the catalogue's {program.name} is another program, weighted error {milli(stored)}e-3; this one has"
              f" {milli(certificate.max_weighted_error)}e-3", markup=False)  # fmt: skip


def _catalogue_seeds(function: str, direction: str, fmt: str, degree: int | None, free: bool,
                     form: str | None) -> list[Program]:  # fmt: skip
    """The catalogue's program of the same name, so that a search ends with nothing worse."""
    shape = "" if form is None else f"{form}-"
    name = f"{function}.{direction}.{fmt}.{shape}d{default_degree(None) if degree is None else degree}" + (".free" if free else "")
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
