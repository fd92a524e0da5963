"""Times the search in the format and the proofs on this machine; writes benchmarks/results/cpu/search.json.

    python benchmarks/search.py

Compiled code is made once before anything is timed. Fits are the median of three runs, proofs one run each.
"""

from __future__ import annotations

from timing import report, timed

import polyfma as pf
from polyfma.fit import real
from polyfma.fit.proof import prove

FITS = (("sigmoid", "bf16", 3), ("tanh", "bf16", 4), ("silu", "bf16", 4), ("gelu", "bf16", 5), ("silu", "fp16", 4))
PROOFS = ("sigmoid.forward.bf16.fused-odd-relu-d3", "tanh.forward.bf16.fused-odd-d3", "sigmoid.forward.bf16.fused-odd-relu-d4",
          "sigmoid.forward.bf16.fused-odd-d4.free", "tanh.forward.bf16.fused-odd-d4", "tanh.forward.bf16.fused-odd-d4.free")  # fmt: skip


def fit_anew(function: str, fmt: str, degree: int) -> None:
    real.forget(0)  # or later runs would find their linear programmes solved
    pf.fit(function, format=fmt, degree=degree)


def main() -> None:
    pf.fit("tanh", degree=2, effort="quick")  # compiles
    prove(pf.load(PROOFS[1]))
    results = {f"fit {f} {fmt} D{d}": timed(lambda f=f, fmt=fmt, d=d: fit_anew(f, fmt, d), 3) for f, fmt, d in FITS}
    results |= {f"prove {name}": timed(lambda name=name: prove(pf.load(name)), 1) for name in PROOFS}
    report("search", ("numba", "scipy", "numpy"), results)


if __name__ == "__main__":
    main()
