"""The errors that polyfma raises on purpose.

Every message says in one line what was given, what is allowed and what to do. The CLI prints it and
exits with status 2.
"""

from __future__ import annotations


class PolyfmaError(ValueError):
    """Base of all deliberate refusals."""


class UnknownNameError(PolyfmaError):
    """A function, format, form, program or method that does not exist."""


class ProgramError(PolyfmaError):
    """A Program that is malformed, or whose digest does not match its content."""


class CoefficientError(PolyfmaError):
    """A coefficient that its format cannot hold as the program needs it."""


class FitError(PolyfmaError):
    """A fit whose constraints cannot be met, or whose arguments contradict each other."""


class MissingToolError(PolyfmaError):
    """An optional program or package that this call needs is not installed."""


class SecondDerivativeError(PolyfmaError, NotImplementedError):
    """A gradient of an operator's gradient, which is a program of its own without one."""


class ShapeError(PolyfmaError):
    """Tensors whose shapes do not fit together, or an argument that says where in them to look."""


class DtypeError(PolyfmaError, TypeError):
    """A tensor of a dtype or device that an operator does not take."""
