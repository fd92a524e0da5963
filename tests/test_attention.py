"""Attention on a CPU: what the functions mean, which programs they choose, what they refuse."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import polyfma as pf
from polyfma.attention import (
    LogitBudget,
    Mix,
    choice,
    logit_error,
    sigmoid_attention,
    softcap_attention,
    softmax_attention,
)
from polyfma.attention.budget import DEFAULT, packed_tanh, rounded_scale
from polyfma.attention.mix import in_fp32, parse, scaled
from polyfma.errors import DtypeError, PolyfmaError, ProgramError, ShapeError, UnknownNameError

GAP, D6 = "tanh.forward.fp16.fp32-unit-gap-d7", "tanh.forward.fp16.unit-odd-d6"
S4 = "sigmoid.forward.bf16.fused-odd-relu-d4.normal"


def tensors(queries: int = 7, keys: int = 11, heads: int = 4, kv: int = 2, dim: int = 8, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    return [torch.randn(2, n, h, dim, dtype=dtype) for n, h in ((queries, heads), (keys, kv), (keys, kv))]


def by_hand(q: Tensor, k: Tensor, v: Tensor, weigh: Any, causal: bool, window: Any) -> Tensor:
    """One query, head and sequence at a time, in plain loops."""
    out = torch.zeros_like(q)
    for b in range(q.shape[0]):
        for h in range(q.shape[2]):
            g = h // (q.shape[2] // k.shape[2])
            for i in range(q.shape[1]):
                at = i + k.shape[1] - q.shape[1]
                seen = [j for j in range(k.shape[1]) if (not causal or j <= at) and (window is None or at - window[0] <= j <= at + window[1])]
                if seen:
                    s = (k[b, seen, g] @ q[b, i, h]) / math.sqrt(q.shape[-1])
                    out[b, i, h] = weigh(s) @ v[b, seen, g]
    return out


@pytest.mark.parametrize(("queries", "keys"), [(7, 11), (11, 7), (1, 5), (5, 1), (6, 6)])
@pytest.mark.parametrize(("causal", "window"), [(False, None), (True, None), (True, (2, 0)), (False, (1, 3))])
def test_meaning(queries: int, keys: int, causal: bool, window: Any) -> None:
    q, k, v = tensors(queries, keys)
    laws = {
        softcap_attention(q, k, v, cap=0.7, causal=causal, window=window): lambda s: torch.softmax(0.7 * torch.tanh(s / 0.7), -1),
        sigmoid_attention(q, k, v, causal=causal, window=window): lambda s: torch.sigmoid(s - math.log(keys)),
        sigmoid_attention(q, k, v, bias=0.3, weight_scale=0.5, causal=causal, window=window): lambda s: 0.5 * torch.sigmoid(s + 0.3),
        softmax_attention(q, k, v, causal=causal, window=window): lambda s: torch.softmax(s, -1),
    }
    for got, weigh in laws.items():
        torch.testing.assert_close(got, by_hand(q, k, v, weigh, causal, window), rtol=1e-12, atol=1e-12)


def test_gradients_are_those_of_the_function() -> None:
    q, k, v = (t.requires_grad_() for t in tensors(4, 5, 2, 1, 4))
    for run in (lambda *t: softcap_attention(*t, cap=1.5, causal=True), lambda *t: sigmoid_attention(*t, causal=True, bias=-1.0), softmax_attention):
        assert torch.autograd.gradcheck(run, (q, k, v))


def test_gradient_where_no_key_is_seen_is_zero_not_nan() -> None:
    q, k, v = (t.requires_grad_() for t in tensors(6, 3))
    out = softcap_attention(q, k, v, cap=2.0, causal=True)
    assert not out[:, :3].any()
    for grad in torch.autograd.grad(out.sum(), (q, k, v)):
        assert torch.isfinite(grad).all()


def test_cap_comes_before_the_mask() -> None:
    """cap = 1 and a causal mask: a future token changes no bit of an earlier row."""
    for dtype in (torch.float32, torch.bfloat16):
        q, k, v = tensors(9, 9, dtype=dtype)
        first = softcap_attention(q, k, v, cap=1.0, causal=True)
        k[:, 6:], v[:, 6:] = 50.0, -3.0
        assert torch.equal(softcap_attention(q, k, v, cap=1.0, causal=True)[:, :6], first[:, :6])


def test_scores_of_1e4_are_bounded() -> None:
    """Case 21: the gradient of a saturated cap is 0, of no cap's would be 1e4."""
    q, k, v = (t.requires_grad_() for t in tensors(4, 4))
    out = softcap_attention(1e4 * q, k, v, cap=50.0)
    grads = torch.autograd.grad(out.sum(), (q, k))
    assert all(torch.isfinite(g).all() for g in grads)


