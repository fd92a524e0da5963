"""Routed experts of transformers: what their gate computes, and an experts function that lets it run fused.

Experts keep all gates in one packed tensor and call ``_apply_gate`` between their two products. What that method computes is found
out by calling it on numbers that tell plain units from clamped ones and halves from alternating elements.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from polyfma.models.activations import SILU, recognise
from polyfma.models.units import Unit

NAME = "polyfma"
OWN_ACTIVATION = ("sonicmoe", "deepgemm")  # kernels with an activation of their own


@dataclass(frozen=True)
class Gate:
    """The unit of an experts module; ``looped`` where its implementation is the loop that does not call ``_apply_gate``."""

    function: str
    interleaved: bool
    alpha: float | None
    limit: float | None
    looped: bool


def is_experts(module: nn.Module) -> bool:
    """Whether a module is experts of transformers 5, with one packed gate and up projection."""
    return hasattr(type(module), "_apply_gate") and bool(getattr(module, "has_gate", False)) and "_apply_gate" not in module.__dict__


def gate_of(module: nn.Module) -> Gate | str:
    """What the gate computes, or why it is left alone."""
    implementation = getattr(getattr(module, "config", None), "_experts_implementation", None) or "eager"
    if implementation in OWN_ACTIVATION:
        return f"its experts run in {implementation}, which has an activation of its own"
    for unit, interleaved in _candidates(module):
        if _computes(module, unit, interleaved):
            looped = implementation == "eager" and not _loop_calls_gate(type(module))
            return Gate(unit.function, interleaved, unit.alpha, unit.limit, looped)
    return "its gate is no unit that has programs"


def _candidates(module: nn.Module) -> list[tuple[Unit, bool]]:
    found: list[tuple[Unit, bool]] = []
    known = recognise(getattr(module, "act_fn", None))
    alpha, limit = getattr(module, "alpha", None), getattr(module, "limit", None)
    for interleaved in (False, True):
        if isinstance(alpha, float | int) and isinstance(limit, float | int):
            found.append((Unit(SILU, alpha=float(alpha), limit=float(limit)), interleaved))
        if known and known.function:
            found.append((Unit(known.function), interleaved))
    return found


def _computes(module: Any, unit: Unit, interleaved: bool) -> bool:
    """Whether the module's own gate gives what the unit gives, in fp32, on values within and beyond every clamp."""
    scale = torch.tensor([0.1, 1.0, 5.0, 30.0, 300.0])[:, None]
    x = scale * torch.linspace(-1.0, 1.0, 64).view(2, 32).flip(0).T.reshape(1, 64).roll(7, -1)
    try:
        with torch.no_grad():
            got = module._apply_gate(x)
    except Exception:  # a gate that needs anything else is not of this kind
        return False
    want = unit.packed(x, interleaved)
    return bool(got.shape == want.shape and torch.allclose(got, want, rtol=1e-5, atol=1e-6))


def _loop_calls_gate(kind: type[nn.Module]) -> bool:
    loop = getattr(kind.forward, "__wrapped__", kind.forward)
    return "_apply_gate" in loop.__code__.co_names


def register() -> None:
    """Make ``polyfma`` an experts implementation: the loop over experts, calling ``_apply_gate``."""
    from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS

    ALL_EXPERTS_FUNCTIONS.register(NAME, experts)


def experts(module: Any, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
    """transformers' experts signature: (tokens, hidden), (tokens, k) experts and weights of each token. One product pair an expert that is hit."""
    out = torch.zeros_like(hidden_states)
    for expert in top_k_index.unique().tolist():
        if expert >= module.num_experts:  # what expert parallelism keeps elsewhere
            continue
        token, place = torch.where(top_k_index == expert)
        y = _linear(module, "gate_up_proj", expert, hidden_states[token])
        y = _linear(module, "down_proj", expert, module._apply_gate(y))
        if getattr(module, "has_post_expert_norm", False):
            y = module.post_expert_norm(y)
        out.index_add_(0, token, (y * top_k_weights[token, place, None]).to(out.dtype))
    return out


def _linear(module: Any, name: str, expert: int, x: Tensor) -> Tensor:
    weight = getattr(module, name)[expert]
    bias = getattr(module, f"{name}_bias")[expert] if module.has_bias else None
    return nn.functional.linear(x, weight.T if module.is_transposed else weight, bias)
