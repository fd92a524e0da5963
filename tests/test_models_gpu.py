"""Patched models on a GPU: compiled by Inductor, in FlashAttention-4, over grouped products."""

from __future__ import annotations

import pytest
import torch

import polyfma as pf
from polyfma.models import Config

pytest.importorskip("transformers")
from families import FAMILIES, build, inputs, output

pytestmark = pytest.mark.gpu


def relative(a: torch.Tensor, b: torch.Tensor) -> float:
    a, b = (t.float().flatten(0, -2) for t in (a, b))
    return float(((a - b).norm(dim=-1) / b.norm(dim=-1).clamp_min(1e-6)).median())


@pytest.mark.parametrize("name", FAMILIES)
def test_families(name: str) -> None:
    model, x = build(name).cuda(), inputs(name, 40).cuda()
    native = output(model, x)
    with pf.patch(model):
        assert relative(output(model, x), native) < 0.05
    assert torch.equal(output(model, x), native)


@pytest.mark.parametrize("name", ["llama", "gpt2", "phi3", "bert"])
def test_compiled_is_eager_where_programs_run(name: str) -> None:
    """Inductor fuses neighbours in fp32, which rounds them otherwise; the MLP alone has no neighbours, so there the bits are eager's."""
    model, x = build(name).cuda(), inputs(name, 40).cuda()
    native = output(model, x)
    with pf.patch(model):
        torch._dynamo.reset()
        assert relative(output(torch.compile(model, fullgraph=True), x), native) < 0.05
    if name in ("llama", "phi3"):
        mlp = model.model.layers[0].mlp
        h = torch.randn(64, 32, device="cuda", dtype=torch.bfloat16)
        with pf.patch(mlp, Config(program="fast")), torch.no_grad():
            want = mlp(h)
            torch._dynamo.reset()
            assert torch.equal(torch.compile(mlp, fullgraph=True)(h), want)


@pytest.mark.parametrize("name", ["llama", "gemma2", "qwen3-moe"])
def test_training_compiled(name: str) -> None:
    """A step under torch.compile: gradients near eager's of the native model."""
    model, x = build(name).cuda().train(), inputs(name, 40).cuda()

    def gradients(run: object) -> list[torch.Tensor]:
        model.zero_grad()
        run(x).logits.float().square().mean().backward()
        return [p.grad.clone() for p in model.model.layers[0].parameters() if p.grad is not None and p.ndim > 1]

    want = gradients(model)
    with pf.patch(model):
        torch._dynamo.reset()
        got = gradients(torch.compile(model) if name != "qwen3-moe" else model)
    for a, b in zip(got, want, strict=True):
        assert float((a.float() - b.float()).norm()) < 0.3 * float(b.float().norm()) + 1e-3


def test_softcapped_attention_with_padding_and_windows() -> None:
    model = build("gemma2").cuda()
    x, seen = inputs("gemma2", 40).cuda(), torch.ones(2, 40, dtype=torch.long, device="cuda")
    seen[0, :7] = 0
    native = output(model, x, attention_mask=seen)
    with pf.patch(model):
        got = output(model, x, attention_mask=seen)
    kept = seen.bool()
    assert relative(got[kept], native[kept]) < 0.05
