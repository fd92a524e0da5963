"""Table 8: short programs for 2^f, relative error in real arithmetic, and beside it in FP16 and BF16."""

from __future__ import annotations

from typing import Any

import numpy as np

from polyfma.fit.exp2 import exp2_values, fit_exp2, fraction_error, fraction_grid
from polyfma.formats import FP16
from polyfma.program import Program
from polyfma.published import published
from polyfma.replay import replay
from polyfma.reproduce.result import Cell, Result

# (published row, form, method)
ROWS = (
    ("D1 endpoint constrained", "exp2-d1", "least-squares"),
    ("PWL2 least squares", "exp2-pwl2", "least-squares"),
    ("PWL2 sampled minimax", "exp2-pwl2", "minimax"),
    ("D2 least squares", "exp2-d2", "least-squares"),
    ("D2 sampled minimax", "exp2-d2", "minimax"),
    ("FA4 D3 minimax, p(1)=1.99983", "exp2-d3", "published"),
)


def replayed_error(program: Program) -> float:
    """The largest relative error of fused replay over every input of the format in [0, 1]."""
    fmt = program.fmt
    bits = np.arange(int(fmt.encode(1.0)) + 1, dtype=fmt.dtype)
    y = fmt.decode(np.asarray(replay(program, bits)))
    return float(np.max(np.abs(y / program.target.table(fmt).exact[bits] - 1)))


def _error_with_rounded_input() -> float:
    """The FP16 program on the real grid: the rounding of f itself counts, as in the published FP16 figure."""
    program = fit_exp2("exp2-pwl2", "minimax", FP16).program
    f = fraction_grid()
    y = FP16.decode(np.asarray(replay(program, FP16.encode(f))))
    return float(np.max(np.abs(y / np.exp2(f) - 1)))


def reproduce(progress: Any) -> Result:
    tables = published()["table8_exp2_fraction"]
    cells: list[Cell] = []
    for i, (label, form, method) in enumerate(ROWS):
        error = fraction_error(form, exp2_values(form, method))
        worst, rms = tables["rows"][label]
        cells += [Cell(label, "max relative", error.max_relative, worst), Cell(label, "rms relative", error.rms_relative, rms)]
        cells += [Cell(label, f"max relative, fused {fmt}", replayed_error(fit_exp2(form, method, fmt).program)) for fmt in ("fp16", "bf16")]
        progress(i + 1, len(ROWS))
    rounded = tables["forms"]["PWL2 FP16 rounded"]
    values = exp2_values("exp2-pwl2", "minimax")
    half = {n: float(FP16.decode(FP16.encode(values[n]))) for n in ("a", "b")}
    label = "PWL2 minimax in FP16, f rounded too"
    cells.append(Cell(label, "max relative", _error_with_rounded_input(), rounded["max_relative_error"]))
    notes = (
        "real columns: 65,537 evenly spaced points of [0, 1], float64; replay columns: every input of the format in [0, 1]",
        f"constants found here: PWL2 minimax a = {values['a']:.10f}, in FP16 {half['a']} and {half['b']}"
        f" (published {rounded['a']} and {rounded['2(1-a)']})",
    )
    return Result("Table 8: 2^f on 0 <= f <= 1", tuple(cells), notes)
