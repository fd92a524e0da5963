"""What of a model can be replaced, and what is left alone with the reason.

Each place is named as ``named_modules`` names it. Routers, final-logit softcaps and unknown activations are never places: a
router's choice is discrete, so a small error changes which expert runs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from torch import nn

from polyfma.models import experts
from polyfma.models.activations import looks_like_activation, recognise
from polyfma.models.experts import Gate
from polyfma.models.structure import Gated, gated

GATED, EXPERTS, ACTIVATION, ATTENTION = "gated MLP", "experts", "activation", "softcapped attention"


@dataclass(frozen=True)
class Place:
    """A module that can be replaced. ``function`` is its activation's; ``detail`` what its kind needs."""

    name: str
    kind: str
    module: nn.Module
    function: str
    detail: Gated | Gate | float | None = None

    @property
    def alpha(self) -> float | None:
        """Of GPT-OSS's clamped unit."""
        return self.detail.alpha if isinstance(self.detail, Gate) else None

    @property
    def limit(self) -> float | None:
        """Of GPT-OSS's clamped unit."""
        return self.detail.limit if isinstance(self.detail, Gate) else None

    @property
    def called(self) -> str:
        """The function that programs are chosen for: SiLU with its alpha."""
        return self.function if self.alpha in (None, 1) else f"{self.function}-{self.alpha:g}"


@dataclass(frozen=True)
class Left:
    """Something left alone, and why."""

    name: str
    reason: str


def discover(model: nn.Module, include: tuple[str, ...] = ()) -> tuple[list[Place], list[Left]]:
    """The places of a model in its own order, and what is left. ``include``: patterns of names in routers to take none the less."""
    places: list[Place] = []
    left: list[Left] = []
    inside: list[str] = []  # below what was taken or left as a whole
    in_routers = _in_routers(model)
    for name, module in model.named_modules():
        if any(not above or name.startswith(f"{above}.") for above in inside):
            continue
        if _is_router(name, module):
            taken = [p for p in _within(name, module) if _matches(p.name, include)]
            places += taken
            if not taken:
                left.append(Left(name, "a router: its choice is discrete; name an activation in it with include= to take it"))
            inside.append(name)
            continue
        found = _place(name, module)
        if isinstance(found, Place) and _touches(found, in_routers):
            found = Left(name, "a router uses the same activation module")
        if isinstance(found, Place):
            places.append(found)
            if found.kind in (GATED, EXPERTS):
                inside.append(name)
        elif found is not None:
            left.append(found)
            if experts.is_experts(module) or gated(module) is not None:
                inside.append(name)
    return places, left + _softcaps_left(model)


def _place(name: str, module: nn.Module) -> Place | Left | None:
    if "forward" in module.__dict__:
        return Left(name, f"its forward was replaced already, by {whose(module.__dict__['forward'])}")
    if experts.is_experts(module):
        gate = experts.gate_of(module)
        return Left(name, gate) if isinstance(gate, str) else Place(name, EXPERTS, module, gate.function, gate)
    if (known := recognise(module)) is not None:
        return Place(name, ACTIVATION, module, known.function) if known.function else Left(name, known.reason)
    if (structure := gated(module)) is not None:
        known = structure.recognised
        return Place(name, GATED, module, known.function, structure) if known.function else Left(name, known.reason)
    if (cap := softcap_of(module)) is not None:
        return Place(name, ATTENTION, module, "softcap", cap)
    if looks_like_activation(name, module):
        return Left(name, f"an unknown activation, {type(module).__name__}")
    return None


def _within(name: str, router: nn.Module) -> Iterator[Place]:
    for below, module in router.named_modules(prefix=name):
        known = recognise(module)
        if known and known.function:
            yield Place(below, ACTIVATION, module, known.function)


def _is_router(name: str, module: nn.Module) -> bool:
    """By its class, or by the name that blocks of experts give it. A gated MLP's own projections are never asked: they are inside it."""
    last = name.rpartition(".")[2]
    return "Router" in type(module).__name__ or last in ("router", "gate") or last.endswith("_router")


def _in_routers(model: nn.Module) -> set[int]:
    """Every module below a router, also one that is used elsewhere too."""
    return {id(below) for name, module in model.named_modules(remove_duplicate=False) if _is_router(name, module) for below in module.modules()}


def _touches(place: Place, in_routers: set[int]) -> bool:
    return place.kind == ACTIVATION and id(place.module) in in_routers


def _matches(name: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatchcase(name, p) for p in patterns)


def softcap_of(module: nn.Module) -> float | None:
    """The cap of an attention layer of transformers that goes through its attention interface."""
    cap = getattr(module, "attn_logit_softcapping", None)
    forward = getattr(type(module).forward, "__wrapped__", type(module).forward)
    through = "ALL_ATTENTION_FUNCTIONS" in getattr(getattr(forward, "__code__", None), "co_names", ())
    return float(cap) if isinstance(cap, float | int) and not isinstance(cap, bool) and through else None


def _softcaps_left(model: nn.Module) -> list[Left]:
    config: Any = getattr(model, "config", None)
    text = config.get_text_config() if hasattr(config, "get_text_config") else config
    cap = getattr(text, "final_logit_softcapping", None)
    return [] if cap is None else [Left("final logits", f"a softcap of {cap:g} on the logits that a loss or a sampler reads")]


def whose(value: Any) -> str:
    """What put a function in a forward's place."""
    kind = getattr(value, "func", value)
    return f"{getattr(kind, '__module__', '?')}.{getattr(kind, '__qualname__', type(value).__name__)}"