def test_variable_lengths_are_sequences_of_their_own() -> None:
    lengths_q, lengths_k = [3, 1, 5], [4, 2, 5]
    cu_q, cu_k = (torch.tensor([0, *np.cumsum(n)], dtype=torch.int32) for n in (lengths_q, lengths_k))
    q, k, v = (torch.randn(sum(n), h, 8, dtype=torch.float64) for n, h in ((lengths_q, 4), (lengths_k, 2), (lengths_k, 2)))
    for run in (lambda *t, **o: softcap_attention(*t, cap=3.0, causal=True, **o), lambda *t, **o: sigmoid_attention(*t, bias=-1.0, causal=True, **o)):
        out = run(q, k, v, cu_seqlens_q=cu_q, cu_seqlens_k=cu_k)
        for a, b, c, d in zip(cu_q, cu_q[1:], cu_k, cu_k[1:], strict=False):
            torch.testing.assert_close(out[a:b], run(q[None, a:b], k[None, c:d], v[None, c:d])[0])


def test_16_bit_inputs_are_computed_in_fp32_and_rounded_once() -> None:
    q, k, v = tensors(5, 6, dtype=torch.bfloat16)
    want = softcap_attention(q.float(), k.float(), v.float(), cap=5.0)
    assert torch.equal(softcap_attention(q, k, v, cap=5.0), want.to(torch.bfloat16))


