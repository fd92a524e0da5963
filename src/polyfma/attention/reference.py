"""Attention in plain PyTorch: the meaning of every function here, on any device, with autograd's own gradients.

Scores are kept whole, so memory grows with queries times keys. 16-bit inputs are computed in fp32 and the result is rounded
once; fp64 inputs stay fp64.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from polyfma.attention.problem import Problem

Weights = Callable[[Tensor, Tensor], Tensor]  # (scaled scores, visible) -> weights of the values; what is not visible weighs 0


def softcap_weights(cap: float) -> Weights:
    """softmax(cap tanh(s / cap)) over the visible keys: the cap comes before the mask, as in every implementation of it."""
    return lambda scores, visible: softmax_weights(cap * torch.tanh(scores / cap), visible)


def softmax_weights(scores: Tensor, visible: Tensor) -> Tensor:
    """Softmax over the visible keys; a row that sees none has weights 0."""
    masked = scores.masked_fill(~visible, -torch.inf)
    top = masked.amax(-1, keepdim=True).detach()
    weights = torch.exp(masked - torch.where(top == -torch.inf, 0.0, top))
    total = weights.sum(-1, keepdim=True)
    return weights / torch.where(total == 0, 1.0, total)


def sigmoid_weights(bias: float, weight_scale: float) -> Weights:
    """weight_scale sigmoid(s + bias), exactly 0 where a key is not visible."""
    return lambda scores, visible: torch.sigmoid(scores + bias).masked_fill(~visible, 0.0) * weight_scale


def reference(problem: Problem, weights: Weights) -> Tensor:
    """The output, in q's dtype and layout."""
    if problem.cu_seqlens_q is None or problem.cu_seqlens_k is None:
        return _attend(problem, problem.q, problem.k, problem.v, weights)
    ends_q, ends_k = problem.cu_seqlens_q.tolist(), problem.cu_seqlens_k.tolist()
    parts = [
        _attend(problem, problem.q[None, a:b], problem.k[None, c:d], problem.v[None, c:d], weights)[0]
        for a, b, c, d in zip(ends_q[:-1], ends_q[1:], ends_k[:-1], ends_k[1:], strict=True)
    ]
    return torch.cat(parts)


def _attend(problem: Problem, q: Tensor, k: Tensor, v: Tensor, weights: Weights) -> Tensor:
    if k.shape[1] == 0:
        return torch.where(torch.zeros((), dtype=torch.bool, device=q.device), q, 0) + 0 * (k.sum() + v.sum())
    wide = torch.float64 if q.dtype == torch.float64 else torch.float32
    q, k, v = (t.to(wide).transpose(1, 2) for t in (q, k, v))
    k, v = (t.repeat_interleave(problem.groups, dim=1) for t in (k, v))
    scores = (q @ k.transpose(-1, -2)) * problem.scale
    visible = visible_keys(problem, q.shape[-2], k.shape[-2], q.device)
    return (weights(scores, visible) @ v).transpose(1, 2).to(problem.q.dtype)


def visible_keys(problem: Problem, queries: int, keys: int, device: torch.device) -> Tensor:
    """(queries, keys): which key each query sees."""
    left, right = problem.bounds
    distance = torch.arange(keys, device=device) - (torch.arange(queries, device=device)[:, None] + keys - queries)
    visible = torch.ones(queries, keys, dtype=torch.bool, device=device)
    if right is not None:
        visible = visible & (distance <= right)
    if left is not None:
        visible = visible & (distance >= -left)
    return visible
