"""torchtitan's override mechanism with our modules: same parameters, our programs, its own configuration."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional

import polyfma as pf
from polyfma.errors import PolyfmaError

pytest.importorskip("torchtitan.config", reason="torchtitan is an optional target")
from torchtitan.config.override import _REGISTRY
from torchtitan.models.common.feed_forward import FeedForward
from torchtitan.models.common.linear import Linear
from torchtitan.models.common.moe import GroupedExperts

from polyfma.models import titan


def dense() -> FeedForward.Config:
    return FeedForward.Config(w1=Linear.Config(in_features=16, out_features=32), w2=Linear.Config(in_features=32, out_features=16),
                              w3=Linear.Config(in_features=16, out_features=32))  # fmt: skip


def filled(module: nn.Module, like: nn.Module | None = None) -> nn.Module:
    module = module.to(torch.bfloat16)
    for name, parameter in module.named_parameters():
        nn.init.normal_(parameter, std=0.5) if like is None else parameter.data.copy_(dict(like.named_parameters())[name])
    return module


def test_overrides_are_registered_for_the_stock_modules_alone() -> None:
    for factory, target in ((titan.feed_forward, FeedForward.Config), (titan.grouped_experts, GroupedExperts.Config)):
        found = _REGISTRY[f"polyfma.models.titan.{factory.__name__}"]
        assert found.target_cls is target and found.exact


def test_feed_forward() -> None:
    stock = filled(dense().build())
    ours = filled(titan.feed_forward(dense(), program="exact").build(), stock)
    assert [n for n, _ in ours.named_parameters()] == [n for n, _ in stock.named_parameters()]
    assert ours.state_dict().keys() == stock.state_dict().keys()
    x = torch.randn(5, 16, dtype=torch.bfloat16)
    assert float((ours(x) - stock(x)).float().norm() / stock(x).float().norm()) < 0.02
    default = filled(titan.feed_forward(dense()).build(), stock)
    want = default.w2(pf.ops.swiglu(default.w1(x), default.w3(x), program="faithful"))
    assert torch.equal(default(x), want)


def test_grouped_experts() -> None:
    config = GroupedExperts.Config(dim=16, hidden_dim=32, num_experts=3)
    stock = filled(config.build())
    ours = filled(titan.grouped_experts(config, program="exact").build(), stock)
    x, counts = torch.randn(12, 16, dtype=torch.bfloat16), torch.tensor([5, 0, 7])
    rows, start = [], 0
    for expert, n in enumerate(counts.tolist()):
        h = functional.silu(x[start : start + n] @ stock.w1_EFD[expert].T) * (x[start : start + n] @ stock.w3_EFD[expert].T)
        rows.append(h @ stock.w2_EDF[expert].T)
        start += n
    want = torch.cat(rows).float()
    assert float((ours(x, counts).float() - want).norm() / want.norm()) < 0.03


def test_programs_are_checked() -> None:
    with pytest.raises(PolyfmaError, match="no exact tails"):
        titan.feed_forward(dense(), program="silu.forward.bf16.d4.free").build()
    with pytest.raises(PolyfmaError, match="no-such"):
        titan.grouped_experts(GroupedExperts.Config(dim=16, hidden_dim=32, num_experts=3), program="no-such").build()


def test_a_built_model_is_patched() -> None:
    model = filled(dense().build())
    with pf.patch(model) as handle:
        assert [r.kind for r in handle.report().replaced] == ["gated MLP"]
