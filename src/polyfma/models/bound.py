"""What is bound over a module's methods. Module-level functions and plain arguments only: copies and pickles carry them along.

A binding is ``functools.partial(function, module, ...)`` in the instance's ``__dict__``. A deep copy's partial holds the
copy's module; a class, and so every other instance, is never touched.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from torch import Tensor, nn

from polyfma.models.structure import Gated
from polyfma.models.units import Unit


def gated_forward(module: nn.Module, structure: Gated, unit: Unit, *args: Tensor, **kwargs: Tensor) -> Tensor:
    """``tail(unit(gate(x), up(x)))`` of the one tensor x, by whatever name it is given."""
    (x,) = (*args, *kwargs.values())
    if structure.up is not None:
        y = unit.gated(getattr(module, structure.gate)(x), getattr(module, structure.up)(x))
    elif structure.gate_first:
        y = unit.packed(getattr(module, structure.gate)(x), False)
    else:
        up, gate = getattr(module, structure.gate)(x).chunk(2, dim=-1)
        y = unit.gated(gate, up)
    for name in structure.tail:
        y = getattr(module, name)(y)
    return y


def activation_forward(module: nn.Module, unit: Unit, *args: Tensor, **kwargs: Tensor) -> Tensor:
    """``unit(x)``; the module is held so that a copy of it is."""
    (x,) = (*args, *kwargs.values())
    return unit(x)


def packed_gate(module: nn.Module, unit: Unit, interleaved: bool, gate_up: Tensor) -> Tensor:
    """``unit`` of a packed tensor: what experts call between their two products."""
    return unit.packed(gate_up, interleaved)


FUNCTIONS = (gated_forward, activation_forward, packed_gate)


def is_ours(value: Any) -> bool:
    """Whether an attribute is one of these bindings."""
    return isinstance(value, Unit) or (isinstance(value, partial) and value.func in FUNCTIONS)
