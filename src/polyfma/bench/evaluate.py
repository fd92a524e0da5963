"""``polyfma evaluate``: a model's quality under every arm, its tails, its throughput, as one record."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from polyfma.bench.result import machine
from polyfma.errors import PolyfmaError, UnknownNameError
from polyfma.models.arms import PUBLISHED_LS, PUBLISHED_SOLLYA, PUBLISHED_SPLIT, arms_of
from polyfma.models.discover import discover
from polyfma.models.evaluation import EVERY, tails, throughput
from polyfma.models.loading import Loaded, check_sizes, chunks, load_model, read_text, words
from polyfma.models.patching import Config
from polyfma.models.products import fp32_products
from polyfma.models.quality import Budget, Prepare, compare

PRODUCTS = ("fp32", "native")
PROTOCOL = {
    "quality": "every arm on the same chunks in one process, against the native model of the same dtype; KL(native, arm) of next-token"
               " distributions, their logits computed in fp32 from the last hidden state; intervals are 95 percent, Student's t over chunks",
    "tails": f"every gate times the factor before its activation, or every {EVERY}th gate at a large negative number; the native model so changed too",
    "throughput": "median of the rounds after one to warm, arms in alternating order, random prompt, greedy tokens with the model's own cache",
}  # fmt: skip
THROUGHPUT_ARMS = ("native", "exact", "ours (faithful)", "ours (fast)")
TAIL_ARMS = ("exact", "ours (faithful)", "endpoint-ls D4, exact tails", PUBLISHED_LS, PUBLISHED_SPLIT, PUBLISHED_SOLLYA)


@dataclass(frozen=True)
class Wanted:
    """What to evaluate. ``products``: fp32 computes matrix products in fp32 and rounds them, for CPUs; native leaves them to torch."""

    model: str
    text: Path | None = None
    tokens: int = 4096
    length: int = 1024
    device: str = "cpu"
    dtype: str = "bf16"
    products: str = "fp32"
    arms: Sequence[str] = ()
    tails: bool = True
    throughput: bool = False
    tasks: str | None = None

    def __post_init__(self) -> None:
        if self.products not in PRODUCTS:
            raise UnknownNameError(f"products {self.products!r} must be one of {', '.join(PRODUCTS)}")
        check_sizes(self.tokens, self.length)


def evaluate(wanted: Wanted, progress: Callable[..., None] = lambda *_: None) -> dict[str, Any]:
    """The record: machine, model, text, protocol, and ``quality``, ``tails`` and ``throughput`` of the arms."""
    loaded = load_model(wanted.model, wanted.device, wanted.dtype)
    name, text = read_text(wanted.text)
    if wanted.throughput and not loaded.causal:
        raise PolyfmaError(f"model {wanted.model!r} generates no tokens, so it has no throughput of them; leave --throughput away")
    tokens = chunks(loaded.tokenizer, text, wanted.tokens, wanted.length)
    arms = _arms(loaded, wanted)
    prepare = prepare_of(wanted)
    record: dict[str, Any] = {"schema": 1, "bench": "evaluate", **machine(), "protocol": PROTOCOL, "model": {"name": wanted.model, "source": loaded.source},
                              "dtype": wanted.dtype, "products": wanted.products,
                              "text": {"name": name, "sha256": hashlib.sha256(text.encode()).hexdigest(), "chunks": list(tokens.shape)}}  # fmt: skip
    count = words(loaded.tokenizer, tokens) if loaded.causal else None
    record["quality"] = _dicts(compare(loaded.model, arms, tokens, count, progress, prepare))
    budget = Budget()
    record["budget"] = dict(vars(budget))
    chosen = {n: c for n, c in arms.items() if n in TAIL_ARMS}
    if wanted.tails and chosen and "silu" in _functions(loaded):
        measured = tails(loaded.model, chosen, tokens[:2], progress=progress, prepare=prepare)
        record["tails"] = {scale: [q.to_dict() | {"refused": budget.faults(q)} for q in qualities] for scale, qualities in measured.items()}
    if wanted.tasks is not None:
        from polyfma.models.harness import evaluate_tasks

        names = [t.strip() for t in wanted.tasks.split(",") if t.strip()]
        record["tasks"] = evaluate_tasks(loaded.model, loaded.tokenizer, {n: c for n, c in arms.items() if n != "native"}, names, progress=progress)
    if wanted.throughput:
        timed = {n: c for n, c in arms.items() if n in THROUGHPUT_ARMS}
        record["throughput"] = _dicts(throughput(loaded.model, timed, progress=progress))
    return record


def _dicts(entries: Sequence[Any]) -> list[dict[str, Any]]:
    return [e.to_dict() for e in entries]


def _functions(loaded: Loaded) -> set[str]:
    return {p.function for p in discover(loaded.model)[0]}


def _arms(loaded: Loaded, wanted: Wanted) -> dict[str, Config | None]:
    known = arms_of(_functions(loaded), wanted.dtype)
    unknown = [a for a in wanted.arms if a not in known]
    if unknown:
        raise UnknownNameError(f"unknown arm {unknown[0]!r} for this model; known: {', '.join(known)}")
    return {name: known[name] for name in wanted.arms or known}


def prepare_of(wanted: Wanted) -> Prepare | None:
    """What goes around each forward pass for the products that were asked for."""
    return fp32_products if wanted.products == "fp32" and wanted.dtype != "fp32" else None


