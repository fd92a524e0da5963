"""GPU architectures by their compiler names, and the first one that has each packed instruction."""

from __future__ import annotations

import re
from dataclasses import dataclass

from polyfma.errors import UnknownNameError

# Compiler names (nvcc -arch); a trailing "a" or "f" names the same instructions and more that no program uses.
KNOWN = (70, 72, 75, 80, 86, 87, 88, 89, 90, 100, 103, 110, 120, 121)
DEFAULT = "sm_90"
_SUFFIXES = {"a": 90, "f": 100}  # the first architecture that has each
_NAME = re.compile(r"sm_(\d+)([af]?)")

# PTX ISA, "Target ISA Notes" of each instruction. Keys are (operation, format), "*" for both 16-bit formats; packed BF16
# arithmetic and what is not named begin with sm_80.
_FIRST: dict[tuple[str, str], int] = {
    **dict.fromkeys([(op, "fp16") for op in ("fma", "fma.sat", "mul", "add", "sub", "abs", "neg", "set.ge", "set.gt")], 53),
    **dict.fromkeys([(op, "fp32") for op in ("fma", "fma.sat", "mul", "add", "sub", "abs", "neg", "min", "max", "set.ge", "set.gt", "select", "copysign")], 50),
    **dict.fromkeys([(op, "*") for op in ("select", "copysign")], 50),
    **dict.fromkeys([(op, fmt) for op in ("min.xorsign.abs", "min.nan.xorsign.abs") for fmt in ("*", "fp32")], 86),
    **dict.fromkeys([(op, "bf16") for op in ("add", "sub", "mul", "set.ge", "set.gt", "tanh.approx", "ex2.approx")], 90),
    ("tanh.approx", "fp16"): 75,
    ("ex2.approx", "fp16"): 75,
    ("tanh.approx", "fp32"): 75,
    ("ex2.approx", "fp32"): 50,
}
LEAST = 80  # of any program here: conversions, NaN-propagating minima and BF16 begin there


@dataclass(frozen=True, order=True)
class Architecture:
    """``number`` is the compute capability times ten; ``name`` the compiler's name."""

    number: int
    name: str

    def __str__(self) -> str:
        return self.name


def get_architecture(name: str | Architecture) -> Architecture:
    """The architecture of a compiler name such as ``sm_90`` or ``sm_100a``. Raises UnknownNameError."""
    if isinstance(name, Architecture):
        return name
    match = _NAME.fullmatch(str(name))
    if match is None or int(match[1]) not in KNOWN or int(match[1]) < _SUFFIXES.get(match[2], 0):
        raise UnknownNameError(f"unknown architecture {name!r}; known: {', '.join(f'sm_{n}' for n in KNOWN)}, from sm_90 also with a, from sm_100 with f")
    return Architecture(int(match[1]), str(name))


def first_with(operation: str, format_name: str) -> int:
    """The number of the first architecture whose instruction set has the operation in the format."""
    exact = _FIRST.get((operation, format_name))
    any_packed = _FIRST.get((operation, "*")) if format_name != "fp32" else None
    return exact or any_packed or LEAST
