"""polyfma: short certified polynomial programs for 16-bit GPU arithmetic.

A Program stands in for sigmoid, tanh, SiLU, GELU or exp2 in packed BF16 or FP16 arithmetic. It is
fitted in the format it runs in, replayed bit for bit, and certified over all 65,536 inputs::

    import polyfma as pf
    p = pf.load("silu.forward.bf16.d4.endpoint-ls")
    y = pf.replay(p, x)          # uint16 bit patterns in and out
    c = pf.certify(p)            # c.max_abs_error, c.max_ulp, c.tails, ...

``polyfma.ops`` and ``polyfma.nn`` run programs in PyTorch. Importing the package loads numpy alone; torch, flint, scipy, numba and matplotlib come when first needed.
"""

from importlib import import_module
from typing import Any

# These imports bind functions over the submodules of the same name (replay, certify, fit, emit, audit), so they are
# made here at once: a lazy one would be overwritten when the submodule is imported.
from polyfma.audit import Audit, audit
from polyfma.catalog import load, programs
from polyfma.certify import Certificate, certify
from polyfma.derivative import differentiate
from polyfma.emit import Hybrid, emit
from polyfma.errors import (
    CoefficientError,
    DtypeError,
    FitError,
    MissingToolError,
    PolyfmaError,
    ProgramError,
    SecondDerivativeError,
    ShapeError,
    UnknownNameError,
)
from polyfma.fit import fit
from polyfma.folding import fold
from polyfma.formats import BF16, FP16, FP32, Format
from polyfma.functions import Function, get_function
from polyfma.pareto import best
from polyfma.program import Op, Program
from polyfma.replay import replay

__version__ = "0.1.0"
_NEED_TORCH = ("attention", "models", "nn", "ops")


def __getattr__(name: str) -> Any:
    """The rooms that need torch, and ``patch`` of one of them, imported when first used."""
    if name == "patch":
        return import_module("polyfma.models").patch
    if name in _NEED_TORCH:
        return import_module(f"polyfma.{name}")
    raise AttributeError(f"module 'polyfma' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_NEED_TORCH, "patch"})


__all__ = [
    "BF16",
    "FP16",
    "FP32",
    "Audit",
    "Certificate",
    "CoefficientError",
    "DtypeError",
    "FitError",
    "Format",
    "Function",
    "Hybrid",
    "MissingToolError",
    "Op",
    "PolyfmaError",
    "Program",
    "ProgramError",
    "SecondDerivativeError",
    "ShapeError",
    "UnknownNameError",
    "audit",
    "best",
    "certify",
    "differentiate",
    "emit",
    "fit",
    "fold",
    "get_function",
    "load",
    "programs",
    "replay",
]
