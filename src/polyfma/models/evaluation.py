"""A model under every arm: quality on a text, outliers that tails must survive, prefill and decode throughput."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from polyfma.errors import PolyfmaError
from polyfma.models.discover import GATED, discover
from polyfma.models.patching import Config, Handle
from polyfma.models.quality import Prepare, Progress, Quality, compare, handles, switched
from polyfma.models.structure import Gated

SCALES = (1.0, 4.0, 16.0)
SILENT = (50.0, 200.0, 800.0)
EVERY = 64  # one neuron in so many is made silent


@contextmanager
def scaled_gates(model: nn.Module, scale: float) -> Iterator[None]:
    """Every gate of a gated MLP times a number, before its activation."""
    with _gates(model, lambda out: out * scale):
        yield


@contextmanager
def silent_neurons(model: nn.Module, gate: float) -> Iterator[None]:
    """Every 64th gate set to a large negative number, where SiLU and GELU are 0: neurons that are off.

    Natively they add nothing, so the model hardly changes; a program without exact tails gives them a voice.
    """

    def silenced(out: Tensor) -> Tensor:
        out = out.clone()
        out[..., ::EVERY] = -abs(gate)
        return out

    with _gates(model, silenced):
        yield


@contextmanager
def _gates(model: nn.Module, change: Callable[[Tensor], Tensor]) -> Iterator[None]:
    places = [p for p in discover(model)[0] if p.kind == GATED and isinstance(p.detail, Gated) and p.detail.up is not None]
    if not places:
        raise PolyfmaError(f"{type(model).__name__} has no gated MLP with a gate projection of its own, whose gates could be changed")
    hooks = [getattr(p.module, p.detail.gate).register_forward_hook(lambda module, given, out: change(out)) for p in places if isinstance(p.detail, Gated)]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def tails(model: nn.Module, arms: Mapping[str, Config | None], chunks: Tensor, scales: Sequence[float] = SCALES, silent: Sequence[float] = SILENT,
          progress: Progress | None = None, prepare: Prepare | None = None) -> dict[str, list[Quality]]:  # fmt: skip
    """Quality with every gate scaled and with silent neurons, each arm against the native model so changed. {"gates x4": qualities of the arms}."""
    changes = {f"gates x{s:g}": partial(scaled_gates, model, s) for s in scales} | {f"silent neurons at -{g:g}": partial(silent_neurons, model, g) for g in silent}
    found = {}
    for name, changed in changes.items():
        with changed():
            found[name] = compare(model, arms, chunks, progress=progress, prepare=prepare)
    return found


@dataclass(frozen=True)
class Throughput:
    """Tokens a second, the median of the rounds, with the slowest and fastest: prefill of a whole prompt, decode of one token at a time."""

    arm: str
    prefill: float
    prefill_range: tuple[float, float]
    decode: float
    decode_range: tuple[float, float]

    def to_dict(self) -> dict[str, Any]:
        return dict(vars(self))


def throughput(model: nn.Module, arms: Mapping[str, Config | None], *, batch: int = 1, prompt: int = 2048, new_tokens: int = 64, rounds: int = 5,
               progress: Progress | None = None) -> list[Throughput]:  # fmt: skip
    """Every arm in each round, in alternating order, on the same random prompt; the model's own cache, greedy tokens."""
    device = next(model.parameters()).device
    config: Any = model.config
    ids = torch.randint(0, config.get_text_config().vocab_size, (batch, prompt), device=device)
    seconds: dict[str, list[tuple[float, float]]] = {name: [] for name in arms}
    patched = handles(model, arms)
    for i in range(rounds + 1):  # the first compiles and warms
        for done, name in enumerate(reversed(list(arms)) if i % 2 else arms):
            if progress:
                progress(i * len(arms) + done, (rounds + 1) * len(arms), f"throughput: {name}")
            timed = _timed(model, patched[name], ids, new_tokens)
            if i:
                seconds[name].append(timed)
    return [_throughput(name, times, batch * prompt, batch * new_tokens) for name, times in seconds.items()]


def _timed(model: nn.Module, handle: Handle | None, ids: Tensor, new_tokens: int) -> tuple[float, float]:
    with torch.no_grad(), switched(handle):
        out, prefill = _clocked(ids.device, partial(model, ids, use_cache=True, logits_to_keep=1))
        return prefill, _clocked(ids.device, partial(_decode, model, out, new_tokens))[1]


def _decode(model: nn.Module, out: Any, new_tokens: int) -> None:
    for _ in range(new_tokens):
        out = model(out.logits[:, -1:].argmax(-1), past_key_values=out.past_key_values, use_cache=True)


def _clocked(device: torch.device, run: Callable[[], Any]) -> tuple[Any, float]:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    start = time.perf_counter()
    result = run()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return result, time.perf_counter() - start


def _throughput(name: str, times: list[tuple[float, float]], prompt: int, new: int) -> Throughput:
    prefill, decode = ([tokens / t[place] for t in times] for place, tokens in ((0, prompt), (1, new)))
    return Throughput(name, statistics.median(prefill), (min(prefill), max(prefill)), statistics.median(decode), (min(decode), max(decode)))
