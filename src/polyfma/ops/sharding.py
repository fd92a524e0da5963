"""DTensor: the operators are elementwise, so any sharding of the inputs is the sharding of the outputs; sums are not."""

from __future__ import annotations

from functools import cache
from typing import Any

from polyfma.ops.dispatcher import overload
from polyfma.ops.operation import INPUTS, OUTPUTS


@cache
def register() -> None:
    """Register the sharding rule of every operator, once."""
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.experimental import register_sharding

    def register_one(kind: str) -> None:
        @register_sharding(overload(kind))
        def rule(first: Any, *rest: Any) -> list[tuple[list[Any], list[Any]]]:
            placements = [Replicate(), *(Shard(d) for d in range(len(first.shape)))]
            return [([p] * len(OUTPUTS[kind]), [*[p] * len(INPUTS[kind]), None]) for p in placements]

    for kind in INPUTS:
        register_one(kind)
