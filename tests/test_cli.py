"""The command line as a user runs it: a process, its exit status, stdout, stderr and files."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import polyfma as pf


def run(*arguments: str, cwd: Path | None = None, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "polyfma.cli", *arguments], capture_output=True, text=True, cwd=cwd,
                          env=os.environ | env, check=False, stdin=subprocess.DEVNULL)  # fmt: skip


def test_fit_writes_program_certificate_and_picture(tmp_path: Path) -> None:
    done = run("fit", "silu", "--format", "bf16", "--degree", "4", "--method", "endpoint-ls", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    folder = tmp_path / "polyfma-out" / "silu.forward.bf16.d4.endpoint-ls"
    assert sorted(p.name for p in folder.iterdir()) == ["certificate.json", "error.png", "program.json"]
    program = pf.load(folder / "program.json")
    certificate = json.loads((folder / "certificate.json").read_text())["certificate"]
    assert pf.certify(program).differences(certificate) == []
    assert (folder / "error.png").read_bytes().startswith(b"\x89PNG")
    assert "max absolute error" in done.stdout and "max ulp error" in done.stdout and done.stderr == ""
    again = run("certify", str(folder / "program.json"))
    assert again.returncode == 0 and "stored certificate holds" in again.stdout


def test_fit_json(tmp_path: Path) -> None:
    done = run("fit", "exp2", "--degree", "2", "--format", "fp16", "--json", "--out", str(tmp_path))
    data = json.loads(done.stdout)
    assert pf.Program.from_dict(data["program"]).form == "exp2-d2" and data["certificate"]["inputs"] == 65536
    assert all(Path(f).is_file() for f in data["files"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["fit", "relu"], "unknown function 'relu'"),
        (["fit", "silu", "--format", "int8"], "unknown format 'int8'"),
        (["fit", "silu", "--degree", "9"], "degree 9 is outside 1..8"),
        (["fit", "silu", "--degree", "0"], "degree 0 is outside 1..8"),
        (["fit", "silu", "--method", "endpoint-ls", "--li", "-1"], "must be a positive number"),
        (["fit", "silu", "--method", "endpoint-ls", "--lc", "0"], "must be a positive number"),
        (["fit", "silu", "--method", "endpoint-ls", "--li", "2", "--lc", "4"], "exceeds Li"),
        (["fit", "silu", "--method", "magic"], "unknown fitting method"),
        (["fit", "softcap-50", "--format", "fp16", "--method", "endpoint-ls"], "becomes subnormal in fp16"),
        (["fit", "silu", "--sigma", "-1"], "sigma -1.0 must be a positive"),
        (["fit", "silu", "--distribution", "absent.json"], "must be JSON"),
        (["fit", "silu", "--sigma", "1", "--distribution", "absent.json"], "not both"),
        (["fit", "exp2", "--direction", "backward"], "forward only"),
        (["certify", "."], "is a folder"),
        (["certify", "silu.forward.bf16.d4.endpoint"], "near: silu.forward.bf16.d4.endpoint-ls"),
        (["certify", "nowhere/x.json"], "no program file"),
        (["show", "x"], "no program 'x' in the catalogue"),
        (["show", "tanh.forward.bf16.d3.sollya", "--png", "x.gif"], "must end in .png or .svg"),
        (["list", "--function", "relu"], "no catalogue program with function=relu"),
        (["reproduce", "table99"], "unknown table or figure"),
        (["catalog", "build", "--only", "zzz"], "no catalogue row"),
        (["catalog", "build", "--only", "tanh.forward.bf16.d2", "--effort", "foo"], "unknown effort 'foo'; known: scout, quick"),
        (["list", "--picture", "x.png"], "give --pareto with it"),
        (["fit", "silu", "--degree", "four"], "Invalid value for '--degree'"),
        (["fit", "silu", "--monotone", "nan"], "monotone nan must be a number of ulps"),
        (["fit", "silu", "--seed", "99999999999999999999"], "seed 99999999999999999999 must be"),
        (["frobnicate"], "No such command 'frobnicate'"),
        (["fit"], "Missing argument 'function'"),
        (["report", "fits", "--out", "/proc/x.html"], "cannot write or read"),
        (["fit", "silu", "--out", "/proc/x"], "cannot write or read"),
        (["emit", "silu.forward.bf16.d4"], "Missing option '--target'"),
        (["emit", "silu.forward.bf16.d4", "--target", "metal"], "unknown target 'metal'; known: ptx, cuda, triton, cute, c"),
        (["emit", "silu.forward.bf16.d4", "--target", "ptx", "--arch", "sm_75"], "begins with sm_80"),
        (["emit", "tanh.forward.bf16.hardware", "--target", "ptx", "--arch", "sm_89"], "tanh.approx.bf16x2, which begins with sm_90"),
        (["emit", "silu.forward.bf16.d4", "--target", "ptx", "--output", "slope"], "has no output 'slope'"),
        (["emit", "tanh.forward.fp16.d4", "--target", "ptx", "--input-scale", "0.02"], "becomes subnormal in fp16"),
        (["emit", "tanh.forward.bf16.d4", "--target", "cuda", "--hybrid", "tanh.forward.bf16.d3"], "a program of the special-function unit"),
        (["audit", "silu.forward.bf16.d4", "--arch", "sm_91"], "unknown architecture 'sm_91'"),
        (["audit", "silu.forward.bf16.d4", "--arch", "sm_90,sm_91"], "unknown architecture 'sm_91'"),
        (["audit", "silu.forward.bf16.d4", "--arch", ","], "no architecture given"),
    ],
)
def test_bad_input_is_one_line_and_status_2(arguments: list[str], message: str, tmp_path: Path) -> None:
    done = run(*arguments, cwd=tmp_path)
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr.startswith("polyfma: ") and message in done.stderr and done.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_an_interrupt_says_so_and_leaves_nothing(tmp_path: Path) -> None:
    process = subprocess.Popen([sys.executable, "-m", "polyfma.cli", "fit", "silu", "--effort", "thorough"], cwd=tmp_path, text=True,
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL)  # fmt: skip
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(6)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=120)
    assert (process.returncode, out, err) == (130, "", "polyfma: interrupted\n")
    assert list(tmp_path.iterdir()) == []


def test_help_without_a_command() -> None:
    done = run()
    assert done.returncode == 2 and "Usage:" in done.stdout and done.stderr == ""


def test_emit_and_audit(tmp_path: Path) -> None:
    done = run("emit", "silu.forward.bf16.d4", "--target", "ptx")
    assert done.returncode == 0 and done.stdout == pf.emit(pf.load("silu.forward.bf16.d4"), "ptx")
    done = run("emit", "silu.forward.bf16.d4", "--target", "c", "--out", str(tmp_path / "silu.h"))
    assert done.returncode == 0 and (tmp_path / "silu.h").read_text() == pf.emit(pf.load("silu.forward.bf16.d4"), "c")
    audited = json.loads(run("audit", "silu.forward.bf16.d4", "--arch", "sm_90,sm_100", "--json").stdout)
    assert [a["architecture"] for a in audited] == ["sm_90", "sm_100"] and audited[0]["cost"] == 1.75 and audited[1]["cost"] is None
    assert "machine instructions" in run("audit", "silu.forward.bf16.d4").stdout


@pytest.mark.parametrize("content", ["", "{", "[]", "{}", '{"name": "x"}', "\x00\x01"])
def test_files_that_are_not_programs(content: str, tmp_path: Path) -> None:
    path = tmp_path / "p.json"
    path.write_text(content)
    for command in ("certify", "show"):
        done = run(command, str(path))
        assert done.returncode == 2 and done.stderr.count("\n") == 1 and "not a program" in done.stderr


def test_a_changed_program_fails_against_its_certificate(tmp_path: Path) -> None:
    p = pf.load("tanh.forward.bf16.d4.sollya")
    changed = p.with_consts({"c2": int(p.consts["c2"], 16) ^ 1})
    (tmp_path / "program.json").write_text(changed.to_json())
    (tmp_path / "certificate.json").write_text(pf.certify(p).to_json())
    done = run("certify", str(tmp_path / "program.json"))
    assert done.returncode == 1 and "certificate does not hold: digest" in done.stderr
    as_json = json.loads(run("certify", str(tmp_path / "program.json"), "--json").stdout)
    assert as_json["holds"] is False and as_json["differences"]
    (tmp_path / "program.json").write_text(p.to_json().replace(p.consts["c2"], changed.consts["c2"]))
    assert "digest" in run("certify", str(tmp_path / "program.json")).stderr
    (tmp_path / "other.json").write_text("{}")
    done = run("certify", "tanh.forward.bf16.d4.sollya", "--against", str(tmp_path / "other.json"))
    assert done.returncode == 2 and "no certificate" in done.stderr


def test_list_and_show() -> None:
    rows = json.loads(run("list", "--json", "--function", "tanh", "--format", "bf16").stdout)
    assert rows and all(r["function"] == "tanh" and r["format"] == "bf16" for r in rows)
    assert {"program", "instructions", "max_abs_error", "exact_tails"} <= set(rows[0])
    text = run("list", "--function", "exp2").stdout
    assert "exp2.forward.fp16.pwl2.minimax" in text and "…" not in text
    shown = run("show", "sigmoid.forward.bf16.d3.sollya").stdout
    assert "c" in shown and "t = min.nan(r0, " in shown and "max absolute error" in shown and "#" in shown
    assert json.loads(run("show", "sigmoid.forward.bf16.d3.sollya", "--json").stdout)["program"]["degree"] == 3


def test_show_writes_pictures(tmp_path: Path) -> None:
    done = run("show", "tanh.forward.bf16.d3.sollya", "--png", str(tmp_path / "a.svg"))
    assert done.returncode == 0 and "<svg" in (tmp_path / "a.svg").read_text()


def test_a_folder_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    done = run("fit", "tanh", "--degree", "3", "--method", "endpoint-ls", "--out", str(tmp_path / "file"))
    assert done.returncode == 2 and done.stderr.startswith("polyfma: cannot write") and done.stderr.count("\n") == 1


def test_a_folder_in_the_way_of_one_file_leaves_the_others(tmp_path: Path) -> None:
    """Program, certificate and picture are replaced together or not at all."""
    arguments = ["fit", "tanh", "--degree", "3", "--method", "endpoint-ls", "--out", str(tmp_path)]
    assert run(*arguments, "--li", "3", "--lc", "3").returncode == 0
    folder = tmp_path / "tanh.forward.bf16.d3.endpoint-ls"
    (folder / "certificate.json").unlink()
    (folder / "certificate.json").mkdir()
    before = {p.name: p.read_bytes() for p in folder.iterdir() if p.is_file()}
    done = run(*arguments, "--li", "2.5", "--lc", "2.5")
    assert done.returncode == 2 and "in the way" in done.stderr
    assert {p.name: p.read_bytes() for p in folder.iterdir() if p.is_file()} == before


def test_names_and_figures_are_not_markup(tmp_path: Path) -> None:
    p = pf.Program("inf", "silu", "forward", "bf16", 1, "none", ("x",), {"c": "7f80"}, (pf.Op("max.nan", "y", ("x", "c"), "bf16"),), {"value": "y"})
    (tmp_path / "p.json").write_text(p.to_json())
    for command in ("show", "certify"):
        done = run(command, str(tmp_path / "p.json"))
        assert done.returncode == 0 and "[inf, inf]" in done.stdout, done.stderr


def test_a_fit_under_a_catalogue_name_says_how_it_differs(tmp_path: Path) -> None:
    done = run("fit", "tanh", "--degree", "3", "--method", "endpoint-ls", "--li", "3", "--lc", "3", "--out", str(tmp_path))
    assert "note: the catalogue's tanh.forward.bf16.d3.endpoint-ls is another program" in done.stdout


def test_doctor_names_what_is_missing() -> None:
    found = {f["name"]: f for f in json.loads(run("doctor", "--json", PATH="/nonexistent").stdout)}
    assert found["sollya"]["found"] == "" and "apt-get" in found["sollya"]["how_to_get"]
    assert found["numpy"]["found"] and "missing" in run("doctor", PATH="/nonexistent").stdout


def test_version_and_help() -> None:
    assert run("--version").stdout.strip() == pf.__version__
    assert "certify" in run("--help").stdout
