"""A call of an attention function, checked: shapes, dtypes, masks. Every backend takes one."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from numbers import Integral

import torch
from torch import Tensor

from polyfma.attention.scalars import flag, positive
from polyfma.errors import DtypeError, ShapeError

DTYPES = (torch.bfloat16, torch.float16, torch.float32, torch.float64)


@dataclass(frozen=True)
class Problem:
    """q (batch, queries, heads, dim), k and v (batch, keys, kv heads, dim), or, with ``cu_seqlens``, (tokens, heads, dim).

    Query i of n_q sees key j of n_k where j <= i + n_k - n_q (``causal``) and within ``window`` = (left, right) of that
    diagonal; None is unlimited. ``scale`` multiplies q k^T.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    scale: float
    causal: bool
    window: tuple[int | None, int | None]
    cu_seqlens_q: Tensor | None
    cu_seqlens_k: Tensor | None

    @property
    def varlen(self) -> bool:
        return self.cu_seqlens_q is not None

    def with_tensors(self, q: Tensor, k: Tensor, v: Tensor) -> Problem:
        """The same call on other tensors of the same shapes."""
        return replace(self, q=q, k=k, v=v)

    @property
    def empty(self) -> bool:
        """Whether there is no query or no key at all."""
        return self.q.numel() == 0 or self.k.numel() == 0

    @property
    def groups(self) -> int:
        """Query heads for each key and value head."""
        return self.q.shape[-2] // self.k.shape[-2]

    @property
    def head_dim(self) -> int:
        return self.q.shape[-1]

    @property
    def bounds(self) -> tuple[int | None, int | None]:
        """The window with what ``causal`` forbids."""
        return self.window[0], 0 if self.causal else self.window[1]


def check(q: Tensor, k: Tensor, v: Tensor, *, causal: bool, softmax_scale: float | None, window: tuple[int | None, int | None] | None,
          cu_seqlens_q: Tensor | None, cu_seqlens_k: Tensor | None) -> Problem:  # fmt: skip
    """The Problem. Raises ShapeError, DtypeError or PolyfmaError with what was given and what is allowed."""
    _check_tensors(q, k, v)
    flag("causal", causal)
    if (cu_seqlens_q is None) != (cu_seqlens_k is None):
        raise ShapeError("cu_seqlens_q and cu_seqlens_k go together: give both for sequences of several lengths, or neither")
    rank = 4 if cu_seqlens_q is None else 3
    layout = "(batch, sequence, heads, head dim)" if rank == 4 else "(tokens, heads, head dim), as cu_seqlens are given"
    for name, t in (("q", q), ("k", k), ("v", v)):
        if t.dim() != rank:
            raise ShapeError(f"{name} has shape {tuple(t.shape)}; {rank} dimensions are needed: {layout}")
    _check_shapes(q, k, v)
    for name, cu, t in (("cu_seqlens_q", cu_seqlens_q, q), ("cu_seqlens_k", cu_seqlens_k, k)):
        if cu is not None:
            _check_lengths(name, cu, t)
    if cu_seqlens_q is not None and cu_seqlens_k is not None and cu_seqlens_q.shape != cu_seqlens_k.shape:
        raise ShapeError(f"cu_seqlens_q has {len(cu_seqlens_q) - 1} sequences, cu_seqlens_k {len(cu_seqlens_k) - 1}; they must be as many")
    scale = 1 / math.sqrt(q.shape[-1]) if softmax_scale is None else positive("softmax_scale", softmax_scale)
    return Problem(q, k, v, scale, causal, _window(window, max(q.shape[-3], k.shape[-3])), cu_seqlens_q, cu_seqlens_k)


def _check_tensors(q: Tensor, k: Tensor, v: Tensor) -> None:
    for name, t in (("q", q), ("k", k), ("v", v)):
        if not isinstance(t, Tensor):
            raise DtypeError(f"{name} must be a torch.Tensor, not {type(t).__name__}")
        if t.layout != torch.strided:
            raise DtypeError(f"{name} has layout {str(t.layout).removeprefix('torch.')}; dense (strided) tensors are needed")
    if len({t.dtype for t in (q, k, v)}) > 1 or q.dtype not in DTYPES:
        allowed = ", ".join(str(d).removeprefix("torch.") for d in DTYPES)
        raise DtypeError(f"q, k and v have dtypes {', '.join(str(t.dtype).removeprefix('torch.') for t in (q, k, v))}; one of {allowed} for all three")
    if len({t.device for t in (q, k, v)}) > 1:
        raise DtypeError(f"q, k and v are on {', '.join(str(t.device) for t in (q, k, v))}; they must be on one device")


def _check_shapes(q: Tensor, k: Tensor, v: Tensor) -> None:
    if k.shape != v.shape:
        raise ShapeError(f"k has shape {tuple(k.shape)}, v {tuple(v.shape)}; they must be the same")
    if q.shape[-1] != k.shape[-1]:
        raise ShapeError(f"q has head dim {q.shape[-1]}, k {k.shape[-1]}; they must be the same")
    if q.dim() == 4 and q.shape[0] != k.shape[0]:
        raise ShapeError(f"q has batch {q.shape[0]}, k {k.shape[0]}; they must be the same")
    if k.shape[-2] == 0 or q.shape[-2] % k.shape[-2] or q.shape[-2] == 0:
        raise ShapeError(f"q has {q.shape[-2]} heads, k and v {k.shape[-2]}; the first must be a multiple of the second")
    if q.shape[-1] == 0:
        raise ShapeError("the head dim is 0; it must be at least 1")


def _check_lengths(name: str, cu: Tensor, t: Tensor) -> None:
    if not isinstance(cu, Tensor) or cu.dtype != torch.int32 or cu.dim() != 1 or len(cu) < 2:
        given = f"{cu.dtype} of shape {tuple(cu.shape)}" if isinstance(cu, Tensor) else type(cu).__name__
        raise ShapeError(f"{name} must be an int32 tensor of one dimension, 0 and then each sequence's end, not {given}")
    if cu.device != t.device:
        raise DtypeError(f"{name} is on {cu.device}, its tokens on {t.device}; they must be on one device")
    if cu.device.type == "cpu" and (cu[0] != 0 or cu[-1] != t.shape[0] or bool((cu.diff() < 0).any())):
        raise ShapeError(f"{name} must ascend from 0 to the {t.shape[0]} tokens, not {cu.tolist()[:8]}")


def _window(window: tuple[int | None, int | None] | None, tokens: int) -> tuple[int | None, int | None]:
    """Both sides; one that reaches as far as there are tokens is no limit."""
    if window is None:
        return None, None
    sides = tuple(window) if isinstance(window, tuple | list) else ()
    if len(sides) != 2 or any(isinstance(s, bool) or not (s is None or isinstance(s, Integral)) for s in sides):
        raise ShapeError(f"window = {window!r} must be (left, right), each a number of keys from 0 up, or None or -1 for no limit")
    left, right = (None if s is None or s == -1 or s >= tokens else int(s) for s in sides)
    if any(s is not None and s < 0 for s in (left, right)):
        raise ShapeError(f"window = {window!r} must be (left, right), each a number of keys from 0 up, or None or -1 for no limit")
    return left, right
