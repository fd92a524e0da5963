"""What the CPU benchmarks share: timing of a call, and the result file with the machine it came from."""

from __future__ import annotations

import json
import os
import platform
import statistics
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import polyfma as pf
from polyfma.files import write_text

RESULTS = Path(__file__).parent / "results" / "cpu"


def timed(work: Callable[[], Any], runs: int) -> dict[str, float]:
    """Seconds of a call: median, lowest and highest of ``runs``."""
    seconds = []
    for _ in range(runs):
        start = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - start)
    return {"median_s": statistics.median(seconds), "min_s": min(seconds), "max_s": max(seconds), "runs": runs}


def report(name: str, packages: tuple[str, ...], results: dict[str, dict[str, float]]) -> None:
    """Write results/cpu/NAME.json and print a table."""
    about = {"cpu": platform.processor() or platform.machine(), "cores": os.cpu_count(), "python": platform.python_version()}
    versions = {p: version(p) for p in packages} | {"polyfma": pf.__version__}
    write_text(RESULTS / f"{name}.json", json.dumps(about | versions | {"figures": results}, indent=1) + "\n")
    for label, r in results.items():
        print(f"{label:55} {r['median_s']:8.3f} s   ({r['min_s']:.3f} .. {r['max_s']:.3f}, {r['runs']} runs)")
