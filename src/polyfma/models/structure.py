"""How a gated MLP is built, read from what its forward does: gate and up projections, one activation, one product, the rest.

The forward is traced symbolically (torch.fx) with every submodule a black box, so any class qualifies whose forward is
``tail(act(gate(x)) * up(x))``, whatever its names; one that does anything more does not.
"""

from __future__ import annotations

import dis
import inspect
import operator
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from types import FunctionType
from typing import Any

import torch
from torch import fx, nn

from polyfma.models.activations import Recognised, recognise


@dataclass(frozen=True)
class Gated:
    """``tail(act(gate(x)) * up(x))``: names of submodules. ``up`` is None where one projection makes both, the gate's half first or not (``gate_first``)."""

    gate: str
    up: str | None
    tail: tuple[str, ...]
    recognised: Recognised
    gate_first: bool = True


_NOT_STRAIGHT = ("JUMP", "FOR_ITER", "WITH", "STORE_ATTR", "STORE_SUBSCR", "STORE_GLOBAL", "STORE_DEREF", "DELETE", "RAISE", "YIELD", "SEND", "IMPORT")
Node = Any  # an fx.Node, whose types say little of what a graph's nodes hold


class _Tracer(fx.Tracer):  # type: ignore[misc]
    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return True


def gated(module: nn.Module) -> Gated | None:
    """The structure of a gated MLP, None for any other module."""
    if not 2 <= sum(1 for _ in module.children()) <= 8 or not _takes_one_tensor(module) or not _is_straight(type(module).forward):
        return None
    try:
        graph = _Tracer().trace(module)
    except Exception:  # whatever a forward does with what is no tensor: it is not of this kind
        return None
    return _match(module, graph)


def _takes_one_tensor(module: nn.Module) -> bool:
    parameters = list(inspect.signature(type(module).forward).parameters.values())[1:]
    return len(parameters) == 1 and parameters[0].kind is inspect.Parameter.POSITIONAL_OR_KEYWORD


def _is_straight(forward: Any) -> bool:
    """Whether a forward is a plain function that computes and returns: what a trace would lose (a branch, a context, an attribute that it sets, a
    decorator) is in its code, and a forward with any of that is not traced at all."""
    if not isinstance(forward, FunctionType) or hasattr(forward, "__wrapped__"):
        return False
    names = {i.opname for i in dis.get_instructions(forward)}
    return not any(word in name for name in names for word in _NOT_STRAIGHT)


def _match(module: nn.Module, graph: fx.Graph) -> Gated | None:
    nodes = list(graph.nodes)
    x = nodes[0]
    product = next((n for n in nodes if n.op == "call_function" and n.target in (operator.mul, torch.mul) and len(n.args) == 2), None)
    if product is None or any(not isinstance(a, fx.Node) for a in product.args):
        return None
    for activated, up in (product.args, product.args[::-1]):
        found = _activation(module, activated)
        if found is None:
            continue
        recognised, gate = found
        sources = _separate(x, gate, up) or _packed(x, gate, up)
        tail = _tail(product)
        if sources is None or tail is None:
            return None
        result = Gated(sources[0], sources[1], tail, recognised, sources[2])
        return result if _uses_all(result, nodes) else None
    return None


def _activation(module: nn.Module, node: Node) -> tuple[Recognised, Node] | None:
    """What computes a node, if it is an activation of one tensor."""
    operands = [a for a in node.args if isinstance(a, fx.Node)]
    if len(operands) != 1 or len(node.args) != 1:
        return None
    if node.op == "call_module":
        activation = module.get_submodule(node.target)
        found = None if _has_hooks(activation) else recognise(activation)  # what is hooked must be called
        return (found, operands[0]) if found and not node.kwargs else None
    if node.op == "call_function":
        target: Callable[..., Any] = node.target
        options = {k: v for k, v in node.kwargs.items() if k != "inplace"}
        found = recognise(_with(target, options))
        return (found, operands[0]) if found else None
    return None


def _has_hooks(module: nn.Module) -> bool:
    return any(getattr(module, f"_{kind}_hooks") for kind in ("forward", "forward_pre", "backward", "backward_pre")) or "forward" in module.__dict__


def _with(target: Callable[..., Any], options: dict[str, Any]) -> Any:
    return partial(target, **options) if options else target


def _separate(x: Node, gate: Node, up: Node) -> tuple[str, str | None, bool] | None:
    """Names of two projections of the input."""
    for node in (gate, up):
        if node.op != "call_module" or node.args != (x,) or node.kwargs or not _plain(node.target):
            return None
    return (gate.target, up.target, True) if gate.target != up.target else None


def _packed(x: Node, gate: Node, up: Node) -> tuple[str, str | None, bool] | None:
    """The name of one projection whose two halves are gate and up."""
    if any(n.op != "call_function" or n.target is not operator.getitem for n in (gate, up)) or gate.args[0] is not up.args[0]:
        return None
    halves, order = gate.args[0], (gate.args[1], up.args[1])
    whole = halves.args[0] if _is_chunk(halves) else None
    if whole is None or order not in ((0, 1), (1, 0)) or whole.op != "call_module" or whole.args != (x,) or whole.kwargs or not _plain(whole.target):
        return None
    return whole.target, None, order == (0, 1)


def _is_chunk(node: Node) -> bool:
    called = (node.op == "call_method" and node.target == "chunk") or (node.op == "call_function" and node.target is torch.chunk)
    options = dict(node.kwargs) | dict(zip(("chunks", "dim"), node.args[1:], strict=False))
    return called and options == {"chunks": 2, "dim": -1}


def _tail(product: Node) -> tuple[str, ...] | None:
    """The modules from the product to the output, one after another."""
    names: list[str] = []
    node = product
    while len(node.users) == 1:
        user = next(iter(node.users))
        if user.op == "output":
            return tuple(names) if user.args == (node,) else None
        if user.op != "call_module" or user.args != (node,) or user.kwargs or not _plain(user.target):
            return None
        names.append(user.target)
        node = user
    return None


def _uses_all(found: Gated, nodes: list[Node]) -> bool:
    """Whether the trace has nothing besides what was recognised."""
    projections = 1 if found.up else 3  # one more, or chunk and two items
    return len(nodes) == 1 + 1 + projections + 1 + 1 + len(found.tail) + 1


def _plain(target: str) -> bool:
    return "." not in target
