"""Runs the operators' tests on a GPU and keeps their record: what the claim "the same bits on the GPU" rests on.

    python benchmarks/operators_on_gpu.py OUT_DIR

Needs torch with a CUDA GPU and pytest. Writes OUT_DIR/operators.json: device, versions, how many tests passed, failed and were
skipped (each with its reason), with the names of those that ran on the GPU; and for every function and direction how many of the
65,536 inputs torch's own operator and program="exact" round wrongly there, against correctly rounded tables (the CPU's,
which the tests hold against rigorous ones). NaN where the limit is a number counts; the sign of a zero does not.
"""

from __future__ import annotations

import json
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest
import torch

from polyfma import ops
from polyfma.bench.result import machine
from polyfma.files import write_text
from polyfma.ops.dtypes import DTYPES

TESTS = ("test_ops.py", "test_ops_torch.py", "test_ops_kernels.py")



def misrounded() -> dict[str, dict[str, dict[str, int]]]:
    """{function direction: {dtype: {torch, exact}}}."""
    functional = torch.nn.functional
    pairs = {"sigmoid": (ops.sigmoid, functional.sigmoid), "tanh": (ops.tanh, functional.tanh), "silu": (ops.silu, functional.silu),
             "gelu": (ops.gelu, functional.gelu), "gelu-tanh": (_ours_tanh, _theirs_tanh)}  # fmt: skip
    counts: dict[str, dict[str, dict[str, int]]] = {}
    for name, (ours, theirs) in pairs.items():
        for fmt, dtype in DTYPES.items():
            x = torch.arange(65536, dtype=torch.int32).to(torch.int16).view(dtype)
            want = _both(lambda t, f=ours: f(t, program="exact"), x)
            for place, direction in enumerate(("forward", "backward")):
                found = {"torch": _both(theirs, x.cuda())[place], "exact": _both(lambda t, f=ours: f(t, program="exact"), x.cuda())[place]}
                counts.setdefault(f"{name} {direction}", {})[fmt] = {arm: _differ(got, want[place]) for arm, got in found.items()}
    return counts


def _ours_tanh(x: torch.Tensor, program: str) -> torch.Tensor:
    return ops.gelu(x, approximate="tanh", program=program)


def _theirs_tanh(x: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.gelu(x, approximate="tanh")


def _both(function, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Value and derivative of every input, where it lies; the results on the CPU."""
    leaf = x.clone().requires_grad_()
    y = function(leaf)
    y.backward(torch.ones_like(y))
    return y.detach().cpu(), leaf.grad.cpu()


def _differ(got: torch.Tensor, want: torch.Tensor) -> int:
    same = (got.view(torch.int16) == want.view(torch.int16)) | (got.isnan() & want.isnan()) | ((got == 0) & (want == 0))
    return int((~same).sum())


def run_tests(files: Sequence[str], workers: int = 1) -> tuple[int, dict[str, Any]]:
    """pytest's worst exit status, and what passed, failed and was skipped with its reason, of the GPU tests in these files.

    With several ``workers`` the tests are dealt out to processes of their own: most of what they do is compile.
    """
    names = _collected(files)
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        runs = list(pool.map(_run, [names[i::workers] for i in range(workers)]))
    cases = [ElementTree.fromstring(text) for _, text in runs]
    cases = [c for root in cases for c in root.iter("testcase")]
    failed = [c.get("name") for c in cases if c.find("failure") is not None or c.find("error") is not None]
    skipped = {c.get("name"): s.get("message") for c in cases if (s := c.find("skipped")) is not None}
    passed = [c.get("name") for c in cases if c.get("name") not in failed and c.get("name") not in skipped]
    print(f"{len(passed)} passed, {len(failed)} failed, {len(skipped)} skipped")
    return max(status for status, _ in runs), {"passed": len(passed), "failed": len(failed), "skipped": skipped, "failures": failed, "tests": passed}


class _Names:
    """A pytest plugin that keeps the names of what was collected."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self.names = [str(item.path) + "::" + item.nodeid.partition("::")[2] for item in session.items]


def _collected(files: Sequence[str]) -> list[str]:
    found = _Names()
    folder = Path(__file__).parents[1] / "tests"
    pytest.main([*(str(folder / name) for name in files), "-m", "gpu", "-q", "--collect-only", "--no-summary"], plugins=[found])
    return found.names


def _run(names: Sequence[str]) -> tuple[int, str]:
    """(exit status, JUnit report) of some tests."""
    with tempfile.TemporaryDirectory() as temporary:
        report = Path(temporary) / "junit.xml"
        status = pytest.main([*names, "-q", "--tb=short", f"--junitxml={report}"])
        return int(status), report.read_text(encoding="utf-8")


def main() -> int:
    status, outcome = run_tests(TESTS)
    names = outcome.pop("tests")
    write_text(Path(sys.argv[1]) / "operators.json", json.dumps(machine() | outcome | {"misrounded": misrounded(), "tests": names}, indent=1) + "\n")
    return status


if __name__ == "__main__":
    sys.exit(main())
