"""Calls of FlashAttention-4 with our hooks, and what autograd needs of them."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from functools import lru_cache
from importlib.metadata import version
from typing import Any

import torch
from cutlass import Float32
from flash_attn.cute import interface
from torch import Tensor

from polyfma.attention.fa4.exp2 import Exp2, Exp2Backward
from polyfma.attention.fa4.hooks import Backward, Hook, WeightsBackward, kernels
from polyfma.attention.fa4.sigmoid import Sigmoid, SigmoidBackward
from polyfma.attention.fa4.softcap import Softcap, SoftcapBackward
from polyfma.attention.fa4.versions import TESTED
from polyfma.attention.mix import Mix
from polyfma.attention.problem import Problem
from polyfma.program import Program

FORMATS = {torch.bfloat16: "bf16", torch.float16: "fp16"}


class Hooks:
    """Hooks and arguments of one function's kernels: what is the same for every call with the same programs."""

    def __init__(self, forward: Hook, backward: Hook, kind: type[Backward] = Backward) -> None:
        self.forward, self.backward, self.kind = forward, backward, kind


@lru_cache(maxsize=256)
def softcap_call(forward: Mix, backward: Mix, cap: float, scale: float, weights: str) -> Hooks:
    return Hooks(Softcap(forward, cap, scale, weights), SoftcapBackward(backward, cap, scale, weights))


@lru_cache(maxsize=256)
def sigmoid_call(forward: Mix, backward: Mix, weights: str) -> Hooks:
    return Hooks(Sigmoid(forward, weights), SigmoidBackward(backward, weights), WeightsBackward)


@lru_cache(maxsize=256)
def exp2_call(part: str | Program, fp32: bool) -> Hooks:
    return Hooks(Exp2(part, fp32=fp32), Exp2Backward(part, fp32=fp32), WeightsBackward)


def _arguments(problem: Problem, scalars: tuple[float, ...]) -> dict[str, Any]:
    left, right = problem.window
    arguments: dict[str, Any] = {"softmax_scale": problem.scale, "causal": problem.causal, "window_size_left": left, "window_size_right": right,
                                 "cu_seqlens_q": problem.cu_seqlens_q, "cu_seqlens_k": problem.cu_seqlens_k}  # fmt: skip
    if scalars:
        arguments["aux_scalars"] = tuple(Float32(s) for s in scalars)
    return arguments


def forward(problem: Problem, hooks: Hooks, scalars: tuple[float, ...] = ()) -> tuple[Tensor, Tensor]:
    """(output, log-sum-exp of each row: zeros for sigmoid)."""
    return _forward(problem.q, problem.k, problem.v, hooks, _arguments(problem, scalars))


def _on(tensor: Tensor) -> AbstractContextManager[Any]:
    """The tensor's device as the current one, which is where FlashAttention-4 launches; nothing where there is only a compiler."""
    return torch.cuda.device(tensor.device) if torch.cuda.is_available() else nullcontext()


def _forward(q: Tensor, k: Tensor, v: Tensor, hooks: Hooks, arguments: dict[str, Any]) -> tuple[Tensor, Tensor]:
    with kernels(), _on(q):
        out, lse, *_ = interface._flash_attn_fwd(q, k, v, score_mod=hooks.forward, return_lse=True, **arguments)
    return out, lse


def backward(problem: Problem, hooks: Hooks, out: Tensor, grad: Tensor, lse: Tensor, scalars: tuple[float, ...] = ()) -> tuple[Tensor, ...]:
    """(dq, dk, dv)."""
    return _backward(problem.q, problem.k, problem.v, hooks, out, grad, lse, _arguments(problem, scalars))


def _backward(q: Tensor, k: Tensor, v: Tensor, hooks: Hooks, out: Tensor, grad: Tensor, lse: Tensor, arguments: dict[str, Any]) -> tuple[Tensor, ...]:
    with kernels(hooks.kind), _on(q):
        found = interface._flash_attn_bwd(q, k, v, out, grad, lse, score_mod=hooks.backward, score_mod_bwd=hooks.backward, **arguments)
    return tuple(found[:3])


def plain_forward(problem: Problem, score_mod_bwd: Any = None, **options: Any) -> tuple[Tensor, Tensor]:
    """FlashAttention-4 as it is, for comparison; ``options`` are its own: softcap, score_mod."""
    out, lse, *_ = interface._flash_attn_fwd(problem.q, problem.k, problem.v, return_lse=True, **_arguments(problem, ()), **options)
    return out, lse


def plain_backward(problem: Problem, out: Tensor, grad: Tensor, lse: Tensor, **options: Any) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of :func:`plain_forward`."""
    return tuple(interface._flash_attn_bwd(problem.q, problem.k, problem.v, out, grad, lse, **_arguments(problem, ()), **options)[:3])  # type: ignore[return-value]


def versions_used() -> dict[str, str]:
    """The packages that a measurement depends on, with their versions."""
    return {package: version(package) for package in TESTED}


class _Attention(torch.autograd.Function):
    """``arguments`` hold no tensor that needs a gradient: what is saved is saved through autograd alone."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, hooks: Hooks, arguments: dict[str, Any]) -> Tensor:
        out, lse = _forward(q.detach(), k.detach(), v.detach(), hooks, arguments)
        ctx.save_for_backward(q, k, v, out, lse)
        ctx.hooks, ctx.arguments = hooks, arguments
        return out

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Any:
        q, k, v, out, lse = ctx.saved_tensors
        return *_backward(q, k, v, ctx.hooks, out, grad.contiguous(), lse, ctx.arguments), None, None


@torch.compiler.disable
def attend(problem: Problem, hooks: Hooks, scalars: tuple[float, ...] = ()) -> Tensor:
    """The output, with gradients for q, k and v. A compiled caller's graph ends before it and begins after it."""
    return _Attention.apply(problem.q, problem.k, problem.v, hooks, _arguments(problem, scalars))
