"""``polyfma profile`` and ``polyfma evaluate`` on a small model: what they print and write, and what they refuse."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import polyfma as pf
from polyfma.fit.objective import Distribution
from polyfma.models import Config

t = pytest.importorskip("transformers")
from families import build  # noqa: E402


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tokenizers import Tokenizer, models, pre_tokenizers

    path = tmp_path_factory.mktemp("cli")
    tokenizer = Tokenizer(models.WordLevel({w: i for i, w in enumerate(["[UNK]", "<s>", "</s>", *(f"w{i}" for i in range(61))])}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    t.PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="[UNK]", bos_token="<s>", eos_token="</s>").save_pretrained(path / "m")
    build("llama").save_pretrained(path / "m")
    (path / "text.txt").write_text(" ".join(f"w{np.random.default_rng().integers(61)}" for _ in range(300)))
    return path


def polyfma(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-W", "ignore", "-m", "polyfma.cli", *arguments], cwd=folder, capture_output=True, text=True, timeout=300, check=False)


SMALL = ("--text", "text.txt", "--tokens", "128", "--length", "32")


def test_profile_writes_a_choice_that_patch_takes(folder: Path) -> None:
    done = polyfma(folder, "profile", "m", *SMALL, "--kl", "1", "--perplexity", "1", "--out", "p.json", "--histograms", "h")
    assert done.returncode == 0, done.stderr
    assert "within the budget" in done.stdout and "model.layers.0.mlp" in done.stdout
    data = json.loads((folder / "p.json").read_text())
    assert data["choice"]["within"] and set(data["choice"]["layers"].values()) == {"faithful"}
    with pf.patch(build("llama"), Config.read(folder / "p.json")) as handle:
        assert len(handle.report().replaced) == 2
    histogram = json.loads((folder / "h" / "model.layers.0.mlp.json").read_text())
    assert sum(histogram["counts"]) == 128 * 64
    assert Distribution.read(folder / "h" / "model.layers.0.mlp.json").counts == tuple(histogram["counts"])


def test_profile_exits_with_1_over_the_budget(folder: Path) -> None:
    done = polyfma(folder, "profile", "m", *SMALL, "--kl", "1e-12", "--json")
    assert done.returncode == 1 and "no choice is within the budget: mean KL" in done.stderr
    assert not json.loads(done.stdout)["choice"]["within"]


def test_evaluate_writes_a_record(folder: Path) -> None:
    done = polyfma(folder, "evaluate", "--model", "m", *SMALL, "--arms", "native,exact,ours (faithful)", "--out", "e.json")
    assert done.returncode == 0, done.stderr
    record = json.loads((folder / "e.json").read_text())
    assert [q["arm"] for q in record["quality"]] == ["native", "exact", "ours (faithful)"]
    assert record["text"]["chunks"] == [4, 32] and len(record["text"]["sha256"]) == 64 and "cores" in record["device"]
    assert "silent neurons at -800" in record["tails"] and "silent neurons" in done.stdout


REFUSED = {
    "unknown model": (("profile", "no-such"), "neither a packaged one"),
    "short text": (("profile", "m", "--text", "text.txt", "--length", "1024"), "the text has 300 tokens"),
    "no text": (("evaluate", "--model", "m", "--text", "none.txt"), "none.txt"),
    "tokens": (("evaluate", "--model", "m", "--text", "text.txt", "--tokens", "0"), "0 tokens in chunks"),
    "length": (("evaluate", "--model", "m", "--text", "text.txt", "--length", "1"), "in chunks of 1"),
    "no candidates": (("profile", "m", *SMALL, "--candidates", ","), "names nothing"),
    "unknown candidate": (("profile", "m", *SMALL, "--candidates", "no-such"), "no-such"),
    "unknown arm": (("evaluate", "--model", "m", *SMALL, "--arms", "x"), "unknown arm 'x'"),
    "budget": (("profile", "m", *SMALL, "--kl", "-1"), "must be a positive number"),
    "device": (("profile", "m", *SMALL, "--device", "tpu"), "must be cpu or cuda"),
    "no gpu": (("profile", "m", *SMALL, "--device", "cuda"), "no CUDA GPU"),
    "products": (("profile", "m", *SMALL, "--products", "fp8"), "products 'fp8'"),
    "dtype": (("profile", "m", *SMALL, "--dtype", "fp8"), "dtype 'fp8'"),
    "a folder as file": (("profile", "m", *SMALL, "--out", "m"), "a folder, not a file"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refusals_are_one_line_and_status_2(folder: Path, case: str) -> None:
    import torch

    if case == "no gpu" and torch.cuda.is_available():
        pytest.skip("there is a GPU")
    arguments, message = REFUSED[case]
    before = sorted(folder.iterdir())
    done = polyfma(folder, *arguments)
    assert done.returncode == 2 and message in done.stderr and len(done.stderr.strip().splitlines()) == 1, done.stderr
    assert sorted(folder.iterdir()) == before and not done.stdout
