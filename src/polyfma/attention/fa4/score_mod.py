"""Softcaps as FlashAttention-4's own hooks, which any of its versions and architectures takes: for comparison, and for users' calls.

FlashAttention-4's built-in softcap divides each score by the cap with ``div.rn.f32``; these multiply by its reciprocal.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from cutlass import cute


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
