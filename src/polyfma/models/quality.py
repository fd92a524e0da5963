"""What a patched model costs in quality, measured beside the native one on the same tokens, and a budget that it is held to.

Every arm sees the same chunks in one process; statistics are paired, by token for means and by chunk for confidence intervals,
since tokens of one chunk are not independent.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from scipy import stats
from torch import Tensor, nn

from polyfma.errors import PolyfmaError
from polyfma.models.patching import Config, Handle, patch
from polyfma.models.products import fp32_logits

CONFIDENCE = 0.95
DEPARTURE = 0.05  # relative L2 distance of a hidden state from which a layer is said to have departed
Progress = Callable[..., None]
Prepare = Callable[[nn.Module], AbstractContextManager[Any]]


@dataclass(frozen=True)
class Budget:
    """Largest mean KL divergence of next-token distributions (nats) and relative change of perplexity; of an encoder, the largest
    mean cosine distance of its mean hidden state."""

    kl: float = 1e-3
    perplexity: float = 1e-3
    cosine: float = 1e-3

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
                raise PolyfmaError(f"budget {name} = {value!r} must be a positive number, or infinity for no bound")

    def faults(self, arm: Quality) -> list[str]:
        """Why an arm is over the budget; empty where it is within."""
        checks = (("mean KL", arm.kl, self.kl), ("perplexity change", arm.perplexity_change, self.perplexity), ("cosine distance", arm.cosine, self.cosine))
        return [f"{what} {value:.3g} is over {bound:g}" for what, value, bound in checks if value is not None and not abs(value) <= bound]


@dataclass(frozen=True)
class Quality:
    """One arm against native. ``kl`` in nats with its confidence interval over chunks; ``top1`` the share of tokens whose most likely next token is the same;
    ``perplexity_change`` relative, with its confidence interval; ``drift`` the relative L2 distance of each layer's hidden state, the
    embedding first; ``departs`` the first layer beyond DEPARTURE. Figures of tokens are None for an encoder."""

    arm: str
    tokens: int
    drift: tuple[float, ...]
    departs: int | None
    kl: float | None = None
    kl_interval: tuple[float, float] | None = None
    kl_largest: float | None = None
    top1: float | None = None
    perplexity: float | None = None
    perplexity_change: float | None = None
    perplexity_interval: tuple[float, float] | None = None
    word_perplexity: float | None = None
    cosine: float | None = None

    def to_dict(self) -> dict[str, Any]:
        return dict(vars(self))


@dataclass
class _Sums:
    """What is kept of one arm: lists have a mean for each chunk."""

    tokens: int = 0
    kl: list[float] = field(default_factory=list)
    nll: list[float] = field(default_factory=list)
    native_nll: list[float] = field(default_factory=list)
    cosine: list[float] = field(default_factory=list)
    largest: float = 0.0
    same: int = 0
    distance: Tensor | None = None
    norm: Tensor | None = None


def compare(model: nn.Module, arms: Mapping[str, Config | None], chunks: Tensor, words: int | None = None, progress: Progress | None = None,
            prepare: Prepare | None = None) -> list[Quality]:  # fmt: skip
    """Every arm (a Config, or None for the native model again) against native on chunks of tokens, (n, length).

    ``words`` is the number of words of the text that the predicted tokens spell, for the perplexity of a word. ``prepare(model)`` gives a
    context manager around every forward pass.
    """
    causal = getattr(model, "lm_head", None) is not None or _has_logits(model, chunks[:1, :2])
    sums, patched = {name: _Sums() for name in arms}, handles(model, arms)
    device = next(model.parameters()).device
    with fp32_logits(model) if causal else nullcontext():
        for i, chunk in enumerate(chunks):
            ids = chunk[None].to(device)
            native = _run(model, None, ids, causal, prepare)
            for done, (name, handle) in enumerate(patched.items()):
                if progress:
                    progress(i * len(arms) + done, len(chunks) * len(arms), name)
                _add(sums[name], native, _run(model, handle, ids, causal, prepare), ids)
    return [_quality(name, s, words) for name, s in sums.items()]


@contextmanager
def switched(handle: Handle | None) -> Iterator[None]:
    """The model patched while inside, by a handle that is unpatched now; None leaves it native."""
    if handle is None:
        yield
        return
    handle.repatch()
    try:
        yield
    finally:
        handle.unpatch()


def handles(model: nn.Module, arms: Mapping[str, Config | None]) -> dict[str, Handle | None]:
    """Handles of every arm, unpatched: places are looked for once an arm, not once a chunk."""
    found: dict[str, Handle | None] = {}
    for name, config in arms.items():
        found[name] = None if config is None else patch(model, config)
        if (handle := found[name]) is not None:
            handle.unpatch()
    return found


def _has_logits(model: nn.Module, ids: Tensor) -> bool:
    with torch.no_grad():
        return hasattr(model(ids.to(next(model.parameters()).device)), "logits")


def _run(model: nn.Module, handle: Handle | None, ids: Tensor, causal: bool, prepare: Prepare | None) -> tuple[Tensor | None, list[Tensor]]:
    """(log probabilities of the next tokens, hidden states), in fp32."""
    with torch.no_grad(), switched(handle):
        if prepare is None:
            out = model(ids, output_hidden_states=True)
        else:
            with prepare(model):
                out = model(ids, output_hidden_states=True)
    logits = torch.log_softmax(out.logits[0, :-1].float(), -1) if causal else None
    return logits, [h[0].float() for h in out.hidden_states]


def _add(s: _Sums, native: tuple[Tensor | None, list[Tensor]], arm: tuple[Tensor | None, list[Tensor]], ids: Tensor) -> None:
    distance = torch.stack([(a - b).square().sum().double() for a, b in zip(arm[1], native[1], strict=True)]).cpu()
    norm = torch.stack([b.square().sum().double() for b in native[1]]).cpu()
    s.distance, s.norm = (x if y is None else x + y for x, y in ((distance, s.distance), (norm, s.norm)))
    if native[0] is None or arm[0] is None:
        s.tokens += ids.shape[1]
        one, two = (states[1][-1].double().mean(0) for states in (arm, native))
        s.cosine.append(max(0.0, 1 - float(torch.cosine_similarity(one, two, 0))))
        return
    # exp of the native log probabilities weighs; where it is 0 the term is 0, whatever the other's logarithm
    kl = torch.where(native[0].isneginf(), 0.0, native[0].exp() * (native[0] - arm[0])).sum(-1).double()
    wanted = ids[0, 1:, None]
    s.tokens += kl.numel()
    s.kl.append(float(kl.mean()))
    s.largest = max(s.largest, float(kl.max())) if bool(kl.isfinite().all()) else math.inf
    s.same += int((native[0].argmax(-1) == arm[0].argmax(-1)).sum())
    s.nll.append(float(-arm[0].gather(1, wanted).double().mean()))
    s.native_nll.append(float(-native[0].gather(1, wanted).double().mean()))


def _quality(name: str, s: _Sums, words: int | None) -> Quality:
    assert s.distance is not None and s.norm is not None
    drift = tuple(math.sqrt(float(d) / float(n)) if n > 0 else 0.0 for d, n in zip(s.distance, s.norm, strict=True))
    departs = next((i for i, d in enumerate(drift) if not d <= DEPARTURE), None)
    if not s.kl:
        return Quality(name, s.tokens, drift, departs, cosine=_finite(s.cosine))
    difference = np.array(s.nll) - np.array(s.native_nll)
    nll = float(np.mean(s.nll))
    low, high = interval(difference)
    kl = _finite(s.kl)
    per_word = None if not words else math.exp(min(nll * s.tokens / words, 700.0))
    return Quality(name, s.tokens, drift, departs, kl, interval(np.array(s.kl)), s.largest, s.same / s.tokens, _exp(nll), _exp(float(np.mean(difference))) - 1,
                   (_exp(low) - 1, _exp(high) - 1), per_word)  # fmt: skip


def _exp(x: float) -> float:
    return math.inf if not x < 700 else math.exp(x)


def _finite(values: Sequence[float]) -> float:
    """The mean; infinity where anything is not finite, which is a broken model."""
    mean = float(np.mean(values))
    return mean if math.isfinite(mean) else math.inf


def interval(values: np.ndarray) -> tuple[float, float]:
    """Of the mean, by Student's t over chunks; unbounded for fewer than two, or where a value is not finite."""
    if len(values) < 2 or not np.all(np.isfinite(values)):
        return -math.inf, math.inf
    spread = float(np.std(values, ddof=1)) / math.sqrt(len(values)) * float(stats.t.ppf(0.5 + CONFIDENCE / 2, len(values) - 1))
    mean = float(np.mean(values))
    return mean - spread, mean + spread
