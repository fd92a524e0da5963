"""Attention on a GPU: every kernel against plain PyTorch in fp64, which shares no code with it."""

from __future__ import annotations

import math
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor

from polyfma.attention import LogitBudget, choice, logit_error, sigmoid_attention, softcap_attention, softmax_attention
from polyfma.attention.mix import parse

pytestmark = pytest.mark.gpu
GAP = "tanh.forward.fp16.fp32-unit-gap-d7"
# dtype, head dim, causal, window, queries, keys, heads, kv heads
SHAPES = {
    "gqa causal": (torch.bfloat16, 128, True, None, 257, 257, 8, 2),
    "full, ragged": (torch.bfloat16, 64, False, None, 200, 333, 4, 4),
    "local": (torch.bfloat16, 96, True, (64, 0), 300, 300, 4, 1),
    "fp16": (torch.float16, 128, True, None, 384, 384, 4, 2),
    "decode": (torch.bfloat16, 128, True, None, 1, 513, 8, 2),
    "rows that see nothing": (torch.bfloat16, 128, True, None, 300, 100, 2, 1),
    "one key": (torch.bfloat16, 64, False, None, 5, 1, 2, 2),
}
Law = Any


def tensors(dtype: torch.dtype, dim: int, queries: int, keys: int, heads: int, kv: int, scale: float = 1.0) -> list[Tensor]:
    made = [torch.randn(2, n, h, dim, device="cuda") for n, h in ((queries, heads), (keys, kv), (keys, kv), (queries, heads))]
    return [(t * (scale if i < 2 else 1.0)).to(dtype) for i, t in enumerate(made)]


def exact(q: Tensor, k: Tensor, v: Tensor, law: Law, causal: bool, window: Any) -> Tensor:
    """fp64, with gradients, written apart from polyfma.attention.reference."""
    groups = q.shape[2] // k.shape[2]
    s = torch.einsum("bqhd,bkhd->bhqk", q, k.repeat_interleave(groups, 2)) / math.sqrt(q.shape[-1])
    i, j = torch.arange(q.shape[1], device=q.device)[:, None] + k.shape[1] - q.shape[1], torch.arange(k.shape[1], device=q.device)
    seen = torch.ones_like(s[0, 0], dtype=torch.bool)
    if causal:
        seen &= j <= i
    if window is not None:
        seen &= (j >= i - window[0]) & (j <= i + window[1])
    return torch.einsum("bhqk,bkhd->bqhd", law(s, seen), v.repeat_interleave(groups, 2))


def soft(s: Tensor, seen: Tensor) -> Tensor:
    return torch.nan_to_num(torch.softmax(s.masked_fill(~seen, -math.inf), -1)) if seen.any() else torch.zeros_like(s)


def capped(cap: float) -> Law:
    return lambda s, seen: torch.where(seen.any(-1, keepdim=True), soft(cap * torch.tanh(s / cap), seen | ~seen.any(-1, keepdim=True)), 0.0)


def gated(bias: float) -> Law:
    return lambda s, seen: torch.where(seen, torch.sigmoid(s + bias), 0.0)


def compare(run: Any, law: Law, made: list[Tensor], causal: bool, window: Any, limit: float, grad_limit: float) -> Tensor:
    q, k, v, dout = made
    narrow = [t.clone().requires_grad_() for t in (q, k, v)]
    wide = [t.double().requires_grad_() for t in (q, k, v)]
    out, want = run(*narrow), exact(*wide, law, causal, window)
    assert out.dtype == q.dtype and out.shape == q.shape
    got, wanted = torch.autograd.grad(out, narrow, dout), torch.autograd.grad(want, wide, dout.double())
    pairs = [(out, want, limit), *((g, w, grad_limit) for g, w in zip(got, wanted, strict=True))]
    for name, (a, b, most) in zip(("out", "dq", "dk", "dv"), pairs, strict=True):
        assert torch.isfinite(a).all(), name
        error = float((a.double() - b).norm())
        assert error <= most * float(b.norm()) + 1e-5 * b.numel() ** 0.5, (name, error, float(b.norm()))
    return out


@pytest.mark.parametrize("shape", SHAPES)
def test_softcap_forward_and_backward(shape: str) -> None:
    dtype, dim, causal, window, *sizes = SHAPES[shape]
    out = compare(lambda q, k, v: softcap_attention(q, k, v, cap=50.0, causal=causal, window=window, backend="fa4"), capped(50.0),
                  tensors(dtype, dim, *sizes), causal, window, 4e-3, 1e-2)  # fmt: skip
    if shape == "rows that see nothing":
        assert not out[:, :200].any()


