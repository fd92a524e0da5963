"""Measurements: their schema, the rule of the defaults, tables and pictures made of them. Nothing is timed here."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import polyfma as pf
from polyfma.bench import defaults, isolated, result
from polyfma.bench.result import Measurement, Timing, comparisons, find, read
from polyfma.ops import choice

RESULTS = Path(__file__).parents[1] / "benchmarks" / "results" / "h200"


def timing(arm, us, elements=isolated.L2, function="silu", direction="forward", dtype="bf16", where="graph", program=None):
    return Timing("isolated", function, direction, dtype, elements, arm, where, (us, 1.1 * us, 0.9 * us), program, 4 * elements)


def test_a_measurement_reads_back(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(result, "machine", lambda: {"device": "one", "driver": None, "cuda": None, "versions": {}, "commit": "abc"})
    measured = Measurement("isolated", {"graph": "so"}, [timing("torch", 5.0), timing("polynomial", 4.0)], {"bytes": 3})
    measured.write(tmp_path / "a.json")
    again = read(tmp_path / "a.json")
    assert again == measured and again.machine["device"] == "one" and again.to_dict() == measured.to_dict()
    for text in ("{}", "[]", "no", json.dumps(json.loads((tmp_path / "a.json").read_text()) | {"schema": 99})):
        (tmp_path / "b.json").write_text(text)
        with pytest.raises(pf.PolyfmaError):
            read(tmp_path / "b.json")
    with pytest.raises(pf.PolyfmaError, match="cannot read"):
        read(tmp_path / "none.json")


def test_comparisons_are_within_a_case() -> None:
    rows = [timing("copy kernel", 4.0), timing("cuda memcpy", 3.0), timing("torch", 6.0), timing("polynomial", 3.3), timing("torch", 9.0, dtype="fp16")]
    found = {(t.arm, t.dtype): (over, speed) for t, over, speed in comparisons(rows)}
    assert found["polynomial", "bf16"] == (pytest.approx(1.1), pytest.approx(6 / 3.3)) and found["torch", "fp16"] == (None, 1.0)


def synthetic(ratio):
    """Timings of every candidate; ``ratio`` gives the time over a copy of 1 us."""
    found = []
    for function in defaults.FUNCTIONS:
        for fmt in ("bf16", "fp16"):
            for direction in ("forward", "backward"):
                for elements in defaults.LIMITS:
                    found.append(timing("copy kernel", 1.0, elements, function, direction, fmt))
                    for place, e in enumerate(defaults.candidates(function, fmt, direction)):
                        found.append(timing(e.name, ratio(place, elements), elements, function, direction, fmt))
    return found


def test_the_rule_takes_the_most_accurate_program_at_copy_speed() -> None:
    first = defaults.chosen(synthetic(lambda place, n: 1.0))
    second = defaults.chosen(synthetic(lambda place, n: 1.05 if place == 0 and n == isolated.L2 else 1.0))
    nearest = defaults.chosen(synthetic(lambda place, n: 1.5 - 0.1 * place))
    for function in defaults.FUNCTIONS:
        names = [e.name for e in defaults.candidates(function, "bf16", "forward")]
        assert [t[function]["bf16"]["forward"] for t in (first, second, nearest)] == [names[0], names[1], names[-1]]


@pytest.mark.skipif(not (RESULTS / "programs.json").is_file(), reason="no checkout")
def test_the_defaults_are_what_the_checked_in_measurement_says() -> None:
    assert json.loads(defaults.FILE.read_text()) == {"programs": defaults.chosen(read(RESULTS / "programs.json").timings)}
    for function, formats in json.loads(defaults.FILE.read_text())["programs"].items():
        for fmt in formats:
            for direction in ("forward", "backward"):
                program = choice.default_program("softcap-50" if function == "softcap" else function, fmt, direction)
                assert (program.direction, program.format) == (direction, fmt)


def test_checked_in_results_have_the_schema() -> None:
    for name in ("isolated", "component", "host", "programs"):
        data = json.loads((RESULTS / f"{name}.json").read_text())
        assert data["schema"] == result.SCHEMA and data["bench"] == name and "H200" in data["device"]
        assert data["driver"] and data["commit"] and {"torch", "triton", "polyfma"} <= set(data["versions"])
        for t in data["timings"]:
            assert t["lowest_us"] <= t["median_us"] <= t["highest_us"] and len(t["rounds_us"]) >= 5


def test_operators_were_run_on_a_gpu() -> None:
    """The GPU tests' own record: every one passed or says why it was skipped."""
    data = json.loads((RESULTS / "operators.json").read_text())
    assert "H200" in data["device"] and data["failed"] == 0 and data["passed"] > 400
    assert set(data["skipped"].values()) <= {"one GPU", "no hardware form of exact GELU"}


