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


RESULTS = ROOT / "benchmarks" / "results"


@pytest.mark.parametrize("target", ["cuda", "triton", "cute"])
def test_the_gpu_ran_the_catalogue_as_it_is(target: str) -> None:
    """What docs/kernels.md says of silicon is about these programs: same digests, no result different."""
    import polyfma as pf

    run = json.loads((RESULTS / "h200" / f"emitted-{target}.json").read_text())
    assert run["digests"] == {n: pf.load(n).digest[:16] for n in pf.programs()}
    assert run["differing"] == [] and run["programs"][target] == len(pf.programs())
    for layout in ("packed", "f32-packed", "f32"):
        assert run["results"][target][layout]["compared"] >= 2 * 65536 * len(pf.programs()) and run["results"][target][layout]["differ"] == 0


def test_nominal_rates_are_near_what_was_measured() -> None:
    """Within a tenth, but for what the file says of packed MUFU (two instructions) and abs (one half of the pipe)."""
    rates = json.loads((RESULTS / "h200" / "rates.json").read_text())["rates"]
    for r in rates:
        halved = r["instruction"].startswith("abs") or (r["pipe"] == "mufu" and "x2" in r["instruction"])
        assert 0.9 <= r["median"] / (r["nominal"] / (2 if halved else 1)) <= 1.02, r["instruction"]


def test_audits_are_of_the_catalogue_as_it_is() -> None:
    import polyfma as pf

    for a in json.loads((RESULTS / "cpu" / "audits.json").read_text())["audits"]:
        assert "refused" in a or a["digest"] == pf.load(a["program"]).digest, a["program"]
