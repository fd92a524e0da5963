"""``polyfma bench isolated``: one operator against a copy, torch, torch.compile, exact arithmetic and the hardware's tanh.

Published protocol (table 3): 1,000 warm-up calls of each path, then nine rounds of 1,000 event-timed calls, native first and
polynomial first in turn; native sigmoid and tanh backward take the saved output, ours takes x. That times the launch at
small sizes, so the same arms are also timed in CUDA graphs, which is device time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from polyfma.bench.arms import FUNCTIONS, unary_arms
from polyfma.bench.result import Measurement, Timing
from polyfma.bench.timing import GRAPH_PROTOCOL, Call, EagerProtocol, eager_rounds, graph_rounds, need_gpu
from polyfma.errors import PolyfmaError, UnknownNameError
from polyfma.ops.dtypes import DTYPES

L2, HBM = 4_194_304, 268_435_456
PROGRAMS: dict[str, str | None] = {"polynomial": None, "exact": "exact", "hardware": "hardware"}
# Table 3: (published row, function, direction, degree of the program)
TABLE3 = (("sigmoid_fwd_d3", "sigmoid", "forward", 3), ("tanh_fwd_d4", "tanh", "forward", 4), ("silu_fwd_d3", "silu", "forward", 3),
          ("gelu_fwd_d5", "gelu", "forward", 5), ("sigmoid_bwd_d4", "sigmoid", "backward", 4), ("tanh_bwd_d4", "tanh", "backward", 4))  # fmt: skip
EAGER = EagerProtocol(warmups=1000, rounds=9, calls=1000)
PROTOCOL = {
    "graph": GRAPH_PROTOCOL,
    "eager": str(EAGER),
    "data": "standard normal times 3, one buffer a tensor",
}


def measure(functions: Sequence[str] = FUNCTIONS, dtypes: Sequence[str] = ("bf16", "fp16"), sizes: Sequence[int] = (L2, HBM),
            progress: Callable[..., None] = lambda *_: None) -> Measurement:  # fmt: skip
    """Every arm of the functions, forward and backward, in both protocols (the eager one for the rows of table 3 alone)."""
    need_gpu()
    check_names(functions, dtypes)
    cases = [(f, d, t, n) for t in dtypes for n in sizes for f in functions for d in ("forward", "backward")]
    measurement = Measurement("isolated", PROTOCOL)
    for done, (function, direction, dtype, elements) in enumerate(cases):
        progress(done, len(cases), f"{function} {direction} {dtype} {elements:,}")
        measurement.timings += _case(function, direction, dtype, elements)
    progress(len(cases), len(cases))
    return measurement


def check_sizes(given: Sequence[str]) -> tuple[int, ...]:
    """Sizes from text. Raises PolyfmaError for what is no positive number."""
    for text in given:
        if not text.isdecimal() or not int(text):
            raise PolyfmaError(f"elements {text!r} must be a positive whole number")
    return tuple(int(text) for text in given)


def check_names(functions: Sequence[str], dtypes: Sequence[str]) -> None:
    """Raises UnknownNameError for what has no arms."""
    for what, given, known in (("function", functions, FUNCTIONS), ("dtype", dtypes, tuple(DTYPES))):
        for name in given:
            if name not in known:
                raise UnknownNameError(f"unknown {what} {name!r}; known: {', '.join(known)}")


def _case(function: str, direction: str, dtype: str, elements: int) -> list[Timing]:
    x = torch.empty(elements, dtype=DTYPES[dtype], device="cuda").normal_(std=3.0)
    grad = torch.empty_like(x).normal_()
    published = [row for row in TABLE3 if row[1:3] == (function, direction)] if dtype == "fp16" else []
    programs = PROGRAMS | {f"d{row[3]}": f"d{row[3]}" for row in published}
    arms, names = unary_arms(function, direction, x, grad, programs)
    traffic = (2 if direction == "forward" else 3) * elements * x.element_size()

    def timing(arm: str, where: str, rounds: tuple[float, ...]) -> Timing:
        return Timing("isolated", function, direction, dtype, elements, arm, where, rounds, names.get(arm), traffic)

    found = [timing(arm, "graph", rounds) for arm, rounds in graph_rounds(arms).items()]
    for row in published:
        calls: dict[str, Call] = {arm: arms[arm] for arm in ("torch", f"d{row[3]}", "exact")}
        found += [timing(arm, "eager", rounds) for arm, rounds in eager_rounds(calls, EAGER).items()]
    return found
