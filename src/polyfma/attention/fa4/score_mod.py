"""Softcap and sigmoid by FlashAttention-4's own hooks and public functions: for versions and architectures that ours are not for.

Its built-in softcap divides each score by the cap with ``div.rn.f32``; this one multiplies by the reciprocal. No programs run here.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from cutlass import cute
from flash_attn.cute import flash_attn_func, flash_attn_varlen_func
from torch import Tensor

from polyfma.attention.problem import Problem


@cache
def reciprocal_softcap(cap: float) -> Callable[..., Any]:
    """A ``score_mod``: cap tanh.approx(s (1 / cap))."""
    reciprocal = 1 / cap

    @cute.jit
    def score_mod(scores, batch_idx, head_idx, q_idx, kv_idx, seqlen_info, aux_tensors):  # type: ignore[no-untyped-def]
        return cap * cute.math.tanh(scores * reciprocal, fastmath=True)

    return score_mod


@cache
def reciprocal_softcap_bwd(cap: float) -> Callable[..., Any]:
    """Its ``score_mod_bwd``."""
    reciprocal = 1 / cap

    @cute.jit
    def score_mod_bwd(grad, scores, batch_idx, head_idx, q_idx, kv_idx, seqlen_info, aux_tensors):  # type: ignore[no-untyped-def]
        t = cute.math.tanh(scores * reciprocal, fastmath=True)
        return grad * (1.0 - t * t)

    return score_mod_bwd


@cache
def log_sigmoid(bias: float) -> Callable[..., Any]:
    """A ``score_mod`` log sigmoid(s + bias): its softmax's weights, times exp of the log-sum-exp, are sigmoid(s + bias)."""

    @cute.jit
    def score_mod(scores, batch_idx, head_idx, q_idx, kv_idx, seqlen_info, aux_tensors):  # type: ignore[no-untyped-def]
        return 0.0 - cute.math.log(1.0 + cute.math.exp(0.0 - (scores + bias), fastmath=True), fastmath=True)

    return score_mod


@cache
def log_sigmoid_bwd(bias: float) -> Callable[..., Any]:
    """Its ``score_mod_bwd``: the derivative is 1 - sigmoid."""

    @cute.jit
    def score_mod_bwd(grad, scores, batch_idx, head_idx, q_idx, kv_idx, seqlen_info, aux_tensors):  # type: ignore[no-untyped-def]
        return grad / (1.0 + cute.math.exp(scores + bias, fastmath=True))

    return score_mod_bwd


def softcap(problem: Problem, cap: float) -> Tensor:
    """Softcap attention through FlashAttention-4's public functions."""
    return _run(problem, reciprocal_softcap(cap), reciprocal_softcap_bwd(cap))[0]


def sigmoid(problem: Problem, bias: float, weight_scale: float) -> Tensor:
    """Sigmoid attention through FlashAttention-4's public functions; gradients go through output and log-sum-exp."""
    out, lse = _run(problem, log_sigmoid(bias), log_sigmoid_bwd(bias))
    total = torch.exp(lse.transpose(-1, -2))[..., None] * weight_scale  # a row that sees nothing has log-sum-exp -inf
    return (out.float() * total).to(out.dtype)


def softmax(problem: Problem) -> Tensor:
    """FlashAttention-4 as it is."""
    return _run(problem, None, None)[0]


@torch.compiler.disable
def _run(problem: Problem, score_mod: Callable[..., Any] | None, score_mod_bwd: Callable[..., Any] | None) -> tuple[Tensor, Tensor]:
    options: dict[str, Any] = {"softmax_scale": problem.scale, "causal": problem.causal, "window_size": problem.window, "return_lse": True,
                               "score_mod": score_mod, "score_mod_bwd": score_mod_bwd}  # fmt: skip
    if not problem.varlen:
        return flash_attn_func(problem.q, problem.k, problem.v, **options)[:2]
    return flash_attn_varlen_func(problem.q, problem.k, problem.v, cu_seqlens_q=problem.cu_seqlens_q, cu_seqlens_k=problem.cu_seqlens_k, **options)[:2]
