from __future__ import annotations

import numpy as np
import pytest

import polyfma as pf
from polyfma import plots


@pytest.mark.parametrize("name", ["tanh.forward.bf16.d3.sollya", "exp2.forward.fp16.pwl2.minimax", "silu.backward.fp16.d4.sollya",
                                  "softcap-50.forward.bf16.d4.sollya"])  # fmt: skip
def test_error_picture_and_text(name: str, tmp_path) -> None:
    p = pf.load(name)
    fig = plots.error_picture(p, pf.certify(p))
    plots.save(fig, tmp_path / "a.png")
    assert (tmp_path / "a.png").stat().st_size > 10_000
    lines = plots.text_plot(p)
    assert len(lines) == 10 and all(len(line) <= 86 for line in lines) and any("#" in line for line in lines)


def test_drawn_error_is_the_certified_one() -> None:
    p = pf.load("tanh.forward.bf16.d3.sollya")
    _, _, error = plots.signed_error(p, plots.visible_inputs(p))
    assert np.max(np.abs(error)) == pf.certify(p).max_abs_error


def test_the_same_picture_gives_the_same_svg(tmp_path) -> None:
    p = pf.load("tanh.forward.bf16.d3.sollya")
    for name in ("a.svg", "b.svg"):
        plots.save(plots.error_picture(p, pf.certify(p)), tmp_path / name)
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()


def test_a_failed_save_leaves_nothing(tmp_path) -> None:
    fig, _ = plots.figure(2, 2)
    with pytest.raises(ValueError):  # noqa: PT011  # matplotlib's own
        plots.save(fig, tmp_path / "a.nonsense")
    assert list(tmp_path.iterdir()) == []
