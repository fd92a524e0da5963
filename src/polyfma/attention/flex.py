"""The functions by FlexAttention: any CUDA architecture that it serves, compiled once for each shape, cap, bias and mask."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention

from polyfma.attention.problem import Problem

ScoreMod = Callable[..., Tensor]


_MOST_VARIANTS = 64  # caps, biases, masks and shapes that stay compiled; past torch's own 8 it would run eagerly, with all scores


@cache
def _compiled() -> Callable[..., Any]:
    return torch.compile(flex_attention, dynamic=False)


@lru_cache(maxsize=64)
def softcap_mod(cap: float) -> ScoreMod:
    """cap tanh(s / cap)."""

    def softcap(score: Tensor, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return cap * torch.tanh(score * (1 / cap))

    return softcap


@lru_cache(maxsize=64)
def sigmoid_mod(bias: float) -> ScoreMod:
    """log sigmoid(s + bias): a softmax's weights of it, times exp of its log-sum-exp, are sigmoid(s + bias)."""

    def log_sigmoid(score: Tensor, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return torch.nn.functional.logsigmoid(score + bias)

    return log_sigmoid


def softcap(problem: Problem, cap: float) -> Tensor:
    return _merged(problem, _run(problem, softcap_mod(cap), False))


def softmax(problem: Problem) -> Tensor:
    return _merged(problem, _run(problem, None, False))


def sigmoid(problem: Problem, bias: float, weight_scale: float) -> Tensor:
    out, lse = _run(problem, sigmoid_mod(bias), True)
    total = torch.exp(lse.float())[..., None] * weight_scale  # a row that sees nothing has log-sum-exp -inf
    return _merged(problem, (out.float() * total).to(out.dtype))


def _run(problem: Problem, mod: ScoreMod | None, lse: bool) -> Any:
    q, k, v = (t if t.dim() == 4 else t[None] for t in (problem.q, problem.k, problem.v))
    q, k, v = (t.transpose(1, 2) for t in (q, k, v))
    with torch._dynamo.config.patch(recompile_limit=_MOST_VARIANTS):
        return _compiled()(q, k, v, score_mod=mod, block_mask=_mask(problem, q.shape[2], k.shape[2]), scale=problem.scale,
                           enable_gqa=problem.groups > 1, return_lse=lse)  # fmt: skip


def _merged(problem: Problem, out: Tensor) -> Tensor:
    out = out.transpose(1, 2)
    return out[0] if problem.varlen else out


def _mask(problem: Problem, queries: int, keys: int) -> BlockMask | None:
    if problem.cu_seqlens_q is None or problem.cu_seqlens_k is None:
        return _dense_mask(*problem.bounds, queries, keys, problem.q.device)
    document_q, document_k = (_documents(cu, n) for cu, n in ((problem.cu_seqlens_q, queries), (problem.cu_seqlens_k, keys)))
    ends = (problem.cu_seqlens_k[1:] - problem.cu_seqlens_q[1:])[document_q]  # both diagonals end at a sequence's last key
    left, right = problem.bounds

    def visible(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return (document_q[q] == document_k[k]) & _inside(k - q - ends[q], left, right)

    return create_block_mask(visible, None, None, queries, keys, device=problem.q.device)


@lru_cache(maxsize=64)
def _dense_mask(left: int | None, right: int | None, queries: int, keys: int, device: torch.device) -> BlockMask | None:
    if left is None and right is None:
        return None

    def visible(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return _inside(k - q - (keys - queries), left, right)

    return create_block_mask(visible, None, None, queries, keys, device=device)


def _inside(distance: Tensor, left: int | None, right: int | None) -> Tensor:
    """Whether a key that far behind the diagonal (ahead, if positive) is within the window."""
    inside = distance == distance
    if right is not None:
        inside = inside & (distance <= right)
    return inside if left is None else inside & (distance >= -left)


def _documents(cu: Tensor, tokens: int) -> Tensor:
    """The number of each token's sequence."""
    return torch.searchsorted(cu[1:].contiguous(), torch.arange(tokens, device=cu.device, dtype=cu.dtype), right=True)