@pytest.mark.parametrize("program", ["hardware", GAP, f"hardware+{GAP}", "tanh.forward.fp16.unit-odd-d6", "tanh.forward.bf16.unit-odd-d6"])
@pytest.mark.parametrize("cap", [5.0, 50.0])
def test_softcap_programs(program: str, cap: float) -> None:
    made = tensors(torch.bfloat16, 128, 256, 256, 4, 2, 2.0)
    limit = 5e-3 + cap * logit_error(parse(program, "tanh", ("hardware",)), 1 / (cap * math.sqrt(128))).outer
    compare(lambda q, k, v: softcap_attention(q, k, v, cap=cap, causal=True, program=program, backward=program, backend="fa4"), capped(cap), made,
            True, None, limit, 3 * limit)  # fmt: skip


@pytest.mark.parametrize("cap", [50.0, 80.0])
def test_softcap_in_saturation(cap: float) -> None:
    """Scores of +-1e3 and more: where the cap bites, at both ends, weights neither overflow nor vanish."""
    q, k, v, _ = tensors(torch.bfloat16, 64, 128, 256, 2, 2)
    q[:, ::2] *= 1000
    q[:, 1::4] = -q[:, 1::4].abs() * 1000
    k[:, 5:] = k[:, 5:].abs()
    out = softcap_attention(q, k, v, cap=cap, program="hardware", backend="fa4")
    want = exact(q.double(), k.double(), v.double(), capped(cap), False, None)
    assert float((out.double() - want).norm() / want.norm()) < 5e-2


def test_cap_comes_before_the_mask() -> None:
    """cap = 1 and a causal mask: a future token changes no bit of an earlier row."""
    q, k, v, _ = tensors(torch.bfloat16, 64, 200, 200, 2, 1)
    first = softcap_attention(q, k, v, cap=1.0, causal=True, backend="fa4")
    k[:, 150:], v[:, 150:] = 100.0, -7.0
    assert torch.equal(softcap_attention(q, k, v, cap=1.0, causal=True, backend="fa4")[:, :150], first[:, :150])


@pytest.mark.parametrize("shape", SHAPES)
def test_sigmoid_forward_and_backward(shape: str) -> None:
    dtype, dim, causal, window, *sizes = SHAPES[shape]
    out = compare(lambda q, k, v: sigmoid_attention(q, k, v, causal=causal, window=window, backend="fa4"), gated(-math.log(sizes[1])),
                  tensors(dtype, dim, *sizes), causal, window, 5e-3, 1e-2)  # fmt: skip
    if shape == "rows that see nothing":
        assert not out[:, :200].any()


@pytest.mark.parametrize("program", ["hardware", "exponential", "sigmoid.forward.bf16.odd-square-relu-d3.normal", "sigmoid.forward.fp16.d4", "sigmoid.forward.bf16.fp32-fused-odd-limited-d6",
                                     "hardware+sigmoid.forward.bf16.fused-odd-relu-d4.normal", "sigmoid.forward.bf16.d3"])  # fmt: skip
def test_sigmoid_programs(program: str) -> None:
    limit = 1.5e-2 if "d3" in program else 8e-3
    compare(lambda q, k, v: sigmoid_attention(q, k, v, bias=0.0, causal=True, program=program, backward=program, backend="fa4"), gated(0.0),
            tensors(torch.bfloat16, 128, 256, 256, 4, 2), True, None, limit, 5 * limit)  # fmt: skip


@pytest.mark.parametrize("bias", [-8.0, -12.0, -16.0, -30.0])
def test_small_weights(bias: float) -> None:
    """What auto takes must have the weights of a long context, which are far below 1; scaled back up, so that errors can be seen."""
    up = math.exp(-bias)
    compare(lambda q, k, v: sigmoid_attention(q, k, v, bias=bias, weight_scale=up, causal=True), lambda s, seen: up * gated(bias)(s, seen),
            tensors(torch.bfloat16, 128, 300, 300, 4, 2), True, None, 4e-3, 1e-2)  # fmt: skip


@pytest.mark.parametrize("name", ["sigmoid.forward.bf16.two-row-d3.endpoint-ls", "sigmoid.forward.bf16.coupled-d3.endpoint-ls"])
def test_published_programs_and_weight_scale(name: str) -> None:
    """The coupled one gives its own derivative beside the value."""
    q, k, v, dout = tensors(torch.bfloat16, 128, 256, 256, 4, 2)
    narrow = [t.clone().requires_grad_() for t in (q, k, v)]
    out = sigmoid_attention(*narrow, bias=0.0, weight_scale=1 / 256, program=name, backward=name, backend="fa4")
    grads = torch.autograd.grad(out, narrow, dout)
    wide = [t.double().requires_grad_() for t in (q, k, v)]
    want = exact(*wide, lambda s, seen: torch.sigmoid(s) / 256, False, None)
    wanted = torch.autograd.grad(want, wide, dout.double())
    for a, b in zip((out, *grads), (want, *wanted), strict=True):
        assert float((a.double() - b).norm() / b.norm()) < 3e-2


