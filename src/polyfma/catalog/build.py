"""Makes the catalogue: every planned row is fitted, certified and written, whole or not at all.

A row that is already there keeps its program unless it is asked for anew, so an interrupted build goes on
where it stopped; its certificate is made again and replaced if it differs.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from typing import Any

from polyfma.catalog import CERTIFICATES, PROGRAMS, REFUSED, load, record, refused
from polyfma.certify import Certificate, certify
from polyfma.errors import PolyfmaError
from polyfma.files import write_text
from polyfma.fit import EXP2_METHODS, search
from polyfma.fit.common import Fit, program_name
from polyfma.formats import get_format
from polyfma.forms import get_form, published_form
from polyfma.functions import DIRECTIONS, get_function
from polyfma.published import published

FUNCTIONS = ("sigmoid", "tanh", "silu", "gelu", "gelu-tanh", "silu-1.702", "softcap-50")
FORMATS = ("bf16", "fp16")
CONTROL_DEGREES = (3, 4, 5, 6)
CONTROLS = ("endpoint-ls", "sollya")


@dataclass(frozen=True)
class Row:
    """One program to make."""

    function: str
    direction: str
    format: str
    degree: int
    method: str
    form: str | None = None

    @property
    def name(self) -> str:
        if self.function == "exp2":
            return f"exp2.forward.{self.format}.{(self.form or '').removeprefix('exp2-')}.{self.method}"
        target = get_function(self.function, self.direction)
        form = get_form(self.form) if self.form else published_form(target)
        return program_name(form, target, get_format(self.format), self.degree, self.method)


def plan() -> list[Row]:
    """Every row of the catalogue, controls first."""
    return [*_controls(), *_attention()]


def _attention() -> Iterator[Row]:
    """What sigmoid attention and the exp2 ladder were published with."""
    for function in ("sigmoid", "sigmoid-4096"):
        for form in ("two-row", "coupled"):
            yield Row(function, "forward", "bf16", 3, "endpoint-ls", form)
    for fmt in FORMATS:
        yield Row("exp2", "forward", fmt, 1, "least-squares", "exp2-d1")
        for form, degree in (("exp2-pwl2", 1), ("exp2-d2", 2)):
            yield from (Row("exp2", "forward", fmt, degree, method, form) for method in EXP2_METHODS)
        yield Row("exp2", "forward", fmt, 3, "minimax", "exp2-d3")


def _controls() -> Iterator[Row]:
    for function in FUNCTIONS:
        for direction in DIRECTIONS:
            for fmt in FORMATS:
                for degree in CONTROL_DEGREES:
                    for method in CONTROLS:
                        yield Row(function, direction, fmt, degree, method)


def build(rows: list[Row], *, workers: int = 2, force: bool = False,
          progress: Callable[[int, int, str], None] | None = None) -> dict[str, str]:  # fmt: skip
    """Make the rows that are missing (all, with ``force``). Returns the refused ones with their reasons.

    ``progress(done, total, name)`` is called after each row.
    """
    known = refused()
    todo = [r for r in rows if force or r.name not in known]
    # Tables first and in this process, or every worker would make the same ones.
    for function, direction, fmt in dict.fromkeys((r.function, r.direction, r.format) for r in todo):
        get_function(function, direction).table(fmt)
    with ProcessPoolExecutor(max_workers=workers) as pool:
        futures = {pool.submit(make_row, row, force): row for row in todo}
        for done, future in enumerate(as_completed(futures), 1):
            row = futures[future]
            reason = future.result()
            known.pop(row.name, None)
            if reason:
                known[row.name] = reason
            write_text(REFUSED, json.dumps(dict(sorted(known.items())), indent=1) + "\n")
            if progress:
                progress(done, len(todo), row.name)
    return {r.name: known[r.name] for r in rows if r.name in known}


def make_row(row: Row, force: bool = False) -> str:
    """Fit (unless the program is there), certify and write one row; the reason if it is refused."""
    if not force and (PROGRAMS / f"{row.name}.json").is_file():
        _certify_again(row.name)
        return ""
    options: dict[str, Any] = {} if row.form is None else {"form": row.form}
    if row.method in CONTROLS:
        # The strongest control under the arithmetic that runs; the published search rounds split.
        options["mode"] = "fused"
    if row.form in ("two-row", "coupled"):
        options["clamp"] = published()["b3_deployed"]["clamp"]
    try:
        fit = search(row.function, row.direction, row.format, row.degree, row.method, **options)
    except PolyfmaError as error:
        return str(error)
    write_entry(fit)
    return ""


def _certify_again(name: str) -> None:
    stored = record(name)
    certificate = certify(load(name))
    if certificate.differences(stored["certificate"]):
        _write_certificate(name, certificate, stored["fit"])


def write_entry(fit: Fit) -> None:
    """The certificate first: a program in the catalogue always has one."""
    _write_certificate(fit.program.name, certify(fit.program), fit.record())
    write_text(PROGRAMS / f"{fit.program.name}.json", fit.program.to_json())


def _write_certificate(name: str, certificate: Certificate, fit: dict[str, Any]) -> None:
    write_text(CERTIFICATES / f"{name}.json", json.dumps({"certificate": certificate.to_dict(), "fit": fit}, indent=1) + "\n")
