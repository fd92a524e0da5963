"""Runs the operators' tests on a GPU and keeps their record: what the claim "the same bits on the GPU" rests on.

    python benchmarks/operators_on_gpu.py OUT_DIR

Needs torch with a CUDA GPU and pytest. Writes OUT_DIR/operators.json: device, versions, and how many tests passed, failed
and were skipped (each with its reason), with the names of those that ran on the GPU.
"""

from __future__ import annotations

import json
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from polyfma.bench.result import machine
from polyfma.files import write_text

TESTS = ("test_ops.py", "test_ops_torch.py", "test_ops_kernels.py")


def main() -> int:
    folder = Path(__file__).parents[1] / "tests"
    with tempfile.TemporaryDirectory() as temporary:
        report = Path(temporary) / "junit.xml"
        status = pytest.main([*(str(folder / t) for t in TESTS), "-m", "gpu", "-q", f"--junitxml={report}"])
        cases = list(ElementTree.parse(report).iter("testcase"))
    failed = [c.get("name") for c in cases if c.find("failure") is not None or c.find("error") is not None]
    skipped = {c.get("name"): s.get("message") for c in cases if (s := c.find("skipped")) is not None}
    passed = [c.get("name") for c in cases if c.get("name") not in failed and c.get("name") not in skipped]
    record = machine() | {"passed": len(passed), "failed": len(failed), "skipped": skipped, "failures": failed, "tests": passed}
    write_text(Path(sys.argv[1]) / "operators.json", json.dumps(record, indent=1) + "\n")
    print(f"{len(passed)} passed, {len(failed)} failed, {len(skipped)} skipped")
    return int(status)


if __name__ == "__main__":
    sys.exit(main())
