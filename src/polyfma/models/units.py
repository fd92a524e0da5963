"""What takes an activation's place: an operator with its programs, and torch's own where the operator does not go.

A :class:`Unit` is plain data, so a patched model can be copied, pickled and compiled.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from polyfma import ops
from polyfma.models.activations import GELU, GELU_TANH, NATIVE, QUICK_GELU, SIGMOID, SILU, TANH
from polyfma.ops.dtypes import FORMATS
from polyfma.program import Program

_UNARY = {SILU: ops.silu, QUICK_GELU: ops.quick_gelu, SIGMOID: ops.sigmoid, TANH: ops.tanh}


def takes(x: Tensor) -> bool:
    """Whether an operator takes this tensor: 16 bits, or what autocast makes 16 bits of."""
    if x.dtype in FORMATS:
        return True
    return x.dtype is torch.float32 and torch.is_autocast_enabled(x.device.type) and torch.get_autocast_dtype(x.device.type) in FORMATS


@dataclass(frozen=True)
class Unit:
    """A function with its programs. ``alpha`` and ``limit`` are those of GPT-OSS's clamped unit, whose function is SiLU.

    ``program`` and ``backward`` are texts as :mod:`polyfma.ops` takes them; ``made`` holds the Programs that they name, if
    they are not the catalogue's.
    """

    function: str
    program: str | None = None
    backward: str | None = None
    alpha: float | None = None
    limit: float | None = None
    made: tuple[Program, ...] = field(default=(), repr=False)

    @classmethod
    def of(cls, function: str, program: str | Program | None, backward: str | Program | None, alpha: float | None = None,
           limit: float | None = None) -> Unit:  # fmt: skip
        made = tuple(p for p in (program, backward) if isinstance(p, Program))
        names = [ops.register(p) if isinstance(p, Program) else p for p in (program, backward)]
        return cls(function, names[0], names[1], alpha, limit, made)

    def __setstate__(self, state: dict[str, Any]) -> None:
        """A unit from a file brings the programs that its names stand for."""
        self.__dict__.update(state)
        for program in self.made:
            ops.register(program)

    def __call__(self, x: Tensor) -> Tensor:
        """f(x)."""
        if not takes(x):
            return self.native(x)
        if self.function in (GELU, GELU_TANH):
            return ops.gelu(x, approximate=_approximate(self.function), program=self.program, backward=self.backward)
        return _UNARY[self.function](x, program=self.program, backward=self.backward)

    def gated(self, gate: Tensor, up: Tensor) -> Tensor:
        """f(gate) * up, in one pass where the two have one shape."""
        if not (takes(gate) and takes(up)) or gate.dtype is not up.dtype or self.function not in (SILU, GELU, GELU_TANH):
            return self.native_gated(gate, up) if not takes(gate) or self.limit is not None else self(gate) * up
        programs: dict[str, Any] = {"program": self.program, "backward": self.backward}
        if self.alpha is not None and self.limit is not None:
            return ops.clamped_swiglu(gate, up, alpha=self.alpha, limit=self.limit, **programs)
        if self.function == SILU:
            return ops.swiglu(gate, up, **programs)
        return ops.geglu(gate, up, approximate=_approximate(self.function), **programs)

    def packed(self, gate_up: Tensor, interleaved: bool) -> Tensor:
        """:meth:`gated` of one [..., 2h] tensor: halves, or alternating elements."""
        if takes(gate_up) and self.alpha is not None and self.limit is not None:
            return ops.clamped_swiglu(gate_up, alpha=self.alpha, limit=self.limit, interleaved=interleaved, program=self.program, backward=self.backward)
        if takes(gate_up) and self.function == SILU:
            return ops.swiglu(gate_up, interleaved=interleaved, program=self.program, backward=self.backward)
        gate, up = (gate_up[..., ::2], gate_up[..., 1::2]) if interleaved else gate_up.chunk(2, dim=-1)
        return self.gated(gate, up)

    def native(self, x: Tensor) -> Tensor:
        """f(x) by torch's own operator."""
        return NATIVE[self.function](x)

    def native_gated(self, gate: Tensor, up: Tensor) -> Tensor:
        """f(gate) * up as models write it."""
        if self.alpha is None or self.limit is None:
            return NATIVE[self.function](gate) * up
        gate, up = gate.clamp(max=self.limit), up.clamp(-self.limit, self.limit)
        return (up + 1) * (gate * torch.sigmoid(gate * self.alpha))


def _approximate(function: str) -> str:
    return "none" if function == GELU else "tanh"
