"""Fitting: from a function, a format and a degree to a Program."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from polyfma.errors import FitError, UnknownNameError
from polyfma.fit.common import Fit
from polyfma.formats import Format
from polyfma.program import Program

METHODS = ("lattice", "endpoint-ls", "sollya", "logit")
EXP2_METHODS = ("minimax", "least-squares", "published")


def default_method(function: str) -> str:
    """What :func:`fit` uses when no method is named."""
    return EXP2_METHODS[0] if function == "exp2" else METHODS[0]


def search(function: str, direction: str = "forward", format: str | Format = "bf16", degree: int | None = None,
           method: str | None = None, **options: Any) -> Fit:  # fmt: skip
    """Like :func:`fit`, but returns the Fit: the program with its search."""
    method = method or default_method(function)
    methods = EXP2_METHODS if function == "exp2" else METHODS
    if method not in methods:
        raise UnknownNameError(f"unknown fitting method {method!r} for {function}; known: {', '.join(methods)}")
    run = _fitter(function, method)
    named = {"function", "direction", "fmt", "degree", "method"}
    takes = [n for n in inspect.signature(run).parameters if n not in named and n != "progress"]
    unknown = [n for n in options if n not in takes and n != "progress"]
    if unknown:
        raise FitError(f"method {method} takes no {', '.join(unknown)}; it takes {', '.join(takes)}")
    if function == "exp2":
        return run(direction=direction, degree=degree, method=method, fmt=format, **options)
    return run(function, direction, format, default_degree(method) if degree is None else degree, **options)


def default_degree(method: str | None) -> int:
    """The degree of a fit that names none; of exp2 the method itself says it."""
    return 7 if method == "logit" else 4


def _fitter(function: str, method: str) -> Callable[..., Fit]:
    """Imported when first needed: each brings its own libraries."""
    if function == "exp2":
        from polyfma.fit.exp2 import fit_exp2

        return fit_exp2
    if method == "lattice":
        from polyfma.fit.lattice import fit_lattice

        return fit_lattice
    if method == "endpoint-ls":
        from polyfma.fit.endpoint_ls import fit_endpoint_ls

        return fit_endpoint_ls
    if method == "logit":
        from polyfma.fit.logit import fit_logit

        return fit_logit
    from polyfma.fit.minimax import fit_sollya

    return fit_sollya


def fit(function: str, direction: str = "forward", format: str | Format = "bf16", degree: int | None = None,
        method: str | None = None, **options: Any) -> Program:  # fmt: skip
    """Fit a Program for a function in a direction and format.

    ``degree`` is 1..8, by default 4 (``logit``: 7). ``method`` is ``lattice`` (the search in the format, the default),
    ``endpoint-ls`` (the published search), ``sollya`` (its control) or ``logit`` (softcaps computed in fp32); exp2 takes ``minimax``, ``least-squares``
    or ``published``. Options go to the method: see :func:`polyfma.fit.lattice.fit_lattice`,
    :func:`~polyfma.fit.endpoint_ls.fit_endpoint_ls`, :func:`~polyfma.fit.minimax.fit_sollya`,
    :func:`~polyfma.fit.logit.fit_logit` and :func:`~polyfma.fit.exp2.fit_exp2`. Raises FitError, UnknownNameError, CoefficientError or
    MissingToolError, each with one line on what is allowed.
    """
    return search(function, direction, format, degree, method, **options).program
