"""What a layer's activation is given, and what a program would get wrong there.

Inputs are 16-bit, so a histogram has a bin for every one of the 65,536 values: bounded memory (half a megabyte a layer), nothing
lost, and the error of any program on what the layer saw is a sum over a table, exact without running the model again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from polyfma import catalog
from polyfma.formats import Format, get_format
from polyfma.functions import function_scale, get_function
from polyfma.ops.dtypes import DTYPES
from polyfma.program import Program
from polyfma.replay import replay

VALUES = 1 << 16
TAIL = 8.0  # in the function's own units: beyond it SiLU and GELU are x or 0 to 16 bits' precision


class Histogram:
    """Counts of every 16-bit input, and the sum of squares of what multiplied its value (1 where nothing did).

    Kept on the device of what is recorded, so recording does not wait for a GPU.
    """

    def __init__(self, fmt: str) -> None:
        self.format = get_format(fmt)
        self._counts: Tensor | None = None
        self._energy: Tensor | None = None

    def add(self, x: Tensor, factor: Tensor | None = None) -> None:
        """Count the elements of x; ``factor`` is what multiplies f(x)."""
        x = x.detach().to(DTYPES[self.format.name])
        bits = x.reshape(-1).view(torch.int16).to(torch.int64) & (VALUES - 1)
        if self._counts is None or self._energy is None:
            self._counts = torch.zeros(VALUES, dtype=torch.int64, device=x.device)
            self._energy = torch.zeros(VALUES, dtype=torch.float64, device=x.device)
        self._counts += torch.bincount(bits, minlength=VALUES)
        weights = torch.ones_like(bits, dtype=torch.float64) if factor is None else factor.detach().reshape(-1).double().square()
        self._energy += torch.bincount(bits, weights=weights, minlength=VALUES)

    @property
    def counts(self) -> NDArray[np.int64]:
        return np.zeros(VALUES, np.int64) if self._counts is None else self._counts.cpu().numpy()

    @property
    def energy(self) -> NDArray[np.float64]:
        return np.zeros(VALUES) if self._energy is None else self._energy.cpu().numpy()

    def summary(self, function: str) -> dict[str, Any]:
        """Count, extremes, standard deviation, how many are not finite and how many lie where the function is in its tail."""
        values, counts = self.format.decode(self.format.all_bits()), self.counts
        finite = np.isfinite(values)
        seen, n = finite & (counts > 0), int(counts[finite].sum())
        if not n:
            return {"count": 0, "not finite": int(counts[~finite].sum())}
        mean = float(values[finite] @ counts[finite] / n)
        deviation = float(np.sqrt(np.square(values[finite] - mean) @ counts[finite] / n))
        outside = np.abs(values) > TAIL * function_scale(get_function(function))
        return {"count": n, "least": float(values[seen].min()), "most": float(values[seen].max()), "mean": mean, "deviation": deviation,
                "outliers": int(counts[seen & (np.abs(values - mean) > 6 * deviation)].sum()), "in the tail": int(counts[seen & outside].sum()),
                "not finite": int(counts[~finite].sum())}  # fmt: skip

    def bins(self, edges: NDArray[np.float64]) -> dict[str, list[float]]:
        """The histogram on given edges, as ``polyfma fit --distribution`` reads it."""
        values = self.format.decode(self.format.all_bits())
        finite = np.isfinite(values)
        counts, _ = np.histogram(values[finite], edges, weights=self.counts[finite].astype(float))
        return {"edges": [float(e) for e in edges], "counts": [float(c) for c in counts]}

    def edges(self, bins: int = 256) -> NDArray[np.float64]:
        """Equal bins from the least to the most that was seen."""
        values, counts = self.format.decode(self.format.all_bits()), self.counts
        seen = values[np.isfinite(values) & (counts > 0)]
        low, high = (float(seen.min()), float(seen.max())) if seen.size else (-1.0, 1.0)
        return np.linspace(low, high if high > low else low + 1.0, bins + 1)


@dataclass(frozen=True)
class Predicted:
    """A program's error on a histogram. ``bias`` and ``rms`` of f, ``tail`` the part of the squared error from |x| beyond 8 function units,
    ``largest`` over what was seen, ``relative`` the relative L2 error of f(x) times its factor, rounding included."""

    program: str
    bias: float
    rms: float
    tail: float
    largest: float
    relative: float

    def to_dict(self) -> dict[str, Any]:
        return dict(vars(self))


def predict(histogram: Histogram, function: str, program: Program | str) -> Predicted:
    """The error of a program, or of ``exact`` (correct rounding), on what a layer saw."""
    target, fmt = get_function(function), histogram.format
    got, name = _values(program, function, fmt)
    exact = target.table(fmt).exact
    values, counts, energy = fmt.decode(fmt.all_bits()), histogram.counts, histogram.energy
    used = (counts > 0) & np.isfinite(values)
    error, n = got[used] - exact[used], counts[used]
    total = max(int(n.sum()), 1)
    squares = np.square(error) * energy[used]
    outside = np.abs(values[used]) > TAIL * function_scale(target)
    whole, signal = float(squares.sum()), float(np.square(exact[used]) @ energy[used])
    largest = float(np.abs(error).max()) if error.size else 0.0
    return Predicted(name, float(error @ n / total), float(np.sqrt(np.square(error) @ n / total)), float(squares[outside].sum() / whole) if whole else 0.0,
                     largest, float(np.sqrt(whole / signal)) if signal else 0.0)  # fmt: skip


def _values(program: Program | str, function: str, fmt: Format) -> tuple[NDArray[np.float64], str]:
    if program == "exact":
        return fmt.decode(get_function(function).table(fmt).rounded), "exact"
    found = catalog.load(program) if isinstance(program, str) else program
    bits = replay(found, fmt.all_bits())
    return fmt.decode(bits["value"] if isinstance(bits, dict) else bits), found.name
