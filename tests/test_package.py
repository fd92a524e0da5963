"""The package as others get it: what importing costs, and a wheel used outside the checkout."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def python(code: str, **env: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=os.environ | env)
    return done.stdout.strip()


def test_import_loads_nothing_heavy() -> None:
    heavy = ("torch", "flint", "numba", "scipy", "matplotlib", "typer", "rich")
    assert python(f"import sys, polyfma; print([m for m in {heavy} if m in sys.modules])") == "[]"


def test_load_and_replay_need_only_numpy() -> None:
    """What operators will run on: no flint, scipy or numba."""
    code = """
import sys
for blocked in ("flint", "scipy", "numba", "typer", "rich", "matplotlib"):
    sys.modules[blocked] = None
import numpy as np, polyfma as pf
print(hex(int(pf.replay(pf.load("sigmoid.forward.bf16.d3.sollya"), np.uint16(0)))))
"""
    assert python(code) == "0x3f00"


def test_public_names() -> None:
    import polyfma as pf

    assert all(hasattr(pf, name) for name in pf.__all__)
    for function in ("certify", "fit", "load", "programs", "replay"):
        assert callable(getattr(pf, function))
    import polyfma.certify
    import polyfma.fit.endpoint_ls
    import polyfma.replay  # importing a submodule must not hide the function of its name

    assert callable(pf.certify) and callable(pf.fit) and callable(pf.replay)


def test_nothing_reads_the_reference_folder() -> None:
    for path in (ROOT / "src").rglob("*.py"):
        assert "shared/" not in path.read_text(encoding="utf-8"), path


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("wheel")
    subprocess.run([sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(out), str(ROOT)],
                   check=True, capture_output=True, text=True)  # fmt: skip
    (found,) = out.glob("*.whl")
    return found


def test_wheel_holds_the_catalogue_and_the_licence(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert "polyfma/py.typed" in names and "polyfma/published.json" in names
    assert "polyfma/catalog/programs/silu.forward.bf16.d4.endpoint-ls.json" in names
    assert any(n.endswith("licenses/LICENSE") for n in names)
    assert "polyfma/hardware/sm_90.npz" in names
    assert not [n for n in names if n.startswith(("tests", "docs")) or "__pycache__" in n]


def test_wheel_works_outside_the_checkout(wheel: Path, tmp_path: Path) -> None:
    """Installed without the checkout on the path; dependencies come from this environment."""
    home = tmp_path / "venv"
    venv.create(home, with_pip=False)
    (site,) = (home / "lib").glob("python*/site-packages")
    zipfile.ZipFile(wheel).extractall(site)
    parent = [p for p in sys.path if p.endswith("site-packages")]
    (site / "dependencies.pth").write_text("\n".join(parent) + "\n")
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    code = "import polyfma as pf; p = pf.load('tanh.forward.fp16.d4.sollya'); print(pf.__file__, pf.certify(p).exact_tails, len(pf.programs()))"
    done = subprocess.run([str(home / "bin" / "python"), "-c", code], capture_output=True, text=True, cwd=tmp_path,
                          env=environment, check=True)  # fmt: skip
    file, _, count = done.stdout.split()
    assert file.startswith(str(home)) and int(count) > 200
    done = subprocess.run([str(home / "bin" / "python"), "-m", "polyfma.cli", "list", "--function", "tanh"],
                          capture_output=True, text=True, cwd=tmp_path, env=environment, check=True)  # fmt: skip
    assert "tanh.forward.bf16.d4.sollya" in done.stdout
