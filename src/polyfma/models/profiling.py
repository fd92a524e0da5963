"""What each layer of a model needs: its inputs recorded, every candidate's error on them predicted, a choice measured and proposed.

``polyfma profile`` writes a :class:`Profile`; :meth:`polyfma.models.Config.read` takes its choice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from polyfma import catalog
from polyfma.errors import PolyfmaError, UnknownNameError
from polyfma.models.discover import ATTENTION, Place, discover
from polyfma.models.histogram import Histogram, Predicted, predict
from polyfma.models.patching import DEFAULT, Binding, Config, bind, format_of, restore
from polyfma.models.quality import Budget, Prepare, Progress, Quality, compare
from polyfma.models.units import Unit
from polyfma.ops.choice import EXACT, HARDWARE, choose, is_file, program_of
from polyfma.pareto import TIERS

CANDIDATES = (DEFAULT, EXACT)


@dataclass(frozen=True)
class Recorder(Unit):
    """A unit that computes natively and counts its inputs."""

    histogram: Histogram | None = None

    def __call__(self, x: Tensor) -> Tensor:
        self._add(x)
        return self.native(x)

    def gated(self, gate: Tensor, up: Tensor) -> Tensor:
        limited = gate if self.limit is None else gate.clamp(max=self.limit)
        self._add(limited, up if self.limit is None else up.clamp(-self.limit, self.limit) + 1)
        return self.native_gated(gate, up)

    def packed(self, gate_up: Tensor, interleaved: bool) -> Tensor:
        gate, up = (gate_up[..., ::2], gate_up[..., 1::2]) if interleaved else gate_up.chunk(2, dim=-1)
        return self.gated(gate, up)

    def _add(self, x: Tensor, factor: Tensor | None = None) -> None:
        assert self.histogram is not None
        self.histogram.add(x, factor)


@dataclass(frozen=True, eq=False)
class Layer:
    """One place: what it was given, and each candidate's error there, in the order of the candidates."""

    place: Place
    function: str
    histogram: Histogram
    predicted: Mapping[str, Predicted]

    def to_dict(self) -> dict[str, Any]:
        bins = self.histogram.bins(self.histogram.edges())
        return {"kind": self.place.kind, "function": self.function, "inputs": self.histogram.summary(self.function), "histogram": bins,
                "predicted": {name: p.to_dict() for name, p in self.predicted.items()}}  # fmt: skip


@dataclass(frozen=True, eq=False)
class Profile:
    """What ``profile`` found. ``choice`` names a program for each layer; ``within`` whether its measured quality keeps the budget;
    ``tried`` the choices that were measured, in order, the last of them the proposed one."""

    layers: Mapping[str, Layer]
    choice: Mapping[str, str]
    within: bool
    tried: tuple[Quality, ...]
    budget: Budget

    def config(self) -> Config:
        """The choice as :func:`polyfma.patch` takes it."""
        return _config(self.choice)

    def faults(self) -> list[str]:
        """Why the proposed choice is over the budget; empty where it is within."""
        return self.budget.faults(self.tried[-1])

    @property
    def undecided(self) -> bool:
        """Whether the text is too short to tell: the proposed choice is over its budget of perplexity, but its interval is not all over."""
        interval = self.tried[-1].perplexity_interval
        return interval is not None and interval[0] <= self.budget.perplexity and interval[1] >= -self.budget.perplexity

    def to_dict(self) -> dict[str, Any]:
        return {"layers": {name: layer.to_dict() for name, layer in self.layers.items()}, "choice": {"layers": dict(self.choice), "within": self.within},
                "tried": [q.to_dict() for q in self.tried], "budget": dict(vars(self.budget))}  # fmt: skip


def check_candidates(candidates: Sequence[str]) -> None:
    """Raises UnknownNameError for a candidate that no operator could take, before anything is loaded or run."""
    known = (*TIERS, EXACT, HARDWARE)
    for name in candidates:
        if name not in known and name not in catalog.programs() and not is_file(name):
            raise UnknownNameError(f"candidate {name!r} is no catalogue program and no file; or one of {', '.join(known)}")