BAD = {
    "rank": (lambda q, k, v: softcap_attention(q[0], k, v, cap=1.0), ShapeError, "q has shape .* 4 dimensions"),
    "mixed": (lambda q, k, v: softcap_attention(q.float(), k, v, cap=1.0), DtypeError, "float32, float64, float64"),
    "integers": (lambda q, k, v: softcap_attention(q.long(), k.long(), v.long(), cap=1.0), DtypeError, "bfloat16, float16, float32, float64"),
    "no tensor": (lambda q, k, v: softcap_attention([1.0], k, v, cap=1.0), DtypeError, "not list"),
    "heads": (lambda q, k, v: softcap_attention(q[:, :, :3], k, v, cap=1.0), ShapeError, "q has 3 heads, k and v 2"),
    "no heads": (lambda q, k, v: softcap_attention(q[:, :, :0], k, v, cap=1.0), ShapeError, "q has 0 heads"),
    "batch": (lambda q, k, v: softcap_attention(q[:1], k, v, cap=1.0), ShapeError, "q has batch 1, k 2"),
    "dim": (lambda q, k, v: softcap_attention(q[..., :4], k, v, cap=1.0), ShapeError, "head dim 4, k 8"),
    "k and v": (lambda q, k, v: softcap_attention(q, k, v[:, :3], cap=1.0), ShapeError, "k has shape"),
    "cap 0": (lambda q, k, v: softcap_attention(q, k, v, cap=0.0), PolyfmaError, "cap = '0.0' must be a number from 1e-06 to 1e"),
    "cap NaN": (lambda q, k, v: softcap_attention(q, k, v, cap=math.nan), PolyfmaError, "cap = 'nan'"),
    "cap beyond fp32": (lambda q, k, v: softcap_attention(q, k, v, cap=3.5e38), PolyfmaError, "from 1e-06 to 1e"),
    "cap text": (lambda q, k, v: softcap_attention(q, k, v, cap="50"), PolyfmaError, "cap = '50'"),
    "scale": (lambda q, k, v: softcap_attention(q, k, v, cap=1.0, softmax_scale=-1.0), PolyfmaError, "softmax_scale"),
    "window": (lambda q, k, v: softcap_attention(q, k, v, cap=1.0, window=(3,)), ShapeError, "window"),
    "window text": (lambda q, k, v: softcap_attention(q, k, v, cap=1.0, window="ab"), ShapeError, "window"),
    "negative window": (lambda q, k, v: softcap_attention(q, k, v, cap=1.0, window=(-2, 0)), ShapeError, "window"),
    "half of cu_seqlens": (lambda q, k, v: softcap_attention(q[0], k[0], v[0], cap=1.0, cu_seqlens_q=torch.tensor([0, 7])), ShapeError, "go together"),
    "cu_seqlens of int64": (lambda q, k, v: lengths(q, k, v, torch.int64, [0, 7], [0, 11]), ShapeError, "int32"),
    "cu_seqlens end": (lambda q, k, v: lengths(q, k, v, torch.int32, [0, 6], [0, 11]), ShapeError, "ascend from 0 to the 7"),
    "cu_seqlens fall": (lambda q, k, v: lengths(q, k, v, torch.int32, [0, 9, 7], [0, 5, 11]), ShapeError, "ascend"),
    "sequences": (lambda q, k, v: lengths(q, k, v, torch.int32, [0, 3, 7], [0, 11]), ShapeError, "as many"),
    "bias NaN": (lambda q, k, v: sigmoid_attention(q, k, v, bias=math.nan), PolyfmaError, "bias = 'nan'"),
    "bias of lengths": (lambda q, k, v: sigmoid_attention(q[0], k[0], v[0], cu_seqlens_q=cu(7), cu_seqlens_k=cu(11)), PolyfmaError, "bias must be given"),
    "weight_scale": (lambda q, k, v: sigmoid_attention(q, k, v, weight_scale=0.0), PolyfmaError, "weight_scale"),
    "backend": (lambda q, k, v: softcap_attention(q, k, v, cap=1.0, backend="triton"), UnknownNameError, "auto, fa4, score_mod, flex, reference"),
    "fa4 on a CPU": (lambda q, k, v: softcap_attention(q, k, v, cap=1.0, backend="fa4"), PolyfmaError, "tensors are on cpu"),
    "score_mod on a CPU": (lambda q, k, v: sigmoid_attention(q, k, v, backend="score_mod"), PolyfmaError, "tensors are on cpu"),
    "flex on a CPU": (lambda q, k, v: softcap_attention(q, k, v, cap=1.0, backend="flex"), PolyfmaError, "needs CUDA tensors"),
    "budget": (lambda q, k, v: softcap_attention(q, k, v, cap=1.0, budget=1e-3), PolyfmaError, "LogitBudget, not float"),
    "program": (lambda q, k, v: softcap_attention(q, k, v, cap=1.0, program="no-such"), UnknownNameError, "no-such"),
    "a word of another function": (lambda q, k, v: softcap_attention(q, k, v, cap=1.0, program="exponential"), UnknownNameError, "parts are hardware or tanh"),
    "two formats": (lambda q, k, v: softcap_attention(q, k, v, cap=1.0, program=f"{D6}+tanh.forward.bf16.unit-odd-d6"), ProgramError, "bf16 and fp16"),
    "an output that is no value": (lambda q, k, v: sigmoid_attention(q, k, v, program=with_outputs(pf.load(S4), y="value")), ProgramError, "one named value"),
    "in_fp32": (lambda q, k, v: softmax_attention(q, k, v, in_fp32=1), PolyfmaError, "in_fp32 = '1' must be True or False"),
    "scale of an error": (lambda q, k, v: logit_error("hardware", "1"), PolyfmaError, "scale = '1'"),
    "scale below 0": (lambda q, k, v: logit_error("hardware", -1), PolyfmaError, "scale = '-1'"),
    "no parts": (lambda q, k, v: Mix(None), ProgramError, "a tuple of words and Programs"),
    "another function": (lambda q, k, v: softcap_attention(q, k, v, cap=1.0, program=S4), ProgramError, "a tanh forward program is needed"),
    "hardware's program": (lambda q, k, v: softcap_attention(q, k, v, cap=1.0, program="tanh.forward.fp16.hardware"), ProgramError, "write 'hardware'"),
    "masked keys": (lambda q, k, v: sigmoid_attention(q, k, v, program="sigmoid.forward.bf16.d4.sollya"), ProgramError, "masked score, which must weigh 0"),
    "a factor folded in": (lambda q, k, v: sigmoid_attention(q, k, v, program="sigmoid-4096.forward.bf16.two-row-d3.endpoint-ls"), ProgramError, "weight_scale"),
    "empty part": (lambda q, k, v: softcap_attention(q, k, v, cap=1.0, program="+hardware"), UnknownNameError, "has an empty part"),
    "sparse": (lambda q, k, v: softcap_attention(q.to_sparse(), k, v, cap=1.0), DtypeError, "layout sparse_coo"),
    "causal": (lambda q, k, v: softcap_attention(q, k, v, cap=1.0, causal="no"), PolyfmaError, "causal = 'no'"),
    "no programs": (lambda q, k, v: softcap_attention(q, k, v, cap=1.0, program=[]), UnknownNameError, "a mix of no programs"),
    "a number": (lambda q, k, v: softcap_attention(q, k, v, cap=1.0, program=[3]), ProgramError, "not int"),
    "exp2 mix": (lambda q, k, v: softmax_attention(q, k, v, program="hardware+hardware"), PolyfmaError, "one exp2 program"),
}  # fmt: skip


