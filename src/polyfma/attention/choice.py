"""Which kernel and which programs a call gets. The defaults are data (``defaults.json``), made of checked-in measurements.

Backends, by rule:

- ``reference`` (plain PyTorch): tensors on a CPU, fp64, and calls without a query or a key.
- ``fa4``: CUDA, BF16 or FP16, compute capability 9.x, a head dim of 8 to 128 that 8 divides, a tested FlashAttention-4.
- ``score_mod`` (FlashAttention-4's own hooks, without programs): what keeps a call from ``fa4`` is only the version, which is not one
  of the tested ones, or compute capability 10.x.
- ``flex`` (FlexAttention): every other CUDA call.

The reason for either of the last two is warned of once.
"""

from __future__ import annotations

import json
import math
import sys
import warnings
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from polyfma.attention.budget import LogitBudget, logit_error
from polyfma.attention.mix import EXPONENTIAL, HARDWARE, Mix, parse
from polyfma.attention.problem import Problem
from polyfma.errors import PolyfmaError, UnknownNameError
from polyfma.fit.objective import Distribution, expected_error

FILE = Path(__file__).parent / "defaults.json"
BACKENDS = ("auto", "fa4", "score_mod", "flex", "reference")
MEASURED = "sm_90"
HEAD_DIMS = range(8, 129, 8)
WEIGHTS_ERROR = 4e-3  # relative L2 error of sigmoid attention's output that "auto" allows
_ROUNDING = 2.0**-9 / 3**0.5  # of a BF16 output
_NEAR_ONE = 2.0**-22  # error of tanh.approx.f32 near 1, half of it a weight's: 1.8e-7 by sigmoid's errors at bias -log 4096
_SURE = 30.0  # past such a bias weights are 1, or so small that only the exponential has them
_warned: set[str] = set()


@dataclass(frozen=True)
class Arm:
    """A mix as measured: microseconds of its kernel, and relative L2 errors of the output by the scale of q and k."""

    mix: str
    us: float
    errors: dict[str, float]


def backend(problem: Problem, wanted: str) -> str:
    """``fa4``, ``score_mod``, ``flex`` or ``reference``. Raises PolyfmaError where the one asked for cannot take the call, with the reason."""
    if wanted not in BACKENDS:
        raise UnknownNameError(f"unknown backend {wanted!r}; known: {', '.join(BACKENDS)}")
    if problem.empty:
        return "reference"
    cuda = problem.q.device.type == "cuda"
    if wanted == "flex" and not cuda:
        raise PolyfmaError(f"backend flex needs CUDA tensors, not {problem.q.device.type}; use reference there")
    if wanted in ("fa4", "score_mod"):
        why_not = not_fa4(problem) if wanted == "fa4" else not_score_mod(problem)
        if why_not:
            raise PolyfmaError(f"backend {wanted} cannot take this call: {why_not}")
    if wanted != "auto":
        return wanted
    if not cuda or problem.q.dtype == torch.float64:
        return "reference"
    return _fastest(problem)


def _fastest(problem: Problem) -> str:
    """The first of fa4, score_mod and flex that takes a CUDA call; why it is not fa4 is warned of once."""
    why_not = not_fa4(problem)
    if why_not is None:
        return "fa4"
    found, named = ("flex", "FlexAttention") if not_score_mod(problem) else ("score_mod", "FlashAttention-4's own hooks")
    if why_not not in _warned:
        _warned.add(why_not)
        warnings.warn(f"polyfma.attention runs on {named}, without its programs: {why_not}", stacklevel=_callers_level())
    return found


def _callers_level() -> int:
    """The ``stacklevel`` of the first frame that is neither ours nor torch's wrapping of us."""
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] in ("polyfma", "torch"):
        frame, level = frame.f_back, level + 1
    return level


def not_fa4(problem: Problem) -> str | None:
    """Why our kernels cannot take a call, in one line."""
    shape = _not_for_flash_attention(problem)
    if shape:
        return shape
    major, minor = torch.cuda.get_device_capability(problem.q.device)
    if major != 9:
        return f"compute capability {major}.{minor}; the kernels are for 9.x"
    from polyfma.attention.fa4 import versions

    return versions.problem()


