"""The kernels that docs/kernels.md shows compile and, where no GPU is needed, run; its commands do what they print."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import polyfma as pf
from polyfma.emit.tools import find_tool

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "docs" / "kernels.md").read_text(encoding="utf-8")
FILES = dict(re.findall(r"```\w+ file=(\S+)\n(.*?)```", TEXT, re.DOTALL))
COMMANDS = [line for block in re.findall(r"```sh\n(.*?)```", TEXT, re.DOTALL) for line in block.splitlines()]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The example files and what the emit commands of the page write."""
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    for command in COMMANDS:
        if command.startswith("polyfma emit") and "--out" in command:
            arguments = shlex.split(command, comments=True)[1:]
            subprocess.run([sys.executable, "-m", "polyfma.cli", *arguments], cwd=tmp_path, check=True, capture_output=True)
    return tmp_path


def test_all_commands_of_the_page_run(tmp_path: Path) -> None:
    emits = [c for c in COMMANDS if c.startswith("polyfma emit")]
    assert len(emits) == 8
    for command in emits:
        done = subprocess.run([sys.executable, "-m", "polyfma.cli", *shlex.split(command, comments=True)[1:]], cwd=tmp_path,
                              capture_output=True, text=True, check=False)  # fmt: skip
        assert done.returncode == 0, (command, done.stderr)


def test_cuda_example_compiles(folder: Path, nvcc: None) -> None:
    for arch in ("sm_80", "sm_90", "sm_100", "sm_120"):
        subprocess.run(["nvcc", f"-arch={arch}", "-o", "silu", "silu.cu"], cwd=folder, check=True)


def test_c_example_runs(folder: Path) -> None:
    subprocess.run(["gcc", "-std=c99", "-o", "sigmoid", "sigmoid.c", "-lm"], cwd=folder, check=True)
    done = subprocess.run([folder / "sigmoid"], capture_output=True, text=True, check=True)
    value = pf.FP16.decode(int(pf.replay(pf.load("sigmoid.forward.fp16.d4"), [0x3C00])[0]))
    assert done.stdout == f"sigmoid(1) is about {float(value):.5f}\n"


def test_ptx_example_assembles(folder: Path) -> None:
    subprocess.run([find_tool("ptxas"), "-arch=sm_90", "-c", "tanh.ptx", "-o", "tanh.o"], cwd=folder, check=True)


def test_triton_example_compiles(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    triton = pytest.importorskip("triton")
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    monkeypatch.setenv("TRITON_CACHE_DIR", str(folder / "cache"))
    monkeypatch.syspath_prepend(str(folder))
    import silu_kernel

    signature = {"gate_ptr": "*bf16", "up_ptr": "*bf16", "y_ptr": "*bf16", "n": "i32", "BLOCK": "constexpr"}
    built = triton.compile(ASTSource(fn=silu_kernel.swiglu, signature=signature, constexprs={(4,): 2048}), target=GPUTarget("cuda", 90, 32),
                           options={"num_warps": 8})  # fmt: skip
    assert "fma.rn.relu.bf16x2" in built.asm["ptx"]


def test_cute_example_compiles(folder: Path) -> None:
    pytest.importorskip("flash_attn.cute")
    (folder / "run.py").write_text(
        "import torch\nfrom torch._subclasses.fake_tensor import FakeTensorMode\nfrom flash_attn.cute.interface import _flash_attn_fwd\n"
        "from softcap import score_mod\nwith FakeTensorMode():\n"
        "    q, k, v = (torch.empty(1, 256, 2, 64, dtype=torch.bfloat16, device='cuda') for _ in range(3))\n"
        "    _flash_attn_fwd(q, k, v, causal=True, score_mod=score_mod)\n"
    )
    env = os.environ | {"FLASH_ATTENTION_ARCH": "sm_90a", "CUTE_DSL_ARCH": "sm_90a", "FLASH_ATTENTION_NUM_SMS": "132",
                        "FLASH_ATTENTION_CUTE_DSL_CACHE_ENABLED": "0"}  # fmt: skip
    done = subprocess.run([sys.executable, "run.py"], cwd=folder, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-1500:]


def test_the_table_of_sequences_is_what_they_cost() -> None:
    """The instruction counts of docs/kernels.md for architectures without an operation."""
    from polyfma.emit.lowering import lower

    def cost(op: str, arch: str, **more: str) -> int:
        ops = (pf.Op(op, "r", ("x", "x"), "bf16"), *((pf.Op("select", "s", ("r", "x", "x"), "bf16"),) if "set" in op else ()))
        program = pf.Program("p", "tanh", "forward", "bf16", 1, "odd", ("x",), {}, ops, {"value": ops[-1].dst})
        return lower(program, arch).cost - len(ops) + 1

    assert [cost(op, "sm_86") for op in ("add", "sub", "mul")] == [1, 1, 1]
    assert cost("set.gt", "sm_86") == 7
    assert cost("min.nan.xorsign.abs", "sm_80") == 5 and "one more `abs` unless the limit is a positive constant | 4 |" in TEXT


def test_the_operators_page_runs() -> None:
    """Its Python block, as printed."""
    text = (ROOT / "docs" / "operators.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert blocks
    for block in blocks:
        exec(compile(block, "operators.md", "exec"), {})