def record(model: nn.Module, chunks: Tensor, progress: Progress | None = None, prepare: Prepare | None = None) -> dict[str, tuple[Place, Histogram]]:
    """The inputs of every activation over one pass of the chunks, (n, length) tokens. The model computes as it does natively."""
    places = [p for p in discover(model)[0] if p.kind != ATTENTION]
    if not places:
        raise PolyfmaError(f"nothing to profile in {type(model).__name__}: it has no activation, gated MLP or experts that is known")
    fmt, _ = format_of(model)
    found = {place.name: (place, Histogram(fmt)) for place in places}
    units = {name: Recorder(place.function, alpha=place.alpha, limit=place.limit, histogram=h) for name, (place, h) in found.items()}
    bindings: list[Binding] = []
    device = next(model.parameters()).device
    try:
        bind(model, places, units, bindings)
        for i, chunk in enumerate(chunks):
            if progress:
                progress(i, len(chunks), "recording")
            with torch.no_grad(), _prepared(model, prepare):
                model(chunk[None].to(device))
    finally:
        restore(bindings)
    return found


def profile(model: nn.Module, chunks: Tensor, candidates: Sequence[str] = CANDIDATES, budget: Budget | None = None, progress: Progress | None = None,
            prepare: Prepare | None = None) -> Profile:  # fmt: skip
    """Record, predict, and propose the first choice within the budget.

    ``candidates`` are programs as :mod:`polyfma.ops` takes them, the preferred first. A first choice has the first candidate
    everywhere; each next one replaces the layers of the largest predicted errors by later candidates, until all have the
    most accurate. Where none is within the budget that of the least divergence is proposed, ``within`` is False, and ``faults()`` says why.
    """
    check_candidates(candidates)
    budget = budget or Budget()
    layers = {name: _layer(place, h, candidates) for name, (place, h) in record(model, chunks, progress, prepare).items()}
    tried: list[Quality] = []
    ladder = _ladder(layers, candidates)
    for number, choice in enumerate(ladder):
        (measured,) = compare(model, {f"choice {number + 1}": _config(choice)}, chunks, progress=progress, prepare=prepare)
        tried.append(measured)
        if not budget.faults(measured):
            return Profile(layers, choice, True, tuple(tried), budget)
    best = min(range(len(tried)), key=lambda i: next(d for d in (tried[i].kl, tried[i].cosine) if d is not None))
    return Profile(layers, ladder[best], False, (*tried[:best], *tried[best + 1 :], tried[best]), budget)


def _layer(place: Place, histogram: Histogram, candidates: Sequence[str]) -> Layer:
    fmt, found = histogram.format.name, {}
    for name in candidates:
        forward = choose(place.called, fmt, name).forward
        found[name] = predict(histogram, place.called, EXACT if forward == EXACT else program_of(forward))
    return Layer(place, place.called, histogram, found)


def _ladder(layers: Mapping[str, Layer], candidates: Sequence[str]) -> list[dict[str, str]]:
    """Choices from the preferred candidate everywhere to the most accurate one: thresholds on the predicted error halve."""
    worst = max(layer.predicted[candidates[0]].relative for layer in layers.values())
    choices: list[dict[str, str]] = []
    for step in range(12):
        threshold = worst * 2.0**-step
        choice = {name: _first(layer, candidates, threshold) for name, layer in layers.items()}
        if choice not in choices:
            choices.append(choice)
    best = {name: min(candidates, key=lambda c, layer=layer: layer.predicted[c].relative) for name, layer in layers.items()}  # type: ignore[misc]
    return choices if best in choices else [*choices, best]


def _first(layer: Layer, candidates: Sequence[str], threshold: float) -> str:
    within = [c for c in candidates if layer.predicted[c].relative <= threshold]
    return within[0] if within else min(candidates, key=lambda c: layer.predicted[c].relative)


def _config(choice: Mapping[str, str]) -> Config:
    return Config(layers=dict(choice), attention=False)


def _prepared(model: nn.Module, prepare: Prepare | None) -> AbstractContextManager[Any]:
    return nullcontext() if prepare is None else prepare(model)
