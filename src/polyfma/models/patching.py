"""``pf.patch(model)``: programs in place of a model's activations, with a report and the way back.

Only instances change, by entries in their ``__dict__``: no parameter, buffer, submodule or class does, so state_dict, optimizers
and wrappers see the model that they saw before.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from torch import nn

from polyfma.errors import PolyfmaError, UnknownNameError
from polyfma.models import attention, bound, experts
from polyfma.models.discover import ACTIVATION, ATTENTION, EXPERTS, Left, Place, discover, whose
from polyfma.models.experts import Gate
from polyfma.models.structure import Gated
from polyfma.models.tails import check_tails
from polyfma.models.units import Unit
from polyfma.ops.choice import EXACT, choose
from polyfma.ops.dtypes import FORMATS
from polyfma.pareto import candidates_for
from polyfma.program import Program

NATIVE = "native"  # of a layer: leave it as it is
DEFAULT = "faithful"  # the tier nearest to correct rounding where a model's inputs lie
FilterFn = Callable[[nn.Module, str], bool]
Given = str | Program | None


@dataclass(frozen=True)
class Config:
    """What :func:`patch` puts where.

    ``program`` and ``backward`` are as in :mod:`polyfma.ops` and hold for every function; ``faithful``, the default, is the tier
    nearest to correct rounding where a model's inputs lie (a function without programs is then computed exactly); ``programs`` names them by function (``silu``, ``gelu``, ``gelu-tanh``, ``silu-1.702``, ``sigmoid``, ``tanh``);
    ``layers`` by a pattern of module names, the first that matches, with ``native`` for a layer to leave. ``attention`` and
    ``experts`` switch those places off. ``include`` names activations
    inside routers to take all the same. A program whose tails are not exact is refused unless ``inexact_tails`` says so.
    """

    program: Given = DEFAULT
    backward: Given = None
    programs: Mapping[str, Given] = field(default_factory=dict)
    layers: Mapping[str, Given] = field(default_factory=dict)
    attention: bool = True
    experts: bool = True
    include: tuple[str, ...] = ()
    inexact_tails: bool = False

    def __post_init__(self) -> None:
        for name in ("programs", "layers"):
            value = getattr(self, name)
            if not isinstance(value, Mapping) or not all(isinstance(k, str) for k in value):
                raise PolyfmaError(f"Config {name} = {str(value)[:40]!r} must map names to programs, {{'...': 'faithful'}} say")
        if not isinstance(self.include, tuple) or not all(isinstance(p, str) for p in self.include):
            raise PolyfmaError(f"Config include = {str(self.include)[:40]!r} must be a tuple of patterns, ('*.router.act',) say")
        for name in ("attention", "experts", "inexact_tails"):
            if not isinstance(getattr(self, name), bool):
                raise PolyfmaError(f"Config {name} = {getattr(self, name)!r} must be True or False")

    @classmethod
    def read(cls, path: str | Path, *, over_budget: bool = False) -> Config:
        """A choice that ``polyfma profile`` wrote. Raises PolyfmaError for another file, and for a choice over its budget unless that is wanted."""
        try:
            found = json.loads(Path(path).read_text(encoding="utf-8"))
            layers, within = dict(found["choice"]["layers"]), found["choice"]["within"]
        except (json.JSONDecodeError, UnicodeDecodeError, KeyError, TypeError, ValueError):
            raise PolyfmaError(f"{str(path)!r} is no profile: polyfma profile --out writes one") from None
        if not within and not over_budget:
            raise PolyfmaError(f"the choice of {str(path)!r} is over its budget; profile on a longer text or with a wider budget, or pass over_budget=True")
        return cls(layers=layers)

    def program_of(self, place: Place) -> Given:
        """The program of a place: of its layer, else of its function, else of all."""
        for pattern, given in self.layers.items():
            if fnmatchcase(place.name, pattern):
                return given
        return self.programs.get(place.function, self.program)


@dataclass(frozen=True)
class Replaced:
    """One place as it is in the patched model."""

    name: str
    kind: str
    module: str
    function: str
    program: str

    def to_dict(self) -> dict[str, str]:
        return dict(vars(self))


@dataclass(frozen=True)
class Report:
    """What was replaced by what, and what was left alone with the reason. ``note`` says what a caller should know of the dtype."""

    replaced: tuple[Replaced, ...]
    left: tuple[Left, ...]
    note: str = ""

    def to_dict(self) -> dict[str, Any]:
        return {"replaced": [r.to_dict() for r in self.replaced], "left": [dict(vars(entry)) for entry in self.left], "note": self.note}

    def __str__(self) -> str:
        lines = [f"{len(self.replaced)} places replaced"]
        lines += [f"  {names}: {kind} ({module}), {function} by {program}" for (kind, module, function, program), names in _grouped(self.replaced).items()]
        if self.left:
            lines.append(f"{len(self.left)} left alone")
            lines += [f"  {names}: {reason[0]}" for reason, names in _grouped(self.left).items()]
        return "\n".join([*lines, self.note] if self.note else lines)


def _grouped(entries: tuple[Any, ...]) -> dict[tuple[str, ...], str]:
    """Names by what else is said of them, with a layer's number left open where only it differs: ``model.layers.*.mlp (32)``."""
    groups: dict[tuple[str, ...], dict[str, int]] = {}
    for entry in entries:
        rest = tuple(v for k, v in vars(entry).items() if k != "name")
        parts = ["*" if part.isdigit() else part for part in entry.name.split(".")]
        pattern = (entry.name if set(parts) == {"*"} else ".".join(parts)) or "the model"
        counts = groups.setdefault(rest, {})
        counts[pattern] = counts.get(pattern, 0) + 1
    return {rest: ", ".join(p if n == 1 and "*" not in p else f"{p} ({n})" for p, n in counts.items()) for rest, counts in groups.items()}


