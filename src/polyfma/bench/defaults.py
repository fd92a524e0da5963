"""Which programs the operators run by default: measured, then chosen by one rule.

Of the programs that may be a default (exact tails, NaN, limits) the four most accurate are timed against the best copy of the same
traffic at L2 and HBM size. The default of a function, direction and dtype is the most accurate one (least error weighted by
1/max(1, |f|/2), then fewest instructions) that ran within 1.04 of the copy at 4,194,304 elements and 1.01 at 268,435,456; where none
did, the nearest to the copy.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import Any

import torch

from polyfma.bench.arms import floor
from polyfma.bench.isolated import HBM, L2
from polyfma.bench.isolated import PROTOCOL as ISOLATED
from polyfma.bench.result import COPIES, Measurement, Timing, find
from polyfma.bench.timing import Call, graph_rounds, need_gpu
from polyfma.catalog import load
from polyfma.files import write_text
from polyfma.ops import execute
from polyfma.ops.choice import EXACT, Choice, adapted, register
from polyfma.ops.dtypes import DTYPES, FORMATS
from polyfma.pareto import Entry, candidates_for

LIMITS = {L2: 1.04, HBM: 1.01}
FUNCTIONS = ("sigmoid", "tanh", "silu", "silu-1.702", "gelu", "gelu-tanh", "softcap")
FILE = Path(str(files("polyfma.ops"))) / "defaults.json"


def candidates(function: str, fmt: str, direction: str) -> list[Entry]:
    """Programs that may be the default.

    For a softcap in FP16 the catalogue has none. The derivative is one of tanh with x scaled before. Of the value, tanh's own
    error is no measure: it must be x where x is small against the cap, and there x/cap is subnormal in FP16. So it is the softcap
    program that computes in fp32, with FP16 in and out.
    """
    base = function
    if function == "softcap":
        if (fmt, direction) == ("fp16", "forward"):
            return [e for e in candidates_for("softcap-50", direction, "bf16", True) if e.wider]
        base = "softcap-50" if fmt == "bf16" else "tanh"
    found = sorted(candidates_for(base, direction, fmt, True), key=lambda e: (e.error, e.instructions, e.name))
    distinct: dict[tuple[float, int], Entry] = {}
    for e in found:  # of several with one error and length, mostly one program under several names, the first
        distinct.setdefault((e.error, e.instructions), e)
    return list(distinct.values())[:4]


def measure(progress: Callable[..., None] = lambda *_: None) -> Measurement:
    """The four most accurate candidates of every function, direction and dtype beside the copy."""
    need_gpu()
    measurement = Measurement("programs", {name: ISOLATED[name] for name in ("graph", "data")})
    cases = [(t, n, f, d) for t in DTYPES for n in LIMITS for f in FUNCTIONS for d in ("forward", "backward")]
    for done, (dtype, elements, function, direction) in enumerate(cases):
        progress(done, len(cases), f"{function} {direction} {dtype} {elements:,}")
        measurement.timings += _case(function, direction, dtype, elements)
    return measurement


def _case(function: str, direction: str, dtype: str, elements: int) -> list[Timing]:
    x = torch.empty(elements, dtype=DTYPES[dtype], device="cuda").normal_(std=3.0)
    grad, out = torch.empty_like(x).normal_(), torch.empty_like(x)
    forward = direction == "forward"
    arms: dict[str, Call] = {"copy kernel": floor([x] if forward else [grad, x], [out])}
    if forward:
        arms["cuda memcpy"] = partial(out.copy_, x)
    for e in candidates(function, FORMATS[x.dtype], direction):
        name = register(adapted(load(e.name), "softcap-50", 50.0, dtype)) if function == "softcap" else e.name
        key = Choice("softcap-50" if function == "softcap" else function, dtype, name if forward else EXACT, EXACT if forward else name).key
        arms[e.name] = partial(execute.run, key, "unary", (x,), (out,)) if forward else partial(execute.run, key, "unary_backward", (grad, x), (out,))
    names = {arm: arm for arm in arms if "." in arm}
    return [Timing("programs", function, direction, dtype, elements, arm, "graph", rounds, names.get(arm)) for arm, rounds in graph_rounds(arms).items()]


def chosen(timings: Sequence[Timing]) -> dict[str, Any]:
    """The defaults by the rule: {function: {format: {direction: program}}}."""
    table: dict[str, Any] = {}
    for function in FUNCTIONS:
        for fmt in DTYPES:
            for direction in ("forward", "backward"):
                ratios = {e.name: _ratios(timings, function, direction, fmt, e.name) for e in candidates(function, fmt, direction)}
                fitting = [name for name, r in ratios.items() if all(r[n] <= LIMITS[n] for n in LIMITS)]
                name = fitting[0] if fitting else min(ratios, key=lambda n: max(ratios[n].values()))
                table.setdefault(function, {}).setdefault(fmt, {})[direction] = name
    return table


def _ratios(timings: Sequence[Timing], function: str, direction: str, dtype: str, arm: str) -> dict[int, float]:
    """Time over the best copy, by size."""
    found = {}
    for elements in LIMITS:
        case = {"function": function, "direction": direction, "dtype": dtype, "elements": elements}
        copies = [t.median_us for name in COPIES if (t := find(timings, arm=name, **case))]
        own = find(timings, arm=arm, **case)
        found[elements] = own.median_us / min(copies) if own else float("inf")
    return found


def write(timings: Sequence[Timing]) -> None:
    """Replace the operators' defaults by what the rule says of these timings."""
    write_text(FILE, json.dumps({"programs": chosen(timings)}, indent=1) + "\n")
