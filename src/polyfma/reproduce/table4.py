"""Table 4: components of a model, the published programs' speed against what they replace, read from checked-in results.

B1 and B4 are the activations of :mod:`polyfma.bench.component`, B2 and B3 attention. The published programs are the D3 and D4 of each
row; beside them stands what this library would run, and the best alternative that a user has.
"""

from __future__ import annotations

from typing import Any

from polyfma.bench.result import Measurement, find
from polyfma.published import published
from polyfma.reproduce.checked_in import checked_in
from polyfma.reproduce.result import Cell, Result

# (published row, case, function, the replaced arm, {column: arm of each direction})
AUTO = {"forward": "hardware + 3 unit-gap-d7", "backward": "hardware + fp16.unit-odd-d6"}
B2 = ("B2 causal GQA attention, D4 tanh softcap", "b2 batch 1", "softcap-50", "built-in",
      {"auto": AUTO, "hardware only": {"forward": "hardware", "backward": "hardware"}, "reciprocal score_mod": {"forward": "reciprocal", "backward": "reciprocal"}})  # fmt: skip
B3 = ("B3 causal GQA attention, D3/D4 sigmoid", "b3 batch 1", "sigmoid", "exponential",
      {"auto": {"forward": "hardware + bf16.fused-odd-relu-d4.normal", "backward": "hardware"}, "hardware only": {"forward": "hardware", "backward": "hardware"},
       "polynomial only": {"forward": "bf16.odd-square-relu-d3.normal", "backward": "bf16.odd-square-relu-d3.normal"}})  # fmt: skip
ACTIVATIONS = {"B1 one-kernel SiLU, D3, 58720256 BF16 elements": ("b1", "silu"), "B4 one-kernel expert SwiGLU, D3, 24576 rows x 1280": ("b4", "swiglu")}


def reproduce(progress: Any) -> Result:
    component, one = checked_in("component", "table4", "polyfma bench component")
    attention, two = checked_in("attention", "table4", "polyfma bench attention")
    rows = published()["table4_component_speedup"]["rows"]
    cells: list[Cell] = []
    for row, printed in rows.items():
        for place, direction in enumerate(("forward", "backward")):
            for arm, speedup in _speedups(row, direction, component, attention).items():
                counterpart = arm in ("d3", "auto") and not (arm == "auto" and row in ACTIVATIONS)
                cells.append(Cell(f"{row.split()[0]} {direction}: {arm}", "speed", speedup, printed[place] if counterpart else None))
    notes = (*(f"{row.split()[0]}: {row.partition(' ')[2]}" for row in rows), one, two, "B1, B4: torch's eager time over ours (d3: the published degree; auto: the default), in CUDA graphs; B2: FlashAttention-4's"
             " built-in softcap over ours; B3: the same kernel with exp and rcp over ours", "the published figures are of a GB200")  # fmt: skip
    return Result("Table 4: components, speed against what they replace", tuple(cells), notes)


def _speedups(row: str, direction: str, component: Measurement, attention: Measurement) -> dict[str, float]:
    if row in ACTIVATIONS:
        case, function = ACTIVATIONS[row]
        wanted = {"case": case, "function": function, "direction": direction, "where": "graph"}
        return _ratios(component, wanted, "torch", {"d3": "d3", "auto": "polynomial", "exact": "exact"})
    _, case, function, base, columns = B2 if row.startswith("B2") else B3
    wanted = {"case": case, "function": function, "direction": direction, "where": "graph"}
    return _ratios(attention, wanted, base, {column: arms[direction] for column, arms in columns.items()})


def _ratios(measurement: Measurement, wanted: dict[str, str], base: str, arms: dict[str, str]) -> dict[str, float]:
    replaced = find(measurement.timings, arm=base, **wanted)
    found = {column: find(measurement.timings, arm=arm, **wanted) for column, arm in arms.items()}
    return {column: replaced.median_us / t.median_us for column, t in found.items() if t and replaced}