def with_outputs(program: pf.Program, **labels: str) -> pf.Program:
    """The program with outputs of other labels, in the order given; a value of no output's name names a register."""
    data = program.to_dict()
    data["outputs"] = {label: program.outputs.get(name, name) for label, name in labels.items()}
    return pf.Program.from_dict({k: v for k, v in data.items() if k != "digest"})


def cu(end: int) -> Tensor:
    return torch.tensor([0, end], dtype=torch.int32)


def lengths(q: Tensor, k: Tensor, v: Tensor, dtype: torch.dtype, ends_q: list[int], ends_k: list[int]) -> Tensor:
    made = (torch.tensor(e, dtype=dtype) for e in (ends_q, ends_k))
    return softcap_attention(q[0], k[0], v[0], cap=1.0, **dict(zip(("cu_seqlens_q", "cu_seqlens_k"), made, strict=True)))


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_refused_in_one_line(case: str) -> None:
    run, kind, message = BAD[case]
    with pytest.raises(kind, match=message) as refused:
        run(*tensors())
    assert "\n" not in str(refused.value)


def test_calls_without_queries_or_keys_are_zeros_with_gradients() -> None:
    for queries, keys in ((0, 5), (5, 0), (0, 0)):
        q, k, v = (t.requires_grad_() for t in tensors(queries, keys))
        for out in (softcap_attention(q, k, v, cap=2.0), sigmoid_attention(q, k, v, causal=True), softmax_attention(q, k, v)):
            assert out.shape == q.shape and not out.any()
            assert all(torch.isfinite(g).all() for g in torch.autograd.grad(out.sum(), (q, k, v)))


def test_numbers_of_numpy_are_numbers() -> None:
    q, k, v = tensors()
    want = softcap_attention(q, k, v, cap=3.0, softmax_scale=0.5, window=(2, 1))
    assert torch.equal(softcap_attention(q, k, v, cap=np.float32(3), softmax_scale=np.float64(0.5), window=(np.int64(2), 1)), want)


# -- programs ------------------------------------------------------------------------------------------


def test_budget_of_the_default_program_holds_on_a_fresh_grid() -> None:
    """Against mpmath-free numpy in fp64, over scores that the scoring grid does not hold, both signs and infinities."""
    p = in_fp32(pf.load(GAP))
    u = np.concatenate([np.random.default_rng().uniform(-6, 6, 200_000), 10 ** np.random.default_rng().uniform(-9, 6, 50_000), [np.inf, -np.inf]])
    x = pf.FP32.decode(pf.FP32.encode(u))
    y = pf.FP32.decode(pf.replay(p, pf.FP32.encode(u)))
    error = np.abs(y - np.tanh(x))
    assert error.max() <= DEFAULT.outer
    assert error[np.abs(x) <= 0.5].max() <= DEFAULT.middle
    small = (np.abs(x) <= 0.5) & (np.abs(x) > 1e-6)
    assert (error[small] / np.abs(x[small])).max() <= 1e-4  # a tenth of the budget: where logits lie


