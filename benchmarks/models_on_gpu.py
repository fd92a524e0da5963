"""Runs the models' tests on this machine's GPU and writes their record to OUT_DIR/models-tests.json.

    python benchmarks/models_on_gpu.py OUT_DIR
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from operators_on_gpu import run_tests

from polyfma.bench.result import machine
from polyfma.files import write_text

if __name__ == "__main__":
    status, outcome = run_tests(["test_models_gpu.py"], workers=5)
    write_text(Path(sys.argv[1]) / "models-tests.json", json.dumps(machine() | outcome, indent=1) + "\n")
    sys.exit(status)
