"""The functions by FlexAttention: any CUDA architecture that it serves, compiled once for each kind of call."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention

from polyfma.attention.problem import Problem

ScoreMod = Callable[..., Tensor]


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
    return _compiled()(q, k, v, score_mod=mod, block_mask=_mask(problem, q.shape[2], k.shape[2]), scale=problem.scale,
                       enable_gqa=problem.groups > 1, return_lse=lse)  # fmt: skip


def _merged(problem: Problem, out: Tensor) -> Tensor:
    out = out.transpose(1, 2)
    return out[0] if problem.varlen else out


def _mask(problem: Problem, queries: int, keys: int) -> BlockMask | None:
    left, right = problem.bounds
    if left is None and right is None and not problem.varlen:
        return None
    offset: Tensor | int = keys - queries
    document_q = document_k = None
    if problem.cu_seqlens_q is not None and problem.cu_seqlens_k is not None:
        document_q, document_k = (_documents(cu, n) for cu, n in ((problem.cu_seqlens_q, queries), (problem.cu_seqlens_k, keys)))
        ends = problem.cu_seqlens_k[1:] - problem.cu_seqlens_q[1:]  # both diagonals end at a sequence's last key
        offset = ends[document_q]

    def visible(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        distance = k - q - (offset if isinstance(offset, int) else offset[q])
        seen = distance == distance
        if right is not None:
            seen = seen & (distance <= right)
        if left is not None:
            seen = seen & (distance >= -left)
        return seen if document_q is None or document_k is None else seen & (document_q[q] == document_k[k])

    return create_block_mask(visible, None, None, queries, keys, device=problem.q.device)


def _documents(cu: Tensor, tokens: int) -> Tensor:
    """The number of each token's sequence."""
    return torch.searchsorted(cu[1:].contiguous(), torch.arange(tokens, device=cu.device, dtype=cu.dtype), right=True)
