"""The attention bench on a CPU, with plain PyTorch in place of the kernels: what is measured, kept and made of it."""

from __future__ import annotations

import json
import math
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from polyfma.attention import choice
from polyfma.attention.problem import Problem, check
from polyfma.attention.reference import reference, sigmoid_weights, softcap_weights, softmax_weights
from polyfma.errors import PolyfmaError, UnknownNameError

pytest.importorskip("flash_attn.cute")
from polyfma.bench import attention, attention_defaults
from polyfma.bench.attention_picture import time_against_error
from polyfma.bench.result import Measurement
from polyfma.cli import bench


def small(batch: int, tokens: int, scale: float = 1.0) -> Problem:
    q, k, v = (torch.randn(batch, 16, heads, 8).to(torch.bfloat16) for heads in (32, 8, 8))
    return check(q * scale, k * scale, v, causal=True, softmax_scale=None, window=None, cu_seqlens_q=None, cu_seqlens_k=None)


def law_of(kind: str, scalars: tuple[float, ...]) -> Any:
    if kind == "Softcap":
        return softcap_weights(attention.CAP)
    return sigmoid_weights(*scalars) if kind == "Sigmoid" else softmax_weights


def forward(problem: Problem, hooks: Any, scalars: tuple[float, ...] = ()) -> tuple[Tensor, Tensor]:
    return reference(problem, law_of(type(hooks.forward).__name__, scalars)), torch.zeros(1)


def backward(problem: Problem, hooks: Any, out: Tensor, grad: Tensor, lse: Tensor, scalars: tuple[float, ...] = ()) -> Any:
    return gradients(problem, grad, law_of(type(hooks.forward).__name__, scalars))


def gradients(problem: Problem, grad: Tensor, law: Any) -> tuple[Tensor, ...]:
    leaves = [t.detach().requires_grad_() for t in (problem.q, problem.k, problem.v)]
    with torch.enable_grad():
        return torch.autograd.grad(reference(problem.with_tensors(*leaves), law), leaves, grad)


def plain_law(options: dict[str, Any]) -> Any:
    return softcap_weights(attention.CAP) if options else softmax_weights


@pytest.fixture
def measurement(monkeypatch: pytest.MonkeyPatch) -> Measurement:
    def rounds(arms: Any, *_: Any) -> dict[str, tuple[float, ...]]:
        for call in arms.values():
            call()
        return {name: (float(i + 1),) for i, name in enumerate(arms)}

    monkeypatch.setattr(attention, "need_gpu", lambda: None)
    monkeypatch.setattr(attention, "_problem", small)
    monkeypatch.setattr(attention, "graph_rounds", rounds)
    monkeypatch.setattr(attention, "eager_rounds", rounds)
    monkeypatch.setattr(attention, "Measurement", partial(Measurement, machine={"device": "NVIDIA H200", "driver": "", "cuda": "", "versions": {}, "commit": ""}))
    monkeypatch.setattr(attention.call, "forward", forward)
    monkeypatch.setattr(attention.call, "backward", backward)
    monkeypatch.setattr(attention.call, "plain_forward", lambda problem, **options: (reference(problem, plain_law(options)), torch.zeros(1)))
    monkeypatch.setattr(attention.call, "plain_backward", lambda problem, out, grad, lse, **options: gradients(problem, grad, plain_law(options)))
    monkeypatch.setattr(attention, "_flex_softcap", lambda problem: (reference(problem, softcap_weights(attention.CAP)), problem.q))
    monkeypatch.setattr(attention, "_flex_sigmoid", lambda problem, bias: (reference(problem, sigmoid_weights(bias, 1.0)), problem.q))
    return attention.measure()


def test_every_arm_has_a_time_and_an_error_that_is_its_own(measurement: Measurement, tmp_path: Path) -> None:
    timed = {f"{t.case.split()[0]} {t.arm}" for t in measurement.timings}
    for name, errors in measurement.facts.items():
        assert errors and max(errors.values()) < 6e-3, (name, errors)  # BF16 rounding: each arm was held against its own law
        assert name.removesuffix(", bias 0") in timed or name.endswith("-log n"), name
    for case in attention.CASES:
        assert {t.case for t in measurement.timings if t.case.startswith(case)} == {f"{case} {shape}" for shape in attention.SHAPES}
    measurement.write(tmp_path / "x.json")
    assert json.loads((tmp_path / "x.json").read_text())["bench"] == "attention"
    assert len(time_against_error(measurement).axes) == 3


def test_defaults_are_the_mixes_fastest_first(measurement: Measurement) -> None:
    made = attention_defaults.defaults(measurement)[choice.MEASURED]
    for function, mixes in (("softcap", attention.SOFTCAP_MIXES), ("sigmoid", attention.SIGMOID_MIXES)):
        for direction in ("forward", "backward"):
            arms = made[function][direction]
            assert {a["mix"] for a in arms} == set(mixes[direction])
            assert [a["us"] for a in arms] == sorted(a["us"] for a in arms)
            assert all(a["errors"] and math.isfinite(sum(a["errors"].values())) for a in arms)
    measurement.machine["device"] = "another"
    with pytest.raises(PolyfmaError, match="H200"):
        attention_defaults.defaults(measurement)


def test_unknown_cases_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "need_gpu", lambda: None)
    with pytest.raises(UnknownNameError, match="b2, b3, exp2"):
        attention.measure(["b9"])


def test_short_names() -> None:
    text = f"hardware+{attention.GAP}+{attention.GAP}"
    assert attention.short(text) == "hardware + 2 unit-gap-d7"


def test_a_picture_does_not_replace_its_measurement(tmp_path: Path) -> None:
    with pytest.raises(PolyfmaError, match="are one file"):
        bench._attention(["b2"], tmp_path / "x.png", tmp_path / "x.png", False)


def test_defaults_of_another_gpu_are_refused() -> None:
    with pytest.raises(PolyfmaError, match="not on NVIDIA B200"):
        attention_defaults.check_device("NVIDIA B200")
