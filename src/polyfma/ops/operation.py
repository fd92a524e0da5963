"""What one kernel does, for a Choice: either a :class:`~polyfma.ops.fused.Fused` of programs or exact fp32 arithmetic.

Both kinds answer the same questions: names of inputs and outputs, and the PTX block of a lane pair. The kinds of operation:

===================  ====================  ===============
kind                 inputs                outputs
===================  ====================  ===============
``unary``            x                     y
``unary_backward``   grad, x               dx
``gated``            gate, up              y
``gated_backward``   grad, gate, up        d_gate, d_up
===================  ====================  ===============
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from polyfma.emit.architecture import KNOWN, Architecture, get_architecture
from polyfma.emit.lowering import Block, lower
from polyfma.ops import fused
from polyfma.ops.choice import EXACT, RELU, Choice, parse, program_of
from polyfma.ops.exact_block import exact_block
from polyfma.ops.fused import Fused
from polyfma.program import Program

INPUTS = {"unary": ("x",), "unary_backward": ("grad", "x"), "gated": ("gate", "up"), "gated_backward": ("grad", "gate", "up")}
OUTPUTS = {"unary": ("y",), "unary_backward": ("dx",), "gated": ("y",), "gated_backward": ("d_gate", "d_up")}


@dataclass(frozen=True)
class Operation:
    """``fused`` is None where the arithmetic is exact."""

    choice: Choice
    kind: str
    fused: Fused | None

    @property
    def inputs(self) -> tuple[str, ...]:
        return INPUTS[self.kind]

    @property
    def outputs(self) -> tuple[str, ...]:
        return OUTPUTS[self.kind]

    def block(self, architecture: Architecture, layout: str, outputs: tuple[str, ...] | None = None) -> Block:
        """The PTX of a lane pair: layout ``packed`` (16-bit pairs) or ``f32`` (fp32 in and out, rounded to the format inside)."""
        if self.fused is not None:
            return lower(self.fused, architecture, layout, outputs)
        return exact_block(self.choice, self.kind, architecture, layout, self.inputs, self.outputs if outputs is None else outputs)


@lru_cache(maxsize=1024)
def operation(key: str, kind: str) -> Operation:
    """The operation of a Choice's key."""
    choice = parse(key)
    return Operation(choice, kind, _fused(choice, kind))


def _fused(choice: Choice, kind: str) -> Fused | None:
    """None for exact arithmetic. An exact gradient of a program's unit, or the reverse, is exact in that kernel alone."""
    needed = {"unary": (choice.forward,), "unary_backward": (choice.backward,), "gated": (choice.forward,),
              "gated_backward": (choice.forward, choice.backward)}[kind]  # fmt: skip
    if choice.function == RELU:
        programs: list[Program | None] = [None, None]
    elif (choice.backward == EXACT and kind.endswith("_backward")) or EXACT in needed:
        return None
    else:
        programs = [program_of(key) for key in needed]
    if kind == "unary":
        return fused.unary(programs[0])  # type: ignore[arg-type]
    if kind == "unary_backward":
        return fused.unary_backward(programs[0])  # type: ignore[arg-type]
    if kind == "gated":
        return fused.gated(choice.format, programs[0], choice.limit)
    return fused.gated_backward(choice.format, programs[0], programs[1], choice.limit)


TILING = (2048, 8)  # elements of a tile and its warps: one 16-byte vector a thread, what a copy does best


@lru_cache(maxsize=1024)
def tiling(key: str, kind: str) -> tuple[int, int]:
    """Elements of a tile, and the warps that share it. The long exact sequences gain from smaller blocks."""
    return TILING if operation(key, kind).fused is not None else (1024, 4)


@lru_cache(maxsize=64)
def architecture_of(capability: int) -> Architecture:
    """The newest architecture known here that runs on a device of this compute capability (times ten)."""
    return get_architecture(f"sm_{max(number for number in KNOWN if number <= capability)}")
