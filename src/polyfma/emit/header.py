"""The comment at the top of emitted source: which program, what is certified, how to check it again."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from polyfma import catalog
from polyfma.certify import certify
from polyfma.emit.lowering import LAYOUTS
from polyfma.forms import FORMS
from polyfma.program import Program
from polyfma.replay import replay


def guarded(name: str, digest: str, text: str, layout: str | None = None) -> str:
    """C or C++ that may stand several times in a file. Another digest under the same name, or another choice of layouts,
    is an error, not a silence."""
    macro = f"POLYFMA_{name}"
    value = f"0x{digest[:7]}{0 if layout is None else 1 + LAYOUTS.index(layout)}u"
    return (f"#ifndef {macro}\n#define {macro} {value}\n{text}\n#elif {macro} != {value}\n"
            f'#error "two polyfma programs, or two layouts of one, have the identifier {name}"\n#endif\n')  # fmt: skip


@dataclass(frozen=True)
class Scaling:
    """What a folded program came from."""

    base: Program
    input: float
    output: float

    @property
    def exact(self) -> bool:
        """Whether both scales are powers of two."""
        return all(math.frexp(s)[0] == 0.5 for s in (self.input, self.output))


def identifier(program: Program) -> str:
    """The program's name as an identifier: ``silu.forward.bf16.d4`` is ``silu_forward_bf16_d4``."""
    name = re.sub(r"[^0-9A-Za-z_]", "_", program.name)
    # Any other name could be a word of a language or one of our own.
    usual = program.name.startswith(f"{program.function}.{program.direction}.{program.format}.")
    return name if usual else f"program_{name}"


def comment_lines(program: Program, outputs: Sequence[str], scaling: Scaling | None = None) -> list[str]:
    """Name, digest, formula, instructions, certificate in one line an output, and the commands that re-check them."""
    form, counts = FORMS.get(program.form), program.counts
    lines = [
        f"polyfma program {program.name}",
        f"digest {program.digest}",
        f"computes {_claim(program, scaling)}, in {program.format}",
        f"form {program.form}" + (f": {form.formula}" if form else ""),
        f"per pair of lanes: {counts.instructions} instructions ({counts.fma} on the FMA pipe, {counts.alu} ALU,"
        f" {counts.cvt} conversions, {counts.mufu} MUFU)",
    ]
    if scaling is not None:
        return [*lines, *_scaled_lines(program, outputs, scaling)]
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
    skipped = f" ({c['skipped']})" if c["skipped"] else ""
    return f"certified {c['output']}, all {c['inputs']} inputs{skipped}: {errors}; {tails}; NaN: {c['nan']}"


def _claim(program: Program, scaling: Scaling | None) -> str:
    function = f"{program.function} {program.direction}, {program.target.formula}"
    return function if scaling is None else f"{scaling.output:.10g} f({scaling.input:.10g} x), f = {function}"


def _scaled_lines(program: Program, outputs: Sequence[str], scaling: Scaling) -> list[str]:
    """The base program, and what was measured of the scaled one just now: it has no certificate of its own."""
    lines = [f"folded from {scaling.base.name}, digest {scaling.base.digest}"]
    for output in outputs:
        error, differ, inputs = scaled_error(program, output, scaling)
        exact = f"; {differ} results are not the scaled bits of the base" if scaling.exact else ""
        lines.append(f"measured {output}, {inputs} finite inputs: max |error| {error:.4g} against the scaled function{exact}")
    return [*lines, f"check again: polyfma certify {scaling.base.name}, then emit with the same scales: the digest must be the one above"]


def scaled_error(program: Program, output: str, scaling: Scaling) -> tuple[float, int, int]:
    """(largest |error| against S_out f(S_in x), results that are not the base's bits times S_out, inputs looked at).

    Over finite inputs whose scaled value the format holds as a normal number (and 0); the second figure only means something
    for powers of two.
    """
    fmt, target = program.fmt, program.target_of(output)
    bits = fmt.finite_bits() if fmt.width == 16 else fmt.encode(np.linspace(-16, 16, 1 << 16))
    x = fmt.decode(bits)
    inside = (np.abs(x * scaling.input) <= fmt.max_finite) & ((np.abs(x * scaling.input) >= fmt.min_normal) | (x == 0))
    bits, x = bits[inside], x[inside]
    y = _output(program, bits, output)
    wanted = target.values(x * scaling.input) * scaling.output
    base = _output(scaling.base, fmt.encode(x * scaling.input), output) * scaling.output
    normal = (np.abs(base) >= fmt.min_normal) & (np.abs(base) <= fmt.max_finite)
    errors = np.abs(y - wanted)[np.isfinite(wanted)]
    return float(np.max(errors)), int(np.count_nonzero((y != base) & normal)), int(bits.size)


def _output(program: Program, bits: Any, output: str) -> Any:
    y = replay(program, bits)
    return program.fmt.decode(y[output] if isinstance(y, dict) else y)


def _figure(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float | int) else str(value)