class Handle:
    """A patched model: :meth:`report`, :meth:`unpatch`, :meth:`repatch`, or a context manager that unpatches at its end."""

    def __init__(self, model: nn.Module, report: Report) -> None:
        self.model, self._report = model, report
        self._bound: list[Binding] = []
        self._configs: list[tuple[Any, Any, dict[str, Any]]] = []
        self._active = False

    def report(self) -> Report:
        """What was replaced and what was not."""
        return self._report

    def unpatch(self) -> None:
        """Put back exactly what was there; a second call does nothing.

        Raises PolyfmaError, and changes nothing, where something else was put over a program since: remove that first.
        """
        if not self._active:
            return
        for b in self._bound:
            if b.attributes.get(b.name, _ABSENT) is not b.value:
                raise PolyfmaError(f"{b.name} of a patched {b.owner} was replaced since, by {whose(b.attributes.get(b.name))}: remove that first, then unpatch")
        restore(self._bound)
        self._active = False
        for shared, own, before in self._configs:
            _keep_edits(shared, own, before)

    def repatch(self) -> None:
        """Put the programs back after :meth:`unpatch`, without looking for places again; nothing where they are there.

        Raises PolyfmaError where another handle's are.
        """
        if self._active:
            return
        if any(bound.is_ours(b.attributes.get(b.name)) for b in self._bound):
            raise PolyfmaError("the model is patched by another handle: call its unpatch() first")
        for b in self._bound:
            b.before = b.attributes.get(b.name, _ABSENT)
            b.attributes[b.name] = b.value
        self._active = bool(self._bound)

    def __enter__(self) -> Handle:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.unpatch()

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise PolyfmaError("a handle belongs to one model and is not copied: copy the model, and take the copy back with polyfma.models.unpatch(copy)")


_ABSENT = object()
_BEFORE = "_polyfma_before"  # of a module whose config was copied: the implementations that it named


@dataclass(eq=False)
class Binding:
    """One entry of an instance's ``__dict__``: what was put, and what was there."""

    attributes: dict[str, Any]
    name: str
    value: Any
    owner: str
    before: Any = _ABSENT


def restore(bindings: list[Binding]) -> None:
    """Put back what was there, the last first."""
    for b in reversed(bindings):
        if b.before is _ABSENT:
            b.attributes.pop(b.name, None)
        else:
            b.attributes[b.name] = b.before


def unpatch(model: nn.Module) -> None:
    """Take the programs out of a patched model that has no handle: a deep copy, or one from a pickle."""
    for module in model.modules():
        for name in [n for n, v in module.__dict__.items() if bound.is_ours(v)]:
            del module.__dict__[name]
        if (before := module.__dict__.pop(_BEFORE, None)) is not None:
            for name, value in before.items():
                setattr(module.config, name, value)


def _keep_edits(shared: Any, own: Any, before: dict[str, Any]) -> None:
    """What was changed in the model's own config while it was patched is changed in the one it has again; our implementations are not."""
    for name, value in vars(own).items():
        if before.get(name, _ABSENT) is not value and value not in (attention.NAME, experts.NAME):
            shared.__dict__[name] = value


