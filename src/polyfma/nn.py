"""Modules of the operators, for where a model holds ``nn.SiLU()``. They have no parameters and no state.

``program`` and ``backward`` are as in :mod:`polyfma.ops`; they are resolved at each call, by the input's dtype.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from polyfma import ops
from polyfma.program import Program

__all__ = ["GELU", "ClampedSwiGLU", "GeGLU", "QuickGELU", "ReGLU", "SiLU", "Sigmoid", "Softcap", "SwiGLU", "Tanh"]
_Given = str | Program | None


class _Module(nn.Module):
    """What all have: the programs, as text."""

    def __init__(self, *, program: _Given = None, backward: _Given = None) -> None:
        super().__init__()
        # As text, which a compiled graph can hold; the Programs themselves travel with a copy or a pickle.
        self._programs = tuple(p for p in (program, backward) if isinstance(p, Program))
        self.program, self.backward = (ops.register(p) if isinstance(p, Program) else p for p in (program, backward))

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        for program in self._programs:
            ops.register(program)

    def extra_repr(self) -> str:
        given = {"program": self.program, "backward": self.backward}
        return ", ".join(f"{name}={value}" for name, value in given.items() if value is not None)


class _Activation(_Module):
    """A module of an operator of one tensor without arguments of its own."""

    _operator: Callable[..., Tensor]

    def forward(self, x: Tensor) -> Tensor:
        return self._operator(x, program=self.program, backward=self.backward)


class Sigmoid(_Activation):
    """:func:`polyfma.ops.sigmoid`."""

    _operator = staticmethod(ops.sigmoid)


class Tanh(_Activation):
    """:func:`polyfma.ops.tanh`."""

    _operator = staticmethod(ops.tanh)


class SiLU(_Activation):
    """:func:`polyfma.ops.silu`."""

    _operator = staticmethod(ops.silu)


class QuickGELU(_Activation):
    """:func:`polyfma.ops.quick_gelu`."""

    _operator = staticmethod(ops.quick_gelu)


class GELU(_Module):
    """:func:`polyfma.ops.gelu`; ``approximate`` as in ``torch.nn.GELU``."""

    def __init__(self, approximate: str = "none", *, program: _Given = None, backward: _Given = None) -> None:
        super().__init__(program=program, backward=backward)
        ops.check_approximate(approximate)
        self.approximate = approximate

    def forward(self, x: Tensor) -> Tensor:
        return ops.gelu(x, approximate=self.approximate, program=self.program, backward=self.backward)

    def extra_repr(self) -> str:
        return ", ".join(part for part in (f"approximate={self.approximate}", super().extra_repr()) if part)


class Softcap(_Module):
    """:func:`polyfma.ops.softcap` with one cap."""

    def __init__(self, cap: float, *, program: _Given = None, backward: _Given = None) -> None:
        super().__init__(program=program, backward=backward)
        ops.check_number("cap", cap)
        self.cap = cap

    def forward(self, x: Tensor) -> Tensor:
        return ops.softcap(x, self.cap, program=self.program, backward=self.backward)

    def extra_repr(self) -> str:
        return ", ".join(part for part in (f"cap={self.cap:g}", super().extra_repr()) if part)


class _Gated(_Module):
    """One packed tensor or gate and up."""

    def __init__(self, *, interleaved: bool = False, program: _Given = None, backward: _Given = None) -> None:
        super().__init__(program=program, backward=backward)
        self.interleaved = interleaved

    def _layout(self, up: Tensor | None) -> bool:
        return self.interleaved and up is None


class SwiGLU(_Gated):
    """:func:`polyfma.ops.swiglu`."""

    def forward(self, gate: Tensor, up: Tensor | None = None) -> Tensor:
        return ops.swiglu(gate, up, interleaved=self._layout(up), program=self.program, backward=self.backward)


class GeGLU(_Gated):
    """:func:`polyfma.ops.geglu`."""

    def __init__(self, approximate: str = "none", *, interleaved: bool = False, program: _Given = None, backward: _Given = None) -> None:
        super().__init__(interleaved=interleaved, program=program, backward=backward)
        ops.check_approximate(approximate)
        self.approximate = approximate

    def forward(self, gate: Tensor, up: Tensor | None = None) -> Tensor:
        return ops.geglu(gate, up, approximate=self.approximate, interleaved=self._layout(up), program=self.program, backward=self.backward)


class ReGLU(_Gated):
    """:func:`polyfma.ops.reglu`."""

    def __init__(self, *, interleaved: bool = False) -> None:
        super().__init__(interleaved=interleaved)

    def forward(self, gate: Tensor, up: Tensor | None = None) -> Tensor:
        return ops.reglu(gate, up, interleaved=self._layout(up))


class ClampedSwiGLU(_Gated):
    """:func:`polyfma.ops.clamped_swiglu`; GPT-OSS packs interleaved, which is the default here."""

    def __init__(self, alpha: float = 1.702, limit: float = 7.0, *, interleaved: bool = True, program: _Given = None,
                 backward: _Given = None) -> None:  # fmt: skip
        super().__init__(interleaved=interleaved, program=program, backward=backward)
        ops.check_number("alpha", alpha)
        ops.check_number("limit", limit)
        self.alpha, self.limit = alpha, limit

    def forward(self, gate: Tensor, up: Tensor | None = None) -> Tensor:
        return ops.clamped_swiglu(gate, up, alpha=self.alpha, limit=self.limit, interleaved=self._layout(up), program=self.program,
                                  backward=self.backward)  # fmt: skip
