"""The defaults of attention, made of a measurement: every mix that was timed, fastest first, with its errors.

A mix's time is the geometric mean of its kernel's at batch 1 and batch 4, in one run with all the others. Forward errors are
those of outputs with q and k at scale 1 and 2, backward ones those of dq, dk and dv.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

from polyfma.attention.choice import FILE, MEASURED
from polyfma.bench.result import Measurement, Timing
from polyfma.errors import PolyfmaError
from polyfma.files import write_text

FUNCTIONS = {"softcap": ("b2", "softcap-50"), "sigmoid": ("b3", "sigmoid")}
SCALES = ("1", "2")
_DEVICE = "H200"


def defaults(measurement: Measurement) -> dict[str, Any]:
    """The content of ``defaults.json``. Raises PolyfmaError where the measurement lacks a case, a batch, or is of another device."""
    check_device(measurement.machine["device"])
    arms: dict[str, Any] = {function: {d: _arms(measurement, case, name, d) for d in ("forward", "backward")} for function, (case, name) in FUNCTIONS.items()}
    return {MEASURED: arms}


def check_device(name: str) -> None:
    """Raises PolyfmaError for a GPU that defaults are not kept for."""
    if _DEVICE not in name:
        raise PolyfmaError(f"defaults are kept for {MEASURED}, measured on an {_DEVICE}, not on {name}")


def _arms(measurement: Measurement, case: str, function: str, direction: str) -> list[dict[str, Any]]:
    times: dict[str, list[Timing]] = {}
    for t in measurement.timings:
        timed = t.case in (f"{case} batch 1", f"{case} batch 4") and (t.function, t.direction, t.where) == (function, direction, "graph")
        if timed and t.program:
            times.setdefault(t.arm, []).append(t)
    found = [_arm(measurement, case, direction, arm, timings) for arm, timings in times.items() if len(timings) == 2]
    if not found:
        raise PolyfmaError(f"the measurement has no {function} {direction} at batch 1 and 4; polyfma bench attention measures all that is needed")
    return sorted(found, key=lambda entry: entry["us"])


def _arm(measurement: Measurement, case: str, direction: str, arm: str, timings: Sequence[Timing]) -> dict[str, Any]:
    facts = next(v for k, v in measurement.facts.items() if k in (f"{case} {arm}", f"{case} {arm}, bias 0"))
    wanted = [f"output, scale {s}" for s in SCALES] if direction == "forward" else ["dq", "dk", "dv"]
    mean = math.sqrt(math.prod(t.median_us for t in timings))
    return {"mix": timings[0].program, "us": round(mean, 2), "errors": {name: float(f"{facts[name]:.3e}") for name in wanted if name in facts}}


def write(measurement: Measurement) -> None:
    """Make ``defaults.json`` of a measurement."""
    write_text(FILE, json.dumps(defaults(measurement), indent=1) + "\n")