def patch(model: nn.Module, config: Config | None = None, filter_fn: FilterFn | None = None, dry_run: bool = False) -> Handle:
    """Replace a model's gated MLPs, activations, softcapped attention and routed experts by operators on programs.

    ``filter_fn(module, name)`` returns whether to take a place. With ``dry_run`` nothing changes and the report says what would.
    Tensors that are neither BF16 or FP16 nor made so by autocast go through torch's own functions as before.

    Raises PolyfmaError where there is nothing to replace, the model is patched already, or a program's tails are not exact;
    UnknownNameError and ProgramError for a program that does not exist or is of another function or dtype. Nothing is changed then.
    """
    config = _checked(model, config, filter_fn)
    if any(bound.is_ours(v) for m in model.modules() for v in m.__dict__.values()):
        raise PolyfmaError("the model is patched already: call unpatch() of its handle first, or polyfma.models.unpatch(model) of a copy")
    places, left = discover(model, config.include)
    taken, passed = _chosen(places, config, filter_fn)
    _check_patterns(config, places)
    if not taken:
        reasons = "; ".join(f"{entry.name or 'the model'}: {entry.reason}" for entry in (left + passed)[:3])
        raise PolyfmaError(f"nothing to patch in {type(model).__name__}: {reasons or 'it has no activation, gated MLP, experts or softcapped attention that is known'}")
    formats, note = {place.name: format_of(place.module, model)[0] for place in taken}, format_of(model)[1]
    note = " ".join(n for n in (note, _dropped_caps(taken)) if n)
    units = _units(taken, config, formats)
    replaced = tuple(Replaced(p.name, p.kind, type(p.module).__name__, p.function, _program_text(p, units, formats[p.name])) for p in taken)
    handle = Handle(model, Report(replaced, (*left, *passed), note))
    if not dry_run:
        try:
            handle._configs = bind(model, taken, units, handle._bound)
        except BaseException:
            restore(handle._bound)
            raise
        handle._active = True
    return handle


def bind(model: nn.Module, places: list[Place], units: Mapping[str, Unit], done: list[Binding]) -> list[tuple[Any, Any, dict[str, Any]]]:
    """Put the units in place, noting in ``done`` what was there. Gives the configs that were copied, with their copies as they were made."""
    for place in places:
        module, name = place.module, place.name
        if isinstance(place.detail, Gated):
            _set(module, "forward", partial(bound.gated_forward, module, place.detail, units[name]), done)
        elif isinstance(place.detail, Gate):
            _set(module, "_apply_gate", partial(bound.packed_gate, module, units[name], place.detail.interleaved), done)
            if place.alpha is None:  # for an implementation that calls the activation itself, should one be chosen later
                act = module.get_submodule("act_fn")
                _set(act, "forward", partial(bound.activation_forward, act, units[name]), done)
        elif place.kind == ACTIVATION:
            _set(module, "forward", partial(bound.activation_forward, module, units[name]), done)
    return _switch(model, places, done)


def _switch(model: nn.Module, places: list[Place], done: list[Binding]) -> list[tuple[Any, Any, dict[str, Any]]]:
    """Implementations that a config names. Configs may be shared with other models, so this model gets copies."""
    changes: dict[int, tuple[Any, dict[str, str]]] = {}
    for place in places:
        if place.kind == ATTENTION:
            attention.register()
            changes.setdefault(id(place.module.config), (place.module.config, {}))[1]["_attn_implementation_internal"] = attention.NAME
        elif isinstance(place.detail, Gate) and place.detail.looped:
            experts.register()
            changes.setdefault(id(place.module.config), (place.module.config, {}))[1]["_experts_implementation_internal"] = experts.NAME
    copies: dict[int, Any] = {}
    for key, (config, change) in changes.items():
        copies[key] = copy.copy(config)
        copies[key].__dict__.update(change)
    for module in model.modules():
        config = module.__dict__.get("config")
        if id(config) in copies:
            _set(module, "config", copies[id(config)], done)
            _set(module, _BEFORE, {name: getattr(config, name, None) for name in changes[id(config)][1]}, done)
    return [(config, copies[key], dict(vars(copies[key]))) for key, (config, _) in changes.items()]


def _set(module: nn.Module, name: str, value: Any, done: list[Binding]) -> None:
    done.append(Binding(module.__dict__, name, value, type(module).__name__, module.__dict__.get(name, _ABSENT)))
    module.__dict__[name] = value


# -- from the arguments to units ----------------------------------------------------------------------------