def test_table3_and_the_roofline_come_from_the_checked_in_result(tmp_path) -> None:
    from polyfma import plots
    from polyfma.bench.roofline import roofline
    from polyfma.reproduce import table3
    from polyfma.reproduce.checked_in import FOLDER

    if torch.cuda.is_available():
        pytest.skip("a GPU measures instead")
    table = table3.reproduce(lambda *_: None)
    rows = {(r["row"], r["metric"]): r for r in table.rows()}
    assert len({row for row, _ in rows}) == 6 and "benchmarks/results/h200/isolated.json" in table.notes[0]
    assert rows["sigmoid_fwd_d3", "HBM speedup"]["published"] == 1.249
    measured = read(FOLDER / "isolated.json")
    native, own = (find(measured.timings, function="silu", direction="forward", dtype="fp16", elements=isolated.HBM, arm=a, where="eager") for a in ("torch", "d3"))
    assert rows["silu_fwd_d3", "HBM speedup"]["measured"] == pytest.approx(native.median_us / own.median_us)
    plots.save(roofline(measured), tmp_path / "roofline.png")
    assert (tmp_path / "roofline.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("arguments", [["isolated"], ["component", "--case", "b1"], ["component", "--case", "b2"], ["host"], ["programs"], ["attention"], ["exp2"]])
def test_without_a_gpu_a_bench_says_so(arguments, tmp_path) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    done = subprocess.run([sys.executable, "-m", "polyfma.cli", "bench", *arguments, "--out", str(tmp_path / "x.json")], capture_output=True, text=True, check=False)
    assert done.returncode == 2 and done.stderr.strip() == "polyfma: polyfma bench needs a CUDA GPU; none is here" and not list(tmp_path.iterdir())


def test_unknown_names_are_refused() -> None:
    for call in (lambda: isolated.check_names(["relu"], ["bf16"]), lambda: isolated.check_names(["silu"], ["fp8"]), lambda: isolated.check_sizes(["-3"]),
                 lambda: isolated.check_sizes(["0"])):  # fmt: skip
        with pytest.raises(pf.PolyfmaError):
            call()


def stubbed(monkeypatch):
    """A bench that measures nothing, so that only its arguments count."""
    from polyfma.bench import attention, component, timing

    monkeypatch.setattr(timing, "need_gpu", lambda: None)
    monkeypatch.setattr(attention, "measure", lambda *_, **__: pytest.fail("measured before the arguments were checked"))
    monkeypatch.setattr(isolated, "measure", lambda *_: pytest.fail("measured before the arguments were checked"))
    monkeypatch.setattr(component, "measure", lambda *_: pytest.fail("measured before the arguments were checked"))


@pytest.mark.parametrize("arguments", [["isolated", "--out", "folder.json"], ["isolated", "--out", ""], ["isolated", "--picture", "folder.png"],
                                       ["isolated", "--picture", "/proc/none/y.png"], ["isolated", "--picture", "x.gif"], ["isolated", "--elements", ","],
                                       ["isolated", "--elements", "-4"], ["isolated", "--function", "relu"], ["isolated", "--dtype", ""],
                                       ["component", "--case", ","], ["component", "--case", "b9"], ["isolated", "--out", "pipe"], ["component", "--case", "b1,b2"],
                                       ["attention", "--case", "b9"], ["attention", "--case", "b1"], ["attention", "--case", "exp2", "--tune"],
                                       ["attention", "--picture", "x.gif"], ["attention", "--out", "folder.json"], ["component", "--case", "b2", "--out", ""]])  # fmt: skip
def test_bad_arguments_are_refused_before_measuring(arguments, tmp_path, monkeypatch) -> None:
    """And a pipe or device is left as it is."""
    import os
    import stat

    from polyfma.cli.shell import app

    stubbed(monkeypatch)
    monkeypatch.chdir(tmp_path)
    for name in ("folder.json", "folder.png"):
        (tmp_path / name).mkdir()
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises((pf.PolyfmaError, OSError)):
        app(["bench", *arguments], standalone_mode=False)
    assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode) and len(list(tmp_path.iterdir())) == 3
