"""``polyfma bench component``: the activation of a model's block. b1: dense SiLU and SwiGLU of 58,720,256 elements (4,096 tokens
times 14,336); b4: an expert's SwiGLU of 24,576 rows of 1,280.

Published protocol (table 4): 25 warm-ups, five alternating rounds of 100 event-timed iterations, medians of the rounds' means.
The same arms are timed in CUDA graphs, with rows of zeros, and with the memory that a call allocates.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from polyfma.bench.arms import swiglu_arms, swiglu_autograd_arms, unary_arms
from polyfma.bench.result import COPIES, Measurement, Timing, check_cases
from polyfma.bench.timing import GRAPH_PROTOCOL, Call, EagerProtocol, eager_rounds, graph_rounds, need_gpu
from polyfma.ops import execute
from polyfma.ops.choice import choose

CASES = {"b1": (4096, 14336), "b4": (24576, 1280)}
ZERO_ROWS = (0.0, 0.5, 0.75)
PROGRAMS: dict[str, str | None] = {"polynomial": None, "d3": "d3", "exact": "exact", "hardware": "hardware"}
EAGER, AUTOGRAD = EagerProtocol(warmups=25, rounds=5, calls=100), EagerProtocol(warmups=25, rounds=9, calls=100)
PROTOCOL = {
    "graph": GRAPH_PROTOCOL,
    "eager": str(EAGER),
    "autograd": f"torch.autograd.grad through each arm's own forward pass: {AUTOGRAD}",
    "data": "standard normal times 3; zero rows: that fraction of the rows of every input is 0",
}


def measure(cases: Sequence[str] = ("b1", "b4"), progress: Callable[..., None] = lambda *_: None) -> Measurement:
    """Every arm of the cases, forward and backward, BF16."""
    need_gpu()
    check_cases(cases, CASES)
    measurement = Measurement("component", PROTOCOL)
    steps = [(case, d) for case in cases for d in ("forward", "backward")]
    for done, (case, direction) in enumerate(steps):
        progress(done, len(steps), f"{case} {direction}")
        _measure_case(case, direction, measurement)
    progress(len(steps), len(steps))
    return measurement


def _inputs(shape: tuple[int, int], zero_rows: float = 0.0) -> list[Tensor]:
    """Gate, up and the incoming gradient."""
    tensors = [torch.empty(shape, dtype=torch.bfloat16, device="cuda").normal_(std=std) for std in (3.0, 3.0, 1.0)]
    if zero_rows:
        rows = torch.randperm(shape[0], device="cuda")[: round(zero_rows * shape[0])]
        for t in tensors:
            t[rows] = 0
    return tensors


def _measure_case(case: str, direction: str, measurement: Measurement) -> None:
    gate, up, grad = _inputs(CASES[case])
    elements = gate.numel()

    def add(function: str, arms: dict[str, Call], names: dict[str, str], tensors: int) -> None:
        def timing(arm: str, where: str, rounds: tuple[float, ...]) -> Timing:
            return Timing(case, function, direction, "bf16", elements, arm, where, rounds, names.get(arm), tensors * elements * 2)

        measurement.timings += [timing(arm, "graph", rounds) for arm, rounds in graph_rounds(arms).items()]
        calls = {arm: call for arm, call in arms.items() if arm not in COPIES}
        measurement.timings += [timing(arm, "eager", rounds) for arm, rounds in eager_rounds(calls, EAGER).items()]

    forward = direction == "forward"
    add("swiglu", *swiglu_arms(direction, gate, up, grad, PROGRAMS), tensors=3 if forward else 5)
    if not forward:
        rounds = eager_rounds(swiglu_autograd_arms(gate, up, grad), AUTOGRAD)
        measurement.timings += [Timing(case, "swiglu", direction, "bf16", elements, arm, "autograd", r, bytes=10 * elements) for arm, r in rounds.items()]
    if case == "b1":
        programs = PROGRAMS if forward else {k: v for k, v in PROGRAMS.items() if k != "hardware"}
        add("silu", *unary_arms("silu", direction, gate.view(-1), grad.view(-1), programs), tensors=2 if forward else 3)
    measurement.facts[f"{case} swiglu {direction} bytes allocated"] = _allocated(direction, gate, up, grad)
    _zero_rows(case, direction, measurement)


def _zero_rows(case: str, direction: str, measurement: Measurement) -> None:
    """The default program and the exact kernel on inputs of which some rows are zero."""
    arms: dict[str, Call] = {}
    kind, count = ("gated", 1) if direction == "forward" else ("gated_backward", 2)
    outputs = [torch.empty(CASES[case], dtype=torch.bfloat16, device="cuda") for _ in range(count)]
    for fraction in ZERO_ROWS:
        gate, up, grad = _inputs(CASES[case], fraction)
        for arm, program in (("polynomial", None), ("exact", "exact")):
            key = choose("silu", "bf16", program).key
            gate_up = (gate, up) if direction == "forward" else (grad, gate, up)
            arms[f"{arm}, {fraction:.0%} zero rows"] = partial(execute.run, key, kind, gate_up, outputs)
    elements = CASES[case][0] * CASES[case][1]
    measurement.timings += [Timing(case, "swiglu", direction, "bf16", elements, arm, "graph", rounds) for arm, rounds in graph_rounds(arms).items()]


def _allocated(direction: str, gate: Tensor, up: Tensor, grad: Tensor) -> dict[str, int]:
    """The peak of device memory during a call above what was allocated before, and the size of one result."""
    key = choose("silu", "bf16").key
    call = partial(execute.gated, gate, up, key) if direction == "forward" else partial(execute.gated_backward, grad, gate, up, key)
    call()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    call()
    torch.cuda.synchronize()
    return {"peak": torch.cuda.max_memory_allocated() - before, "one result": gate.numel() * gate.element_size()}