def test_errors_of_mixes_are_those_of_their_worst_part() -> None:
    words = ("hardware",)
    alone = {text: logit_error(parse(text, "tanh", words)) for text in ("hardware", GAP, D6)}
    both = logit_error(parse(f"hardware+{GAP}+{D6}", "tanh", words))
    for name in ("relative", "middle", "outer"):
        assert getattr(both, name) == max(getattr(e, name) for e in alone.values())
    assert logit_error(f"hardware+{GAP}+{D6}") == both
    assert LogitBudget(outer=np.float32(0.5)).outer == 0.5
    assert DEFAULT.holds(alone["hardware"]) and DEFAULT.holds(alone[GAP])
    assert not DEFAULT.holds(logit_error(parse("tanh.forward.bf16.d3", "tanh", words)))  # small |p - tanh|, large logit error


def test_packed_scores_are_rounded_as_the_kernel_rounds_them() -> None:
    """Scores to fp16, times the rounded scale in fp16: one lane at a time in numpy's own fp16."""
    program, scale = pf.load(D6), 1 / (50 * math.sqrt(128))
    u = np.linspace(0.001, 4, 500)
    narrow, correction = rounded_scale(scale, "fp16")
    raw = (u / scale).astype(np.float16)
    scores = (raw * np.float16(scale)).astype(np.float16)
    want = pf.FP16.decode(pf.replay(program, scores.view(np.uint16))) * correction
    assert narrow == float(np.float16(scale)) and abs(correction - 1) < 2**-11
    np.testing.assert_array_equal(packed_tanh(program, u, scale), want)


def test_scale_that_fp16_cannot_hold_is_refused() -> None:
    with pytest.raises(PolyfmaError, match="outside fp16"):
        rounded_scale(1e-6, "fp16")
    assert choice.softcap_mix("forward", 1e-6, DEFAULT).packed == []


def test_scales_are_in_the_constants() -> None:
    p, rng = pf.load(GAP), np.random.default_rng()
    s = rng.uniform(-9000, 9000, 10_000)
    x = pf.FP32.encode(s)
    got = pf.FP32.decode(pf.replay(scaled(p, 0.0017, 72.0), x))
    want = 72.0 * pf.FP32.decode(pf.replay(in_fp32(p), pf.FP32.encode(0.0017 * pf.FP32.decode(x))))
    np.testing.assert_allclose(got, want, rtol=1e-5)  # fp32 roundings of terms of up to four times the sum


def test_an_offset_costs_nothing_after_a_multiplication() -> None:
    p, x = pf.load(GAP), pf.FP32.encode(np.random.default_rng().uniform(-9000, 9000, 10_000))
    plain, moved = scaled(p, 0.0017, 72.0), scaled(p, 0.0017, 72.0, -16.0)
    assert len(moved.ops) == len(plain.ops) and moved.ops[-1].op == "fma"
    got, want = (pf.FP32.decode(pf.replay(program, x)) for program in (moved, plain))
    np.testing.assert_allclose(got, want - 16.0, atol=2e-5)
    other = pf.load("tanh.forward.fp16.fp32-fused-odd-limited-d8")  # ends in a limit
    assert scaled(other, 1.0, 1.0, -16.0).ops[-1].op == "add"


def test_auto_keeps_its_budget_and_a_stricter_one_takes_the_hardware() -> None:
    scale = 1 / (50 * math.sqrt(128))
    for direction in ("forward", "backward"):
        mix = choice.softcap_mix(direction, scale, DEFAULT)
        arms = choice.arms("softcap", direction)
        assert [a.us for a in arms] == sorted(a.us for a in arms)
        assert mix.text in {a.mix for a in arms}
    assert DEFAULT.holds(logit_error(choice.softcap_mix("forward", scale, DEFAULT), scale))
    assert choice.softcap_mix("forward", scale, LogitBudget(outer=6e-4)).text == "hardware"
    with pytest.raises(PolyfmaError, match="wider budget"):
        choice.softcap_mix("forward", scale, LogitBudget(outer=1e-9))
    with pytest.raises(PolyfmaError, match="budget outer = -1"):
        LogitBudget(outer=-1)


def test_weights_far_below_one_are_the_hardwares() -> None:
    """A polynomial of small absolute error is useless at sigmoid(-8); near 1/2 it is not."""
    s4 = parse(S4, "sigmoid", ("hardware", "exponential"))
    assert choice.weights_error(s4, 0.0, 1.0) < 3e-3 < 0.5 < choice.weights_error(s4, -math.log(4096), 1.0)
    assert choice.sigmoid_mix("forward", -math.log(4096)).text == "hardware"