def not_score_mod(problem: Problem) -> str | None:
    """Why FlashAttention-4's own hooks cannot take a call, in one line."""
    shape = _not_for_flash_attention(problem)
    if shape:
        return shape
    major, minor = torch.cuda.get_device_capability(problem.q.device)
    if major not in (9, 10):
        return f"compute capability {major}.{minor}; 9.x and 10.x are supported"
    from polyfma.attention.fa4 import versions

    return versions.missing()


def _not_for_flash_attention(problem: Problem) -> str | None:
    if problem.q.device.type != "cuda":
        return f"tensors are on {problem.q.device.type}, not on a CUDA device"
    if problem.q.dtype not in (torch.bfloat16, torch.float16):
        return f"dtype {str(problem.q.dtype).removeprefix('torch.')}; bfloat16 and float16 are supported"
    if problem.head_dim not in HEAD_DIMS:
        return f"head dim {problem.head_dim}; multiples of 8 from {HEAD_DIMS[0]} to {HEAD_DIMS[-1]} are supported"
    return None


@cache
def arms(function: str, direction: str) -> tuple[Arm, ...]:
    """The measured arms of a function, fastest first."""
    data: dict[str, Any] = json.loads(FILE.read_text(encoding="utf-8"))
    return tuple(Arm(**entry) for entry in data[MEASURED][function][direction])


@lru_cache(maxsize=256)
def softcap_mix(direction: str, scale: float, budget: LogitBudget) -> Mix:
    """The fastest measured mix within the budget: backward, its ``gradient`` and, because slopes do not care for relative errors near
    0, only the absolute bounds on logits. Raises PolyfmaError where none is."""
    within = budget if direction == "forward" else replace(budget, relative=math.inf)
    most = budget.output if direction == "forward" else budget.gradient
    for arm in arms("softcap", direction):
        mix = parse(arm.mix, "tanh", (HARDWARE,))
        if max(arm.errors.values()) <= most and _holds(mix, scale, within):
            return mix
    raise PolyfmaError(f"no measured {direction} program keeps {budget}; a wider budget or program={HARDWARE!r} is needed")


def _holds(mix: Mix, scale: float, budget: LogitBudget) -> bool:
    try:
        return budget.holds(logit_error(mix, scale))
    except PolyfmaError:  # the format cannot hold the scale
        return False


@lru_cache(maxsize=256)
def sigmoid_mix(direction: str, bias: float) -> Mix:
    """The fastest measured mix whose weights keep WEIGHTS_ERROR with scores N(bias, 1) and N(bias, 2)."""
    for arm in arms("sigmoid", direction) if abs(bias) <= _SURE else ():
        mix = parse(arm.mix, "sigmoid", (HARDWARE, EXPONENTIAL))
        if max(float(np.hypot(weights_error(mix, bias, sigma), _ROUNDING)) for sigma in (1.0, 2.0)) <= WEIGHTS_ERROR:
            return mix
    return parse(EXPONENTIAL, "sigmoid", (HARDWARE, EXPONENTIAL))


def weights_error(mix: Mix, bias: float, sigma: float) -> float:
    """Root-mean-square error of a mix's weights over theirs, for scores N(bias, sigma): what the output's relative error becomes.

    The hardware's functions in fp32 count as a BF16 rounding, which is what they are measured to be; its tanh has an absolute error
    besides, which is all of a small weight.
    """
    points = bias + sigma * np.linspace(-8, 8, 4097)
    density = np.exp(-0.5 * ((points - bias) / sigma) ** 2)
    power = float(np.sum(density / (1 + np.exp(-points)) ** 2) / np.sum(density))
    law = Distribution.histogram(tuple(points), tuple(density[:-1]))
    words = {EXPONENTIAL: _ROUNDING**2, HARDWARE: _ROUNDING**2 + _NEAR_ONE**2 / power}
    squares = [words[p] if isinstance(p, str) else expected_error(p, law)[0] ** 2 / power for p in mix.parts]
    return float(np.sqrt(np.mean(squares)))
