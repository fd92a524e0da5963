"""Table 3: FP16 operators against torch's, at L2 and HBM size.

Measured where there is a CUDA GPU, else read from the checked-in result of one, which the notes name.
"""

from __future__ import annotations

from typing import Any

from polyfma.published import published
from polyfma.reproduce.checked_in import checked_in, gpu
from polyfma.reproduce.result import Cell, Result


def reproduce(progress: Any) -> Result:
    """The published rows by the published protocol, and beside them device time in a CUDA graph and the exact kernel."""
    from polyfma.bench import isolated
    from polyfma.bench.result import find

    if gpu():
        measurement = isolated.measure(dtypes=("fp16",), progress=progress)
        source = f"measured in this run on {measurement.machine['device']}"
    else:
        measurement, source = checked_in("isolated", "table3", "polyfma bench isolated")
    rows = published()["table3_isolated_fp16_speedup"]["rows"]
    cells: list[Cell] = []
    for row, function, direction, degree in isolated.TABLE3:
        for place, (size, elements) in enumerate({"L2": isolated.L2, "HBM": isolated.HBM}.items()):
            case = {"function": function, "direction": direction, "dtype": "fp16", "elements": elements}
            for where, arm, metric, printed in (("eager", f"d{degree}", "speedup", rows[row][place]), ("graph", f"d{degree}", "in a graph", None),
                                                ("graph", "exact", "exact, in a graph", None), ("graph", "hardware", "hardware, in a graph", None)):  # fmt: skip
                native, own = find(measurement.timings, arm="torch", where=where, **case), find(measurement.timings, arm=arm, where=where, **case)
                if native and own:
                    cells.append(Cell(row, f"{size} {metric}", native.median_us / own.median_us, printed))
    notes = (
        source,
        "speedup: torch's median over ours, eager calls by the published protocol; the published figures are of a GB200",
        "in a graph: the same without the launch; exact: fp32 arithmetic in our kernel; hardware: tanh.approx in our kernel",
    )
    return Result("Table 3: isolated FP16 operators, speed against torch", tuple(cells), notes)