def _checked(model: nn.Module, config: Config | None, filter_fn: FilterFn | None) -> Config:
    if not isinstance(model, nn.Module):
        raise PolyfmaError(f"patch takes a torch.nn.Module, not {type(model).__name__}")
    if config is not None and not isinstance(config, Config):
        raise PolyfmaError(f"config must be a polyfma.models.Config, not {type(config).__name__}: Config(program={str(config)[:40]!r}), say")
    if filter_fn is not None and not callable(filter_fn):
        raise PolyfmaError(f"filter_fn must be a function of (module, name), not {type(filter_fn).__name__}")
    return config or Config()


def _chosen(places: list[Place], config: Config, filter_fn: FilterFn | None) -> tuple[list[Place], list[Left]]:
    taken, passed = [], []
    for place in places:
        if (place.kind == ATTENTION and not config.attention) or (place.kind == EXPERTS and not config.experts):
            passed.append(Left(place.name, f"config leaves {place.kind}"))
        elif place.kind != ATTENTION and config.program_of(place) == NATIVE:
            passed.append(Left(place.name, "config leaves it native"))
        elif filter_fn is not None and not filter_fn(place.module, place.name):
            passed.append(Left(place.name, "filter_fn leaves it"))
        else:
            taken.append(place)
    return taken, passed


def _check_patterns(config: Config, places: list[Place]) -> None:
    """A pattern or function that matches nothing is a mistake: the caller believes that it does something."""
    names, functions = [p.name for p in places], {p.function for p in places if p.kind != ATTENTION}
    for what, patterns in (("layers", config.layers), ("include", config.include)):
        for pattern in patterns:
            if not any(fnmatchcase(name, pattern) for name in names):
                known = ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
                raise UnknownNameError(f"{what} pattern {pattern!r} matches no place of this model; there are: {known or 'none'}")
    for pattern, given in config.layers.items():
        for place in (p for p in places if fnmatchcase(p.name, pattern) and p.kind != ATTENTION and given != NATIVE):
            choose(place.called, format_of(place.module)[0], given)  # a program that a pattern before it hides is checked too
            break
    for function in config.programs:
        if function not in functions:
            raise UnknownNameError(f"programs names {function!r}, which this model does not compute; it has: {', '.join(sorted(functions)) or 'none'}")


def format_of(*modules: nn.Module) -> tuple[str, str]:
    """The 16-bit format that activations will have, by the first module with such parameters, and what to say where parameters do not say it."""
    dtypes = [p.dtype for module in modules for p in module.parameters() if p.is_floating_point()]
    for dtype in dtypes:
        if dtype in FORMATS:
            return FORMATS[dtype], ""
    kinds = ", ".join(sorted({str(d).removeprefix("torch.") for d in dtypes}))
    note = f"parameters are {kinds}: programs run where autocast makes BF16 or FP16 of them; the rest stays torch's" if kinds else ""
    return FORMATS[torch.bfloat16], note


def _dropped_caps(places: list[Place]) -> str:
    """What a caller must know of transformers that compute softcapped layers by SDPA, which has no softcap (5.17 does)."""
    dropped = [p for p in places if p.kind == ATTENTION and getattr(p.module.config, "_attn_implementation", "") == "sdpa"]
    return "unpatched, this model's attention is SDPA, which leaves the softcap out; patched, it is capped" if dropped else ""


def _units(places: list[Place], config: Config, formats: Mapping[str, str]) -> dict[str, Unit]:
    """The unit of each place; places of one kind share theirs, so that programs are looked up once."""
    shared: dict[tuple[Any, ...], Unit] = {}
    units = {}
    for place in places:
        if place.kind != ATTENTION:
            given = config.program_of(place)
            key = (formats[place.name], place.function, place.alpha, place.limit, given.digest if isinstance(given, Program) else given)
            if key not in shared:
                shared[key] = _unit(place, config, formats[place.name])
            units[place.name] = shared[key]
    return units


def _unit(place: Place, config: Config, fmt: str) -> Unit:
    """The unit of a place, its programs resolved so that a wrong one is refused before anything changes."""
    given, slope = config.program_of(place), config.backward
    if given == DEFAULT and not candidates_for(place.called, "forward", fmt, True):
        given = EXACT
    found = choose(place.called, fmt, given, slope, place.limit)
    if not config.inexact_tails and found.forward != EXACT:
        check_tails(found.forward, place.name)
    return Unit.of(place.function, given, slope, place.alpha, place.limit)


def _program_text(place: Place, units: Mapping[str, Unit], fmt: str) -> str:
    if place.kind == ATTENTION:
        return f"cap {place.detail:g}, softcap_attention"
    unit = units[place.name]
    return choose(place.called, fmt, unit.program, unit.backward, unit.limit).forward


