"""Attention whose weights are softcapped or sigmoid, with programs in place of the special-function unit where that is faster.

On one H200 both run near the speed of plain softmax attention; docs/attention.md has the figures and their arms.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar, cast

import torch
from torch import Tensor

from polyfma.attention import choice
from polyfma.attention.budget import DEFAULT, LogitBudget, LogitError, logit_error
from polyfma.attention.mix import EXPONENTIAL, HARDWARE, Given, Mix, parse
from polyfma.attention.problem import Problem, check
from polyfma.attention.reference import reference, sigmoid_weights, softcap_weights, softmax_weights
from polyfma.attention.scalars import between, flag, positive, real
from polyfma.errors import PolyfmaError

__all__ = ["LogitBudget", "LogitError", "Mix", "logit_error", "sigmoid_attention", "softcap_attention", "softmax_attention"]

Window = tuple[int | None, int | None] | None
_LEAST_CAP, _MOST_CAP = 1e-6, 1e6
_Function = TypeVar("_Function", bound=Callable[..., Tensor])


def _as_called(function: _Function) -> _Function:
    """Outside compiled graphs, which cannot choose programs, and in the dtypes of the tensors, whatever autocast is on."""

    @wraps(function)
    def call(q: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        with torch.autocast(q.device.type if isinstance(q, Tensor) else "cpu", enabled=False):
            return function(q, *args, **kwargs)

    return cast(_Function, torch.compiler.disable(call))


@_as_called
def softcap_attention(q: Tensor, k: Tensor, v: Tensor, *, cap: float, causal: bool = False, softmax_scale: float | None = None,
                      window: Window = None, cu_seqlens_q: Tensor | None = None, cu_seqlens_k: Tensor | None = None,
                      program: Given = "auto", backward: Given = "auto", budget: LogitBudget = DEFAULT, backend: str = "auto") -> Tensor:  # fmt: skip
    """softmax(cap tanh(softmax_scale q k^T / cap)) v; the cap comes before the mask.

    q is (batch, queries, heads, head dim), k and v (batch, keys, kv heads, head dim), where kv heads divide heads; with
    ``cu_seqlens_q`` and ``cu_seqlens_k`` (int32, 0 and each sequence's end) all are (tokens, heads, head dim). The result has q's
    shape and dtype. ``causal`` and ``window`` = (left, right) are relative to the diagonal that ends at the last key. A query that
    sees no key gives 0, if all values are finite: unseen ones weigh 0, and 0 times NaN is NaN. -1 is no limit, as None is, and
    ``causal`` overrides the right side. ``softmax_scale`` is 1 / sqrt(head dim) by default.

    ``program`` computes tanh of pairs of scores: ``auto`` is the fastest measured mix within ``budget``; ``hardware``,
    catalogue names or Programs, joined by ``+`` or in a list, are taken in turn. ``backward`` likewise, for the gradient, which is
    that of tanh at the program's value. ``backend``: auto, fa4, score_mod, flex or reference, by the rules of
    :mod:`polyfma.attention.choice`; only fa4 runs programs, the others compute tanh itself. Gradients are once differentiable on fa4.
    Autocast changes nothing: the tensors' dtype is what is computed in. In ``torch.compile`` a graph ends before the call and another
    begins after it.

    Raises PolyfmaError (a cap that is no number from 1e-6 to 1e6, no program within the budget, a backend that cannot take the call),
    ShapeError, DtypeError, UnknownNameError, ProgramError; MissingToolError without a tested FlashAttention-4.
    """
    problem = check(q, k, v, causal=causal, softmax_scale=softmax_scale, window=window, cu_seqlens_q=cu_seqlens_q, cu_seqlens_k=cu_seqlens_k)
    cap = between("cap", cap, _LEAST_CAP, _MOST_CAP)
    if not isinstance(budget, LogitBudget):
        raise PolyfmaError(f"budget must be a polyfma.attention.LogitBudget, not {type(budget).__name__}")
    mixes = [_softcap_mix(given, direction, problem.scale / cap, budget) for given, direction in ((program, "forward"), (backward, "backward"))]
    where = choice.backend(problem, backend)
    if where == "reference":
        return reference(problem, softcap_weights(cap))
    if where == "flex":
        from polyfma.attention import flex

        return flex.softcap(problem, cap)
    if where == "score_mod":
        from polyfma.attention.fa4 import score_mod

        return score_mod.softcap(problem, cap)
    from polyfma.attention.fa4 import call

    return call.attend(problem, call.softcap_call(*mixes, cap, problem.scale, call.FORMATS[q.dtype]))


def _softcap_mix(given: Given, direction: str, scale: float, budget: LogitBudget) -> Mix:
    if isinstance(given, str) and given == "auto":
        return choice.softcap_mix(direction, scale, budget)
    return parse(given, "tanh", (HARDWARE,))


@_as_called
def sigmoid_attention(q: Tensor, k: Tensor, v: Tensor, *, bias: float | None = None, weight_scale: float = 1.0, causal: bool = False,
                      softmax_scale: float | None = None, window: Window = None, cu_seqlens_q: Tensor | None = None,
                      cu_seqlens_k: Tensor | None = None, program: Given = "auto", backward: Given = "auto",
                      backend: str = "auto") -> Tensor:  # fmt: skip
    """weight_scale sigmoid(softmax_scale q k^T + bias) v over the keys that a query sees; a masked key weighs exactly 0.

    Shapes, masks and backends are those of :func:`softcap_attention`. ``bias`` is -log(keys) by default (with ``cu_seqlens`` it must
    be given); the published form sigmoid(s) / n is ``bias=0, weight_scale=1/n``. On fa4 a new bias or weight_scale compiles nothing.
    ``program`` computes the weights of pairs of scores: ``hardware`` (tanh.approx), ``exponential`` (ex2 and rcp), sigmoid programs of
    the catalogue, joined by ``+``; ``auto`` is the fastest measured mix that keeps a relative error of 4e-3 of the output for scores
    N(bias, 1) and N(bias, 2). A program with an output ``derivative`` gives its own gradient, others w (1 - w).
    Raises what :func:`softcap_attention` does.
    """
    problem = check(q, k, v, causal=causal, softmax_scale=softmax_scale, window=window, cu_seqlens_q=cu_seqlens_q, cu_seqlens_k=cu_seqlens_k)
    bias, weight_scale = _bias(problem, bias), positive("weight_scale", weight_scale)
    words = (HARDWARE, EXPONENTIAL)
    mixes = [choice.sigmoid_mix(direction, bias) if isinstance(given, str) and given == "auto" else parse(given, "sigmoid", words)
             for given, direction in ((program, "forward"), (backward, "backward"))]  # fmt: skip
    where = choice.backend(problem, backend)
    if where == "reference":
        return reference(problem, sigmoid_weights(bias, weight_scale))
    if where == "flex":
        from polyfma.attention import flex

        return flex.sigmoid(problem, bias, weight_scale)
    if where == "score_mod":
        from polyfma.attention.fa4 import score_mod

        return score_mod.sigmoid(problem, bias, weight_scale)
    from polyfma.attention.fa4 import call

    return call.attend(problem, call.sigmoid_call(*mixes, call.FORMATS[q.dtype]), (bias, weight_scale))


def _bias(problem: Problem, bias: float | None) -> float:
    if bias is None:
        if problem.varlen:
            raise PolyfmaError("bias must be given with cu_seqlens: sequences of several lengths have no one log(keys)")
        return -math.log(max(problem.k.shape[1], 1))
    number = real(bias)
    if number is None or not math.isfinite(number):
        raise PolyfmaError(f"bias = {str(bias)[:40]!r} must be a finite number, or None for -log(keys)")
    return number


@_as_called
def softmax_attention(q: Tensor, k: Tensor, v: Tensor, *, causal: bool = False, softmax_scale: float | None = None, window: Window = None,
                      cu_seqlens_q: Tensor | None = None, cu_seqlens_k: Tensor | None = None, program: Given = HARDWARE,
                      in_fp32: bool = False, backend: str = "auto") -> Tensor:  # fmt: skip
    """softmax(softmax_scale q k^T) v with part of its exponentials by an exp2 program: a research tool, not a faster softmax.

    Shapes, masks and errors are those of :func:`softcap_attention`. ``program`` is ``hardware`` or an exp2 program for the fraction,
    run on every third pair of scores forward and every eighth backward, in its own format or, with ``in_fp32``, in fp32.
    Backends other than fa4 compute exp itself.
    """
    problem = check(q, k, v, causal=causal, softmax_scale=softmax_scale, window=window, cu_seqlens_q=cu_seqlens_q, cu_seqlens_k=cu_seqlens_k)
    mix, in_fp32 = parse(program, "exp2", (HARDWARE,)), flag("in_fp32", in_fp32)
    if len(mix.parts) != 1:
        raise PolyfmaError(f"program = {mix.text!r}: one exp2 program or {HARDWARE!r}; how many pairs it computes is fixed")
    where = choice.backend(problem, backend)
    if where == "reference":
        return reference(problem, softmax_weights)
    if where == "flex":
        from polyfma.attention import flex

        return flex.softmax(problem)
    if where == "score_mod":
        from polyfma.attention.fa4 import score_mod

        return score_mod.softmax(problem)
    from polyfma.attention.fa4 import call

    return call.attend(problem, call.exp2_call(mix.parts[0], in_fp32))
