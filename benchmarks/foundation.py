"""Times the foundation on this machine and writes benchmarks/results/cpu/foundation.json.

    python benchmarks/foundation.py

Each figure is the median of several runs with the lowest and highest beside it. Tables are built in a
fresh cache, fits and certificates with tables present.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile

from timing import report, timed

import polyfma as pf
from polyfma.catalog.build import FORMATS, FUNCTIONS
from polyfma.functions import DIRECTIONS, get_function


def build_all_tables() -> None:
    code = "from polyfma.functions import get_function\n"
    for function in (*FUNCTIONS, "exp2"):
        for direction in DIRECTIONS:
            for fmt in FORMATS:
                code += f"get_function({function!r}, {direction!r}).table({fmt!r})\n"
    with tempfile.TemporaryDirectory() as cache:
        subprocess.run([sys.executable, "-c", code], check=True, env=os.environ | {"POLYFMA_CACHE_DIR": cache})


def import_alone() -> None:
    subprocess.run([sys.executable, "-c", "import polyfma"], check=True)


def main() -> None:
    program = pf.load("sigmoid.forward.bf16.d4.endpoint-ls")
    bits = program.fmt.all_bits()
    get_function("sigmoid").table("bf16")
    figures = {
        "fit sigmoid BF16 D4 endpoint-ls, published search": (lambda: pf.fit("sigmoid", degree=4, method="endpoint-ls"), 3),
        "fit gelu FP16 D5 endpoint-ls, published search": (lambda: pf.fit("gelu", format="fp16", degree=5, method="endpoint-ls"), 3),
        "certificate of one program, tables present": (lambda: pf.certify(program), 20),
        "exhaustive fused replay, BF16 D4": (lambda: pf.replay(program, bits), 20),
        "python -c 'import polyfma', whole process": (import_alone, 10),
        "all function tables, empty cache": (build_all_tables, 1),
    }
    results = {name: timed(work, runs) for name, (work, runs) in figures.items()}
    report("foundation", ("numpy", "python-flint"), results)


if __name__ == "__main__":
    main()
