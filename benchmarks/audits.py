"""Audits the programs that docs/kernels.md tabulates: machine instructions by pipe, for several architectures.

    python benchmarks/audits.py

Needs ptxas and cuobjdump (a CUDA toolkit or the triton package), no GPU. Writes results/cpu/audits.json.
"""

from __future__ import annotations

import json

from timing import RESULTS

import polyfma as pf
from polyfma.files import write_text

ARCHITECTURES = ("sm_80", "sm_90", "sm_100", "sm_120")
FUNCTIONS = ("sigmoid", "tanh", "silu", "gelu")


def names() -> list[str]:
    defaults = [f"{f}.forward.{fmt}.d{d}" for f in FUNCTIONS for fmt in ("bf16", "fp16") for d in (3, 4, 5)]
    hardware = [f"{f}.forward.{fmt}.hardware" for f in FUNCTIONS[:3] for fmt in ("bf16", "fp16")]
    return [*defaults, *hardware]


def main() -> None:
    rows = []
    for name in names():
        for arch in ARCHITECTURES:
            try:
                rows.append(pf.audit(pf.load(name), arch).to_dict())
            except pf.ProgramError as refusal:
                rows.append({"program": name, "architecture": arch, "refused": str(refusal)})
        print(name)
    write_text(RESULTS / "audits.json", json.dumps({"polyfma": pf.__version__, "audits": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