def test_small_weights_are_the_exponentials() -> None:
    """Half of tanh.approx + 1 has nothing left of a weight of 1e-6: a long context's default bias, and any that a caller may give."""
    assert choice.sigmoid_mix("forward", -math.log(1 << 20)).text == "exponential"
    q, k, v = tensors()
    for bias, weight in ((-365.0, 0.0), (-1e300, 0.0), (1e16, 1.0), (1e300, 1.0)):
        want = (weight * v).sum(1, keepdim=True).repeat_interleave(2, 2).expand_as(q)
        assert torch.allclose(sigmoid_attention(q, k, v, bias=bias), want, atol=1e-12)


def test_a_window_wider_than_the_keys_is_no_window() -> None:
    q, k, v = tensors()
    for side in (11, 2**31, 2**63, 2**70):
        assert torch.equal(softcap_attention(q, k, v, cap=2.0, window=(side, side)), softcap_attention(q, k, v, cap=2.0))


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_a_compiled_caller_gets_the_same(backend: str) -> None:
    """From the first call, with nothing chosen before: choosing programs is no tensor code."""
    for clear in (choice.softcap_mix, choice.sigmoid_mix):
        clear.cache_clear()
    torch._dynamo.reset()
    made = tensors(dtype=torch.float32)
    for run in (lambda q, k, v: 2 * softcap_attention(q, k, v, cap=5.0, causal=True), lambda q, k, v: 2 * sigmoid_attention(q, k, v)):
        assert torch.equal(torch.compile(run, backend=backend)(*made), run(*made))


def test_autocast_does_not_change_the_dtype_of_computation() -> None:
    for dtype in (torch.float32, torch.bfloat16):
        made = tensors(dtype=dtype)
        want = softcap_attention(*made, cap=5.0)
        with torch.autocast("cpu", torch.bfloat16):
            assert torch.equal(softcap_attention(*made, cap=5.0), want)


def test_functionalized() -> None:
    q, k, v = tensors()
    assert torch.equal(torch.func.functionalize(lambda q: softcap_attention(q, k, v, cap=5.0, causal=True))(q), softcap_attention(q, k, v, cap=5.0, causal=True))


def test_only_the_value_of_a_program_counts() -> None:
    """Whatever else a program gives, and in whatever order."""
    program = pf.load(D6)
    other = with_outputs(program, derivative=program.ops[0].dst, value="value")
    assert logit_error(other) == logit_error(program)
    assert [p.ops for p in parse(other, "tanh", ("hardware",)).programs] == [program.ops]


def test_a_warning_names_the_callers_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choice, "_warned", set())
    monkeypatch.setattr(choice, "not_fa4", lambda problem: "a reason")
    monkeypatch.setattr(choice, "not_score_mod", lambda problem: None)
    monkeypatch.setattr(choice, "backend", lambda problem, wanted: choice._fastest(problem) and "reference")
    with pytest.warns(UserWarning, match="a reason") as caught:
        softcap_attention(*tensors(), cap=5.0)
    assert caught[0].filename == __file__


def test_weights_error_is_what_random_scores_have() -> None:
    p, rng = pf.load(S4), np.random.default_rng()
    s = rng.normal(0.0, 1.0, 1 << 19)
    w = 1 / (1 + np.exp(-s))
    y = p.fmt.decode(pf.replay(p, p.fmt.encode(s)))
    measured = math.sqrt(np.sum((y - w) ** 2) / np.sum(w**2))
    # Scores are rounded to BF16 there, which the distribution over BF16 inputs leaves out.
    assert choice.weights_error(Mix((p,)), 0.0, 1.0) == pytest.approx(measured, rel=0.2)


def test_defaults_are_made_of_the_checked_in_measurement() -> None:
    import json
    from pathlib import Path

    pytest.importorskip("flash_attn.cute")
    from polyfma.bench import attention_defaults
    from polyfma.bench.result import read

    path = Path(__file__).parents[1] / "benchmarks" / "results" / "h200" / "attention.json"
    assert json.loads(choice.FILE.read_text()) == attention_defaults.defaults(read(path))
