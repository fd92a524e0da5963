"""Numbers that a caller gives: Python's and NumPy's, not booleans, not tensors."""

from __future__ import annotations

import math
from numbers import Real

import numpy as np

from polyfma.errors import PolyfmaError


def real(value: object) -> float | None:
    """A number as a float; None for anything else."""
    if isinstance(value, bool | np.bool_) or not isinstance(value, Real):
        return None
    try:
        return float(value)
    except OverflowError:
        return math.inf


def flag(name: str, value: object) -> bool:
    """True or False. Raises PolyfmaError."""
    if not isinstance(value, bool):
        raise PolyfmaError(f"{name} = {str(value)[:40]!r} must be True or False")
    return value


def between(name: str, value: object, least: float, most: float) -> float:
    """A number from least to most. Raises PolyfmaError."""
    number = real(value)
    if number is None or not least <= number <= most:
        raise PolyfmaError(f"{name} = {str(value)[:40]!r} must be a number from {least:g} to {most:g}")
    return number


def positive(name: str, value: object) -> float:
    """A positive finite number. Raises PolyfmaError."""
    number = real(value)
    if number is None or not 0 < number < math.inf:
        raise PolyfmaError(f"{name} = {str(value)[:40]!r} must be a positive finite number")
    return number
