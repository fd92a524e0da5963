"""What a search minimises: the largest weighted error, or the expected error under a distribution of inputs."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from polyfma.errors import FitError, UnknownNameError
from polyfma.formats import Format, Values
from polyfma.functions import Function, function_scale
from polyfma.program import Program
from polyfma.replay import replay

# The default budget of softcap attention in u = score / cap, as errors of tanh(u): relative near 0, up to 1/2, and beyond.
NEAR_ZERO, MIDDLE, OUTER = 1 / 1024, 1 / 800, 1 / 160
OBJECTIVES = ("weighted", "absolute", "relative", "ulp", "ulp-quarter", "logit")


@dataclass(frozen=True)
class Distribution:
    """Where inputs lie: a normal N(0, sigma), or a histogram of edges and counts."""

    edges: tuple[float, ...] = ()
    counts: tuple[float, ...] = ()
    sigma: float = 0.0

    @classmethod
    def normal(cls, sigma: float) -> Distribution:
        if not (np.isfinite(sigma) and sigma > 0):
            raise FitError(f"sigma {sigma!r} must be a positive number")
        return cls(sigma=float(sigma))

    @classmethod
    def read(cls, path: str | Path) -> Distribution:
        """A histogram file: JSON {"edges": [n + 1 ascending numbers], "counts": [n numbers >= 0]}."""
        try:
            data = json.loads(Path(path).read_text(encoding="utf-8"))
            edges, counts = (tuple(float(v) for v in _numbers(data[key])) for key in ("edges", "counts"))
        except (OSError, ValueError, TypeError, KeyError, RecursionError, OverflowError) as error:
            raise FitError(f'distribution {str(path)!r} must be JSON {{"edges": [...], "counts": [...]}}: {error}') from error
        return cls.histogram(edges, counts)

    @classmethod
    def histogram(cls, edges: tuple[float, ...], counts: tuple[float, ...]) -> Distribution:
        if len(counts) == 0 or len(edges) != len(counts) + 1:
            raise FitError(f"a distribution needs one more edge than counts and at least one count, not {len(edges)} and {len(counts)}")
        if not (np.all(np.isfinite(edges)) and np.all(np.diff(edges) > 0)):
            raise FitError("distribution edges must be finite and ascending")
        if not (np.all(np.isfinite(counts)) and min(counts) >= 0 and 0 < sum(counts) < np.inf):
            raise FitError("distribution counts must be finite, as their sum, not negative, and not all zero")
        return cls(tuple(edges), tuple(counts))

    def cumulative(self, x: Values) -> Values:
        """The distribution function at x."""
        if self.sigma:
            from scipy.special import ndtr

            return np.asarray(ndtr(x / self.sigma))
        total = np.concatenate([[0.0], np.cumsum(self.counts)])
        return np.asarray(np.interp(x, self.edges, total / total[-1]))

    def probabilities(self, x: Values) -> Values:
        """The probability of each ascending input's rounding interval."""
        middles = (x[1:] + x[:-1]) / 2
        return np.asarray(np.diff(np.concatenate([[0.0], self.cumulative(middles), [1.0]])))


def _numbers(values: object) -> list[float]:
    """A JSON list; a string is a sequence of digits too."""
    if not isinstance(values, list):
        raise TypeError(f"a list is expected, not {type(values).__name__}")
    return values


@dataclass(frozen=True)
class Objective:
    """The unit in which an error counts, at every input; the search minimises the largest error in that unit.

    ``weighted``: max(1, |f|/2). ``absolute``: 1. ``relative``: |f|. ``ulp``: the format's spacing at f;
    ``ulp-quarter``: at max(|f|, 1/4). ``logit``, for softcap and tanh with u = x/cap: min(|u|/1024, 1/800) up to
    |u| = 1/2 and 1/160 beyond, times the cap, so that a score of 1 is the default budget of softcap attention.
    ``limit`` bounds |x| of the inputs that count in full; beyond it errors weigh 1/``beyond`` as much.
    With a ``distribution`` the expected error sqrt(E e^2 + ``bias_weight`` (E e)^2) is minimised instead.
    """

    name: str = "weighted"
    limit: float | None = None
    beyond: float = 8.0
    distribution: Distribution | None = None
    bias_weight: float = 0.0

    def __post_init__(self) -> None:
        if self.name not in OBJECTIVES:
            raise UnknownNameError(f"unknown objective {self.name!r}; known: {', '.join(OBJECTIVES)}")
        if self.limit is not None and not (np.isfinite(self.limit) and self.limit > 0):
            raise FitError(f"objective limit {self.limit!r} must be a positive number")
        if not (np.isfinite(self.bias_weight) and self.bias_weight >= 0):
            raise FitError(f"bias weight {self.bias_weight!r} must be a number from 0 up")

    def weights(self, target: Function, fmt: Format, x: Values, f: Values) -> Values:
        """1 / (the unit in which an error counts) at every input."""
        magnitude = np.abs(f)
        if self.name == "weighted":
            weights = 1 / np.maximum(1.0, magnitude / 2)
        elif self.name == "absolute":
            weights = np.ones_like(x)
        elif self.name == "logit":
            cap = function_scale(target)
            u = np.abs(x) / cap
            weights = 1 / (cap * np.where(u <= 0.5, np.minimum(np.maximum(u, 2.0**-12) * NEAR_ZERO, MIDDLE), OUTER))
        elif self.name == "relative":
            weights = 1 / np.maximum(magnitude, fmt.min_normal)
        else:
            weights = 1 / fmt.ulp(np.maximum(magnitude, 0.25 if self.name == "ulp-quarter" else 0.0))
        if self.limit is not None:
            weights = np.where(np.abs(x) <= self.limit, weights, weights / self.beyond)
        return np.asarray(weights)


def expected_error(program: Program, distribution: Distribution, target: Function | None = None) -> tuple[float, float]:
    """(root mean square, mean) of the program's error under a distribution, over all finite inputs."""
    fmt = program.fmt
    bits = fmt.finite_bits()[1:] if fmt.width == 16 else fmt.encode(np.linspace(-16, 16, 1 << 16))
    bits = bits[bits != fmt.sign_bit]  # one zero: the inputs must ascend
    x = fmt.decode(bits)
    outputs = replay(program, bits)
    first = next(iter(outputs.values())) if isinstance(outputs, dict) else outputs
    error = fmt.decode(first) - (target or program.target).table(fmt).exact[bits]
    p = distribution.probabilities(x)
    error = np.where(p > 0, error, 0)
    return float(np.sqrt(np.sum(p * error**2))), float(np.sum(p * error))
