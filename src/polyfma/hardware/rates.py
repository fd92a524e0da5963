"""Nominal instruction rates by architecture: what pipe costs are counted with.

Source: NVIDIA, CUDA C++ Programming Guide, "Throughput of Native Arithmetic Instructions". Its figures are results per
clock and SM; a packed 16-bit instruction makes two. Here: instructions (lanes of one) per clock and SM. Architectures
that are not named are unknown, and no cost is given for them: only what was checked stands here. sm_90 was measured on an H200
(``benchmarks/rates_on_gpu.py``, results in ``benchmarks/results/h200/rates.json``), within 4 percent of these figures; the
guide itself was not at hand when they were written down.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

SOURCE = "NVIDIA, CUDA C++ Programming Guide, Throughput of Native Arithmetic Instructions"


@dataclass(frozen=True)
class Rates:
    """Instructions per clock and SM. min, max, logic and conversions share the pipe of ``alu`` and ``cvt``."""

    fma_f16: int
    fma_bf16: int
    fma_f32: int
    alu: int
    cvt: int
    mufu: int


# Keys are compute capability times ten.
RATES: Mapping[int, Rates] = {
    90: Rates(fma_f16=128, fma_bf16=128, fma_f32=128, alu=64, cvt=64, mufu=16),
}
REFERENCE = RATES[90]
# Costs in units of one packed FMA of the reference. A packed MUFU instruction of the IR is two on the pipe.
UNITS: Mapping[str, int] = {
    "fma": 1,
    "alu": REFERENCE.fma_bf16 // REFERENCE.alu,
    "cvt": REFERENCE.fma_bf16 // REFERENCE.cvt,
    "mufu": 2 * REFERENCE.fma_bf16 // REFERENCE.mufu,
}
