"""Softcapped attention in transformers: an attention function and its mask function under the name ``polyfma``.

``model.set_attn_implementation("polyfma")`` after :func:`register`, or :func:`polyfma.patch` for the softcapped layers of one model.
The mask function hands over what FlashAttention takes (nothing, or which tokens are padding) where the mask is causal, causal
within a window, or full; any other mask is made whole and the attention computed densely.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from polyfma.attention import softcap_attention, softmax_attention
from polyfma.errors import MissingToolError, PolyfmaError

NAME = "polyfma"
_warned: set[str] = set()


def register() -> None:
    """Make ``polyfma`` an attention implementation of transformers. Raises MissingToolError without a transformers that has the interfaces."""
    try:
        from transformers import AttentionInterface, AttentionMaskInterface
    except ImportError as error:
        raise MissingToolError("this needs transformers 5 (tested: 5.17.0, 5.24.0); pip install 'polyfma[models]'") from error
    AttentionInterface.register(NAME, attention)
    AttentionMaskInterface.register(NAME, mask)


def attention(module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, scaling: float | None = None,
              dropout: float = 0.0, softcap: float | None = None, sliding_window: int | None = None, is_causal: bool | None = None,
              **kwargs: Any) -> tuple[Tensor, None]:  # fmt: skip
    """transformers' attention signature: query (batch, heads, n, dim), key and value (batch, kv heads, m, dim); gives (batch, n, heads, dim).

    Without a mask the layer's own ``is_causal`` and ``sliding_window`` hold, so causality never depends on a mask being made.
    Raises PolyfmaError for attention sinks.
    """
    if kwargs.get("s_aux") is not None:
        raise PolyfmaError("attention implementation 'polyfma' has no attention sinks; use 'eager' or a FlashAttention that has them for this model")
    causal = is_causal if is_causal is not None else bool(getattr(module, "is_causal", True))
    if query.shape[2] == 1 and attention_mask is None and sliding_window is None:
        causal = False  # one query sees every key
    dense = attention_mask is not None and attention_mask.ndim == 4
    if dense or dropout or value.shape[-1] != query.shape[-1] or (sliding_window is not None and not causal):
        _say_once("a mask that is not causal with padding" if dense else "dropout, a window without causality, or values of another width")
        mask_of = attention_mask if dense else _dense_mask(query, key, attention_mask, causal, sliding_window)
        return _dense(query, key, value, mask_of, scaling, dropout, softcap), None
    options: dict[str, Any] = {"causal": causal, "softmax_scale": scaling}
    if sliding_window is not None and sliding_window < key.shape[2]:
        options["window"] = (sliding_window - 1, None)
    q, k, v = (t.transpose(1, 2) for t in (query, key, value))
    if attention_mask is None:
        return _call(q, k, v, softcap, options), None
    return _unpadded(q, k, v, attention_mask.bool(), softcap, options), None


def _call(q: Tensor, k: Tensor, v: Tensor, softcap: float | None, options: dict[str, Any]) -> Tensor:
    return softmax_attention(q, k, v, **options) if softcap is None else softcap_attention(q, k, v, cap=float(softcap), **options)


def _unpadded(q: Tensor, k: Tensor, v: Tensor, seen: Tensor, softcap: float | None, options: dict[str, Any]) -> Tensor:
    """Sequences without their padding, one after another; padding's own rows are 0. ``seen`` (batch, keys): the last columns are the queries'."""
    batch, n, heads, dim = q.shape
    # A static cache is longer than what was written to it, and the mask ends where that does.
    k, v = k[:, : seen.shape[1]], v[:, : seen.shape[1]]
    asked = seen[:, -n:]
    lengths = [torch.nn.functional.pad(m.sum(1).cumsum(0), (1, 0)).to(torch.int32) for m in (asked, seen)]
    out = _call(q[asked], k[seen], v[seen], softcap, options | {"cu_seqlens_q": lengths[0], "cu_seqlens_k": lengths[1]})
    return out.new_zeros(batch, n, heads, dim).masked_scatter(asked[..., None, None], out)


def _dense_mask(query: Tensor, key: Tensor, padding: Tensor | None, causal: bool, window: int | None) -> Tensor | None:
    n, m = query.shape[2], key.shape[2]
    ahead = torch.arange(m, device=query.device) - (torch.arange(n, device=query.device)[:, None] + m - n)
    seen = torch.ones(n, m, dtype=torch.bool, device=query.device)
    if causal:
        seen &= ahead <= 0
    if window is not None:
        seen &= (ahead > -window) & (ahead < window)
    return seen if padding is None else seen & padding[:, None, None, -m:].bool()


def _dense(query: Tensor, key: Tensor, value: Tensor, mask_of: Tensor | None, scaling: float | None, dropout: float, softcap: float | None) -> Tensor:
    """All scores in memory, as transformers' own eager function: (batch, n, heads, dim)."""
    groups = query.shape[1] // key.shape[1]
    key, value = (t.repeat_interleave(groups, 1) if groups > 1 else t for t in (key, value))
    scores = query @ key.transpose(2, 3) * (scaling if scaling is not None else query.shape[-1] ** -0.5)
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    if mask_of is not None:
        mask_of = mask_of[..., : key.shape[2]]
        scores = scores.masked_fill(~mask_of, torch.finfo(scores.dtype).min) if mask_of.dtype is torch.bool else scores + mask_of
    weights = nn.functional.dropout(torch.softmax(scores, -1, dtype=torch.float32).to(query.dtype), dropout, dropout > 0)
    return (weights @ value).transpose(1, 2).contiguous()