def test_variable_lengths() -> None:
    lengths_q, lengths_k = [5, 130, 1, 64], [9, 130, 77, 300]
    cu_q, cu_k = (torch.tensor([0, *torch.tensor(n).cumsum(0)], dtype=torch.int32, device="cuda") for n in (lengths_q, lengths_k))
    q, k, v = (torch.randn(int(n), h, 64, device="cuda").bfloat16() for n, h in ((cu_q[-1], 4), (cu_k[-1], 2), (cu_k[-1], 2)))
    for run, law in ((lambda *a, **o: softcap_attention(*a, cap=20.0, **o), capped(20.0)), (lambda *a, **o: sigmoid_attention(*a, bias=-4.0, **o), gated(-4.0))):
        for backend in ("fa4", "score_mod", "flex"):
            out = run(q, k, v, causal=True, cu_seqlens_q=cu_q, cu_seqlens_k=cu_k, backend=backend)
            for a, b, c, d in zip(cu_q, cu_q[1:], cu_k, cu_k[1:], strict=False):
                want = exact(q[None, a:b].double(), k[None, c:d].double(), v[None, c:d].double(), law, True, None)[0]
                assert float((out[a:b].double() - want).norm() / want.norm()) < 6e-3, backend


@pytest.mark.parametrize("program", ["hardware", "exp2.forward.fp16.pwl2.minimax", "exp2.forward.fp16.d2.minimax", "exp2.forward.fp16.d3.published"])
def test_exp2_programs_in_softmax(program: str) -> None:
    limit = {"hardware": 4e-3, "exp2.forward.fp16.pwl2.minimax": 1e-2}.get(program, 6e-3)
    compare(lambda q, k, v: softmax_attention(q, k, v, causal=True, program=program, backend="fa4"), soft, tensors(torch.bfloat16, 128, 512, 512, 2, 1),
            True, None, limit, 2 * limit)  # fmt: skip


@pytest.mark.parametrize("shape", ["gqa causal", "full, ragged", "rows that see nothing"])
def test_own_hooks_of_flash_attention(shape: str) -> None:
    """The construction by log-sum-exp: an oracle for the sigmoid kernels, and what other versions and architectures get."""
    dtype, dim, causal, window, *sizes = SHAPES[shape]
    made = tensors(dtype, dim, *sizes)
    compare(lambda q, k, v: softcap_attention(q, k, v, cap=20.0, causal=causal, backend="score_mod"), capped(20.0), made, causal, window, 4e-3, 1e-2)
    compare(lambda q, k, v: softmax_attention(q, k, v, causal=causal, backend="score_mod"), soft, made, causal, window, 4e-3, 1e-2)
    compare(lambda q, k, v: sigmoid_attention(q, k, v, bias=-2.0, causal=causal, backend="score_mod"), gated(-2.0), made, causal, window, 6e-3, 1.5e-2)


def test_flex_is_named_once_and_right() -> None:
    made = [t.float() for t in tensors(torch.bfloat16, 64, 128, 128, 2, 2)]
    choice._warned.clear()
    with pytest.warns(UserWarning, match="dtype float32"):
        compare(lambda q, k, v: softcap_attention(q, k, v, cap=30.0, causal=True), capped(30.0), made, True, None, 2e-3, 5e-3)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="polyfma.attention")
        compare(lambda q, k, v: sigmoid_attention(q, k, v, causal=True), gated(-math.log(128)), made, True, None, 2e-3, 5e-3)


def test_plain_flash_attention_is_left_alone() -> None:
    from flash_attn.cute import interface

    made = tensors(torch.bfloat16, 128, 256, 256, 4, 2)[:3]
    first = interface._flash_attn_fwd(*made, causal=True)[0]
    softcap_attention(*made, cap=50.0, causal=True, backend="fa4")
    assert torch.equal(interface._flash_attn_fwd(*made, causal=True)[0], first)
    assert "polyfma" not in interface.FlashAttentionForwardSm90.__module__


def test_auto_is_a_measured_mix_within_the_budget() -> None:
    mix = choice.softcap_mix("forward", 1 / (50 * math.sqrt(128)), LogitBudget())
    assert mix.text in {arm.mix for arm in choice.arms("softcap", "forward")}
