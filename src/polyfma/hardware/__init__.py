"""Recorded results of the GPU's own approximate functions, so that programs with them replay.

``<architecture>.npz`` holds ``tanh.approx`` and ``ex2.approx`` at all 65,536 inputs of each 16-bit format, as
``benchmarks/operations_on_gpu.py`` read them on a GPU of that architecture (both lanes of a pair agree).
"""

from __future__ import annotations

from functools import cache
from importlib.resources import as_file, files

import numpy as np

from polyfma.formats import Bits

ARCHITECTURE = "sm_90"  # the only one that was read


@cache
def recorded(operation: str, format_name: str) -> Bits:
    """Output bit patterns indexed by input bit pattern, shape (65536,), on :data:`ARCHITECTURE`."""
    with as_file(files("polyfma.hardware").joinpath(f"{ARCHITECTURE}.npz")) as path, np.load(path) as data:
        table: Bits = data[f"{operation}.{format_name}"]
    table.setflags(write=False)
    return table
