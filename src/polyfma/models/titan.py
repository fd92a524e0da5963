"""Overrides for torchtitan 0.3: our gated unit in its feed-forward and its grouped experts.

Name them on its command line, with a program if it is not to be the default::

    --override.imports polyfma.models.titan.feed_forward,polyfma.models.titan.grouped_experts
    --override.imports 'polyfma.models.titan.feed_forward={"program": "silu.forward.bf16.d5"}'

Parameters keep their names and shapes, so checkpoints, sharding and initialisation are those of the stock modules. A model that is
built already is taken by :func:`polyfma.patch` (feed-forward only).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from polyfma.errors import MissingToolError
from polyfma.models.patching import DEFAULT
from polyfma.models.tails import check_tails
from polyfma.models.units import Unit
from polyfma.ops.choice import EXACT, choose

try:
    from torchtitan.config import derive, override
    from torchtitan.models.common.feed_forward import FeedForward
    from torchtitan.models.common.moe import GroupedExperts
except ImportError as error:
    raise MissingToolError(f"torchtitan's overrides need torchtitan 0.3 (tested: 0.3.0), whose @override is not here ({error}); pip install torchtitan") from error


def _unit(program: str, backward: str | None) -> Unit:
    found = choose("silu", "bf16", program, backward)
    if found.forward != EXACT:
        check_tails(found.forward, "torchtitan")
    return Unit.of("silu", program, backward)


class PolyfmaFeedForward(FeedForward):
    """``w2(silu(w1 x) * w3 x)`` with the product in one pass."""

    @dataclass(kw_only=True, slots=True)
    class Config(FeedForward.Config):
        program: str = DEFAULT
        backward: str | None = None

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.unit = _unit(config.program, config.backward)

    def forward(self, x: Tensor) -> Tensor:
        return self.w2(self.unit.gated(self.w1(x), self.w3(x)))


class PolyfmaGroupedExperts(GroupedExperts):
    """Grouped products with our unit between them. Rows past the last offset hold whatever memory held, and stay their own."""

    @dataclass(kw_only=True, slots=True)
    class Config(GroupedExperts.Config):
        program: str = DEFAULT
        backward: str | None = None

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.unit = _unit(config.program, config.backward)

    def forward(self, x_RD: Tensor, num_tokens_per_expert_E: Tensor) -> Tensor:
        weights = [w.to_local() if isinstance(w, DTensor) else w for w in (self.w1_EFD, self.w3_EFD, self.w2_EDF)]
        gate, up, down = (w.bfloat16().transpose(-2, -1) for w in weights)
        offsets = torch.cumsum(num_tokens_per_expert_E, dim=0, dtype=torch.int32)
        x = x_RD.bfloat16()
        h = self.unit.gated(self._grouped_mm(A=x, B_t=gate, offs=offsets), self._grouped_mm(A=x, B_t=up, offs=offsets))
        return self._grouped_mm(A=h, B_t=down, offs=offsets).type_as(x_RD)


@override(target=FeedForward.Config, exact=True, description="polyfma: SwiGLU in one pass, by a certified program")
def feed_forward(cfg: FeedForward.Config, program: str = DEFAULT, backward: str | None = None) -> FeedForward.Config:
    """The override of dense feed-forwards."""
    return derive(cfg, PolyfmaFeedForward.Config, program=program, backward=backward)


@override(target=GroupedExperts.Config, exact=True, description="polyfma: routed experts' SwiGLU in one pass, by a certified program")
def grouped_experts(cfg: GroupedExperts.Config, program: str = DEFAULT, backward: str | None = None) -> GroupedExperts.Config:
    """The override of routed experts."""
    return derive(cfg, PolyfmaGroupedExperts.Config, program=program, backward=backward)
