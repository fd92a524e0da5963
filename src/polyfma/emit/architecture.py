"""GPU architectures by their compiler names, and the first one that has each packed instruction."""

from __future__ import annotations

import re
from dataclasses import dataclass

from polyfma.errors import UnknownNameError

# Compiler names (nvcc -arch); a trailing "a" or "f" names the same instructions and more that no program uses.
KNOWN = (70, 72, 75, 80, 86, 87, 88, 89, 90, 100, 103, 110, 120, 121)
DEFAULT = "sm_90"
_NAME = re.compile(r"sm_(\d+)([af]?)")

# PTX ISA, "Target ISA Notes" of each instruction; what is not named here is there from sm_80 on, where packed BF16
# arithmetic begins. Keys are (operation, format), "*" for any 16-bit format.
_FIRST: dict[tuple[str, str], int] = {
    ("min.xorsign.abs", "*"): 86,
    ("min.nan.xorsign.abs", "*"): 86,
    ("min.xorsign.abs", "fp32"): 86,
    ("min.nan.xorsign.abs", "fp32"): 86,
    ("add", "bf16"): 90,
    ("sub", "bf16"): 90,
    ("mul", "bf16"): 90,
    ("set.ge", "bf16"): 90,
    ("set.gt", "bf16"): 90,
    ("tanh.approx", "bf16"): 90,
    ("ex2.approx", "bf16"): 90,
}
LEAST = 80


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
    if match is None or int(match[1]) not in KNOWN or (match[2] and int(match[1]) < 90):
        raise UnknownNameError(f"unknown architecture {name!r}; known: {', '.join(f'sm_{n}' for n in KNOWN)}, from sm_90 also with a or f")
    return Architecture(int(match[1]), str(name))


def first_with(operation: str, format_name: str) -> int:
    """The number of the first architecture whose instruction set has the operation in the format."""
    exact = _FIRST.get((operation, format_name))
    any_packed = _FIRST.get((operation, "*")) if format_name != "fp32" else None
    return exact or any_packed or LEAST