def _say_once(what: str) -> None:
    if what not in _warned:
        _warned.add(what)
        warnings.warn(f"polyfma attention computes densely, all scores in memory: {what}", stacklevel=3)


# -- masks -----------------------------------------------------------------------------------------------


def mask(batch_size: int, q_length: int, kv_length: int, q_offset: int = 0, kv_offset: int = 0, mask_function: Callable[..., Any] | None = None,
         attention_mask: Tensor | None = None, **kwargs: Any) -> Tensor | None:  # fmt: skip
    """transformers' mask signature: None, a 2D mask of what is no padding, or a whole 4D mask where those two do not say it."""
    from transformers import masking_utils

    given: dict[str, Any] = {"batch_size": batch_size, "q_length": q_length, "kv_length": kv_length, "q_offset": q_offset, "kv_offset": kv_offset,
                             "attention_mask": attention_mask}  # fmt: skip
    written = kv_length == q_offset + q_length - kv_offset  # a static cache is longer
    if written and (mask_function is None or _is_plain(mask_function)):
        return masking_utils.flash_attention_mask(**given, **({} if mask_function is None else {"mask_function": mask_function}))
    rest = {k: v for k, v in kwargs.items() if k not in ("allow_is_causal_skip", "allow_is_bidirectional_skip")}
    rest |= {} if mask_function is None else {"mask_function": mask_function}
    return masking_utils.sdpa_mask(**given, **rest, allow_is_causal_skip=False, allow_is_bidirectional_skip=False)


def _is_plain(function: Callable[..., Any]) -> bool:
    """Whether a mask function is the library's causal, windowed causal or full one: the same code over the same parts."""
    from transformers import masking_utils

    if function in (masking_utils.causal_mask_function, masking_utils.bidirectional_mask_function):
        return True
    return _codes(function) == _codes(masking_utils.sliding_window_causal_mask_function(1))


def _codes(function: Callable[..., Any]) -> tuple[Any, ...]:
    parts = [part for cell in function.__closure__ or () if isinstance(cell.cell_contents, tuple) for part in cell.cell_contents]
    return (function.__code__, *(p.__code__ for p in parts if callable(p)))
