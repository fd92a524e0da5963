"""What a call costs on the host: a small tensor, so that the GPU never limits, and the host's clock."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping

import torch
from torch.nn import functional as F

from polyfma import ops
from polyfma.bench.result import Measurement, Timing
from polyfma.bench.timing import Call, need_gpu

CALLS, ROUNDS, WARMUPS = 2000, 9, 500
PROTOCOL = {"host": f"1,024 BF16 elements, {WARMUPS} warm-up calls, {ROUNDS} rounds of {CALLS} calls, order alternating; us of host time a call,"
            " the device idle before and after"}  # fmt: skip


def measure(progress: Callable[..., None] = lambda *_: None) -> Measurement:
    """Eager calls without and with gradient, and forward with backward, of SiLU and SwiGLU against torch."""
    need_gpu()
    x = torch.randn(1024, dtype=torch.bfloat16, device="cuda")
    leaf, up = x.clone().requires_grad_(), torch.randn_like(x).requires_grad_()
    grad = torch.ones_like(x)

    def both(f: Callable[[], torch.Tensor]) -> Call:
        return lambda: f().backward(grad)

    groups: dict[str, dict[str, Call]] = {
        "silu": {"torch": lambda: F.silu(x), "polynomial": lambda: ops.silu(x), "exact": lambda: ops.silu(x, program="exact")},
        "silu with grad": {"torch": lambda: F.silu(leaf), "polynomial": lambda: ops.silu(leaf)},
        "silu and backward": {"torch": both(lambda: F.silu(leaf)), "polynomial": both(lambda: ops.silu(leaf))},
        "swiglu": {"torch": lambda: F.silu(x) * x, "polynomial": lambda: ops.swiglu(x, x)},
        "swiglu with grad": {"torch": lambda: F.silu(leaf) * up, "polynomial": lambda: ops.swiglu(leaf, up)},
        "swiglu and backward": {"torch": both(lambda: F.silu(leaf) * up), "polynomial": both(lambda: ops.swiglu(leaf, up))},
    }
    measurement = Measurement("host", PROTOCOL)
    for done, (case, arms) in enumerate(groups.items()):
        progress(done, len(groups), case)
        measurement.timings += [Timing(case, case.split()[0], "forward", "bf16", 1024, arm, "host", rounds) for arm, rounds in _rounds(arms).items()]
    return measurement


def _rounds(arms: Mapping[str, Call]) -> dict[str, tuple[float, ...]]:
    for call in arms.values():
        for _ in range(WARMUPS):
            call()
    found: dict[str, list[float]] = {name: [] for name in arms}
    for number in range(ROUNDS):
        for name in list(arms)[:: -1 if number % 2 else 1]:
            call = arms[name]
            pieces = []
            for _ in range(CALLS // 100):  # short stretches: a full launch queue would make the host wait for the device
                torch.cuda.synchronize()
                start = time.perf_counter()
                for _ in range(100):
                    call()
                pieces.append((time.perf_counter() - start) * 1e4)
            found[name].append(statistics.median(pieces))
    return {name: tuple(values) for name, values in found.items()}
