"""Runs the attention tests on this machine's GPU and writes their record to OUT_DIR/attention-tests.json.

    python benchmarks/attention_on_gpu.py OUT_DIR
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from operators_on_gpu import run_tests

from polyfma.attention.fa4.call import versions_used
from polyfma.bench.result import machine
from polyfma.files import write_text

if __name__ == "__main__":
    status, outcome = run_tests(["test_attention_gpu.py"], workers=5)
    found = machine()
    found["versions"] |= versions_used()
    write_text(Path(sys.argv[1]) / "attention-tests.json", json.dumps(found | outcome, indent=1) + "\n")
    sys.exit(status)
