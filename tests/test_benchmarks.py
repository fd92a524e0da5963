"""The GPU benchmark's source, as far as a machine without a GPU can check it; and its checked-in result."""

from __future__ import annotations

import importlib.util
import json
import subprocess
from pathlib import Path
from types import ModuleType

import pytest

from polyfma.program import OPERATIONS

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def operations() -> ModuleType:
    spec = importlib.util.spec_from_file_location("operations_on_gpu", ROOT / "benchmarks" / "operations_on_gpu.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.usefixtures("nvcc")
def test_every_packed_operation_assembles(operations: ModuleType, tmp_path: Path) -> None:
    source = tmp_path / "ops.cu"
    source.write_text(operations.source())
    subprocess.run(["nvcc", "-arch=sm_90", "--cubin", "-o", str(tmp_path / "ops.cubin"), str(source)], check=True, capture_output=True)
    assert (tmp_path / "ops.cubin").stat().st_size > 1000


def test_the_checked_in_result_covers_every_arithmetic_operation() -> None:
    """copysign and select are bitwise, cvt is compared with ml_dtypes; all others were compared on the GPU."""
    result = json.loads((ROOT / "benchmarks" / "results" / "h200" / "operations.json").read_text())
    compared = {(o["op"], o["format"]) for o in result["operations"]}
    for op in set(OPERATIONS) - {"copysign", "select", "cvt", "tanh.approx", "ex2.approx"}:
        for fmt in ("bf16", "fp16"):
            assert (op, fmt) in compared or (op, fmt) == ("fma.sat", "bf16")
    assert all(o["differ"] == 0 and o["compared"] >= 1 << 21 for o in result["operations"])
    assert result["device"] == "NVIDIA H200" and result["driver"] and result["nvcc"]
