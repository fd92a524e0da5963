"""Times the search in the format and the proofs on this machine; writes benchmarks/results/cpu/search.json.

    python benchmarks/search.py

Compiled code is made once before anything is timed. Fits are the median of three runs, proofs one run each.
"""

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
from polyfma.fit import lattice
from polyfma.fit.proof import prove

RESULT = Path(__file__).parent / "results" / "cpu" / "search.json"
FITS = (("sigmoid", "bf16", 3), ("tanh", "bf16", 4), ("silu", "bf16", 4), ("gelu", "bf16", 5), ("silu", "fp16", 4))
PROOFS = ("sigmoid.forward.bf16.fused-odd-relu-d3", "tanh.forward.bf16.fused-odd-d3", "sigmoid.forward.bf16.fused-odd-relu-d4",
          "sigmoid.forward.bf16.fused-odd-d4.free", "tanh.forward.bf16.fused-odd-d4", "tanh.forward.bf16.fused-odd-d4.free")  # fmt: skip


def timed(work: Callable[[], Any], runs: int) -> dict[str, float]:
    seconds = []
    for _ in range(runs):
        lattice._SOLVED.clear()
        start = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - start)
    return {"median_s": statistics.median(seconds), "min_s": min(seconds), "max_s": max(seconds), "runs": runs}


def main() -> None:
    pf.fit("tanh", degree=2, effort="quick")  # compiles
    prove(pf.load(PROOFS[1]))
    results = {f"fit {f} {fmt} D{d}": timed(lambda f=f, fmt=fmt, d=d: pf.fit(f, format=fmt, degree=d), 3) for f, fmt, d in FITS}
    results |= {f"prove {name}": timed(lambda name=name: prove(pf.load(name)), 1) for name in PROOFS}
    about = {"cpu": platform.processor() or platform.machine(), "cores": os.cpu_count(), "python": platform.python_version(),
             "numba": version("numba"), "scipy": version("scipy"), "polyfma": pf.__version__}  # fmt: skip
    write_text(RESULT, json.dumps(about | {"figures": results}, indent=1) + "\n")
    for name, r in results.items():
        print(f"{name:55} {r['median_s']:8.2f} s   ({r['min_s']:.2f} .. {r['max_s']:.2f}, {r['runs']} runs)")


if __name__ == "__main__":
    main()
