"""The comment at the top of emitted source: which program, what is certified, how to check it again."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from polyfma import catalog
from polyfma.certify import certify
from polyfma.forms import FORMS
from polyfma.program import Program


def identifier(program: Program) -> str:
    """The program's name as an identifier: ``silu.forward.bf16.d4`` is ``silu_forward_bf16_d4``."""
    name = re.sub(r"[^0-9A-Za-z_]", "_", program.name)
    return f"_{name}" if name[0].isdigit() else name


def comment_lines(program: Program, outputs: Sequence[str]) -> list[str]:
    """Name, digest, formula, instructions, certificate in one line an output, and the commands that re-check them."""
    form, counts = FORMS.get(program.form), program.counts
    lines = [
        f"polyfma program {program.name}",
        f"digest {program.digest}",
        f"computes {program.function} {program.direction}, {program.target.formula}, in {program.format}",
        f"form {program.form}" + (f": {form.formula}" if form else ""),
        f"per pair of lanes: {counts.instructions} instructions ({counts.fma} on the FMA pipe, {counts.alu} ALU,"
        f" {counts.cvt} conversions, {counts.mufu} MUFU)",
    ]
    for certificate in _certificates(program):
        if certificate["output"] in outputs:
            lines.append(_certified(certificate))
    known = program.name in catalog.programs() and catalog.load(program.name) == program
    lines.append(f"check again: polyfma certify {program.name if known else 'PROGRAM.json, whose digest is the one above'}")
    return lines


def _certificates(program: Program) -> list[Mapping[str, Any]]:
    """Every output's certificate: the stored one of a catalogue program, else made now."""
    if program.name in catalog.programs() and catalog.load(program.name) == program:
        first: Mapping[str, Any] = catalog.record(program.name)["certificate"]
    else:
        first = certify(program).to_dict()
    return [first, *first["others"]]


def _certified(c: Mapping[str, Any]) -> str:
    tails = {True: "exact tails", False: "inexact tails", None: "no tails"}[c["tails"]["exact"]]
    errors = f"max |error| {_figure(c['max_abs_error'])}, weighted {_figure(c['max_weighted_error'])}, {_figure(c['max_ulp'])} ulp"
    return f"certified {c['output']}, all {c['inputs']} inputs: {errors}; {tails}; NaN: {c['nan']}"


def _figure(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float | int) else str(value)
