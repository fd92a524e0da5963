"""Times arms against each other: in CUDA graphs for device time, in event-timed eager calls for what a user waits."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch._inductor import config

from polyfma.errors import PolyfmaError

Call = Callable[[], object]
ROUNDS = 9
_GRAPH_US = 2000.0  # a replay lasts about this long, so that the events' own resolution does not count
_MOST_CALLS = 500
GRAPH_PROTOCOL = (f"CUDA graph of about {_GRAPH_US / 1000:g} ms of calls, {ROUNDS} rounds of all arms after one that warms up, every other round in"
                  " reverse order; us a call")  # fmt: skip


@dataclass(frozen=True)
class EagerProtocol:
    """Warm-up calls of each path, rounds of all arms, event-timed calls of a round."""

    warmups: int
    rounds: int
    calls: int

    def __str__(self) -> str:
        return f"{self.warmups:,} warm-up calls of each path, {self.rounds} rounds of {self.calls:,} event-timed calls, order alternating; us a call"


def need_gpu() -> None:
    """Raises PolyfmaError where there is no CUDA GPU."""
    if not torch.cuda.is_available():
        raise PolyfmaError("polyfma bench needs a CUDA GPU; none is here")


def graph_rounds(arms: Mapping[str, Call], rounds: int = ROUNDS) -> dict[str, tuple[float, ...]]:
    """Microseconds a call of each arm, by round; every round runs all arms, every other one in reverse order.

    An arm's calls are captured in one CUDA graph, so neither the host nor gaps between launches count.
    """
    with config.patch(force_disable_caches=True):  # a compiled arm tunes itself now, not from an earlier run
        graphs = {name: _captured(call) for name, call in arms.items()}
    found: dict[str, list[float]] = {name: [] for name in arms}
    for number in range(rounds + 1):  # the first round warms up
        for name in list(graphs)[:: -1 if number % 2 else 1]:
            graph, calls = graphs[name]
            elapsed = _events(graph.replay)
            if number:
                found[name].append(elapsed / calls)
    return {name: tuple(values) for name, values in found.items()}


def _captured(call: Call) -> tuple[torch.cuda.CUDAGraph, int]:
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):  # warm-up off the main stream, as capture asks for
        for _ in range(3):
            call()
        calls = max(1, min(_MOST_CALLS, round(_GRAPH_US / _events(lambda: [call() for _ in range(5)]) * 5)))
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(calls):
            call()
    return graph, calls


def eager_rounds(arms: Mapping[str, Call], protocol: EagerProtocol) -> dict[str, tuple[float, ...]]:
    """Microseconds an eager call of each arm, with the launch in it."""
    for call in arms.values():
        for _ in range(protocol.warmups):
            call()
    found: dict[str, list[float]] = {name: [] for name in arms}
    for number in range(protocol.rounds):
        for name in list(arms)[:: -1 if number % 2 else 1]:
            call = arms[name]

            def run(call: Call = call) -> None:
                for _ in range(protocol.calls):
                    call()

            found[name].append(_events(run) / protocol.calls)
    return {name: tuple(values) for name, values in found.items()}


def _events(work: Callable[[], object]) -> float:
    """Microseconds between two events around the work."""
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda.synchronize()
    start.record()
    work()
    end.record()
    torch.cuda.synchronize()
    return float(start.elapsed_time(end)) * 1e3
