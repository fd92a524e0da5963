"""Table 9: what software exp2 does to speed, from its core by itself to attention, read from checked-in results."""

from __future__ import annotations

from typing import Any

from polyfma.bench.result import Measurement, find
from polyfma.published import published
from polyfma.reproduce.checked_in import checked_in
from polyfma.reproduce.result import Cell, Result

COLUMNS = {"FA4 D3": "D3 fp32", "PWL2 FP16": "PWL2 fp16", "D2 FP32": "D2 fp32"}
ISOLATED = {
    "fractional core, repeated compute": "core, packed fp16, repeated",
    "full 2^x, repeated compute": "full, repeated",
    "full 2^x, 4 MiB + 4 MiB (L2)": "full, L2",
    "full 2^x, 256 MiB + 256 MiB (HBM)": "full, HBM",
}
CASE, BASE = "exp2 batch 1", "all SFU"


def reproduce(progress: Any) -> Result:
    alone, one = checked_in("exp2", "table9", "polyfma bench exp2")
    attention, two = checked_in("attention-exp2", "table9", "polyfma bench attention --case exp2")
    rows = published()["table9_exp2_ladder"]["rows"]
    cells: list[Cell] = []
    for row, printed in rows.items():
        for place, (column, arm) in enumerate(COLUMNS.items()):
            measured = _speed(row, arm, alone, attention)
            if measured is not None or printed[place] is not None:
                cells.append(Cell(row, column, measured, printed[place]))
    notes = (one, two, "speed: the special-function unit's time over the program's, in CUDA graphs; below 1 software is slower. fp32 cores have no packed"
             " form on this GPU", "the 80-step optimizer was not run here")  # fmt: skip
    return Result("Table 9: software exp2, speed against ex2.approx", tuple(cells), notes)


def _speed(row: str, arm: str, alone: Measurement, attention: Measurement) -> float | None:
    if row in ISOLATED:
        base, own = (find(alone.timings, case=ISOLATED[row], arm=a) for a in ("hardware", arm))
        return base.median_us / own.median_us if base and own else None
    directions = {"causal FA4 forward": ("forward",), "causal FA4 forward + backward": ("forward", "backward")}.get(row, ())
    times = [[find(attention.timings, case=CASE, where="graph", direction=d, arm=a) for d in directions] for a in (BASE, arm)]
    if not directions or any(t is None for found in times for t in found):
        return None
    base_us, own_us = (sum(t.median_us for t in found if t) for found in times)
    return base_us / own_us
