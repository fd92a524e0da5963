"""Endpoint-constrained least squares with the published search.

In float64 on 2,000 Chebyshev nodes of (0, Li), the reduced polynomial is fitted with both ends pinned to
the reduced target; the coefficients are rounded to the format; the program is replayed on 8,000 points
of [0, 12]; the pair (Li, Lc) of lowest error wins among those that pass the gates.
"""

from __future__ import annotations

import numpy as np

from polyfma.errors import CoefficientError, FitError, UnknownNameError
from polyfma.fit.common import (
    GRID,
    Candidate,
    Fit,
    Progress,
    Scorer,
    chebyshev_nodes,
    check_request,
    chosen,
    clamp_grid,
    interval_grid,
    program_name,
    reduced,
)
from polyfma.formats import Format, Values, get_format
from polyfma.forms import Form, get_form, published_form
from polyfma.functions import Function, get_function
from polyfma.program import Program
from polyfma.replay import real_values

METHOD = "endpoint-ls"
NODES = 2000


def endpoint_coefficients(form: Form, target: Function, degree: int, fit_interval: float) -> Values:
    """The unrounded coefficients, in the order of the form's free names.

    min sum (p(t_i) - g(t_i))^2 subject to p(0) = g(0) where the basis has a constant, and
    p(Li) = g(Li); g is the reduced target. Solved in u = t/Li by eliminating the constraints.
    """
    ends = np.array([0.0, fit_interval])
    basis_at_zero = form.model(target, ends, degree, np.inf)[2][0]
    pins = ends if np.any(basis_at_zero) else ends[1:]
    nodes = chebyshev_nodes(NODES, fit_interval)
    g, matrix = reduced(form, target, degree, np.concatenate([nodes, np.maximum(pins, 1e-9 * fit_interval)]))
    scale = np.max(np.abs(matrix), axis=0)
    if np.any(scale == 0):
        raise CoefficientError(f"form {form.name} has a coefficient without effect on [0, {fit_interval:g}]; raise Li")
    matrix = matrix / scale
    a, b, pinned, values = matrix[:NODES], g[:NODES], matrix[NODES:], g[NODES:]
    particular = np.linalg.lstsq(pinned, values)[0]
    # Columns of `free` span the directions that keep both pins.
    free = np.linalg.svd(pinned)[2][pinned.shape[0] :].T
    solution = particular
    if free.shape[1]:
        solution = particular + free @ np.linalg.lstsq(a @ free, b - a @ particular)[0]
    return np.asarray(solution / scale)


def endpoint_values(form: Form, target: Function, degree: int, fit_interval: float) -> dict[str, float]:
    """The unrounded coefficients by name; a form with parts takes those of its parts."""
    if not form.parts:
        found = endpoint_coefficients(form, target, degree, fit_interval)
        return dict(zip(form.free_names(degree), found.tolist(), strict=True))
    values: dict[str, float] = {}
    for part in form.parts:
        part_form, part_target = get_form(part.form), get_function(target.name, part.direction)
        for name, value in endpoint_values(part_form, part_target, degree + part.extra_degree, fit_interval).items():
            values[part.prefix + name[1:] if part.prefix else name] = value
    return values


def gate(program: Program, form: Form, clamp: float) -> str:
    """Why a candidate is refused; empty if it is not.

    Boundary: no value may leave the function's range by more than one ulp of the format at the range's
    end. Shape: within the clamp the polynomial may not turn more often than the function does, turns
    smaller than an ulp aside. Both are read in real arithmetic with the rounded coefficients.
    """
    target, fmt = program.target, program.fmt
    t = np.linspace(0.0, clamp, 513)
    y, f = real_values(program, t), target.values(t)
    unit = float(fmt.ulp(np.array([max(np.max(np.abs(f)), fmt.min_normal)]))[0])
    # SiLU, GELU and their derivatives leave their limits themselves: their shape.range is infinite.
    low, high = target.shape.range
    if np.min(y) < low - unit or np.max(y) > high + unit:
        return "boundary"
    return "shape" if _turns(y, unit) > _turns(f, unit) else ""


def _turns(y: Values, unit: float) -> int:
    """How often a sampled curve changes direction by more than ``unit``."""
    turns, direction, extreme = 0, 0, float(y[0])
    for v in y[1:]:
        change = float(v) - extreme
        if direction * change > 0 or (direction == 0 and abs(change) > unit):
            direction, extreme = (1 if change > 0 else -1), float(v)
        elif abs(change) > unit:
            turns, direction, extreme = turns + 1, -direction, float(v)
    return turns


def fit_endpoint_ls(
    function: str, direction: str = "forward", fmt: str | Format = "bf16", degree: int = 4, *,
    form: str | None = None, fit_interval: float | None = None, clamp: float | None = None, mode: str = "fused",
    clamp_step: float = GRID, gates: bool = True, progress: Progress | None = None,
) -> Fit:  # fmt: skip
    """The published search.

    ``fit_interval`` (Li) and ``clamp`` (Lc) fix one or both, otherwise Li runs over 1..8 and Lc over
    Li - 1..Li + 1 in steps of 0.25 (of ``clamp_step`` for Lc; times the cap for softcap). ``mode`` is
    the arithmetic of the replay: ``fused`` as the hardware rounds, or ``split`` as published.
    Raises FitError if nothing passes the gates, CoefficientError if no candidate is representable.
    """
    target, f = get_function(function, direction), get_format(fmt)
    shape = get_form(form) if form else published_form(target)
    check_request(target, shape, degree, fit_interval, clamp)
    if mode not in ("split", "fused"):
        raise UnknownNameError(f"unknown replay mode {mode!r} for a fit; known: split, fused")
    if not 2**-10 <= clamp_step <= 1:
        raise FitError(f"clamp step {clamp_step!r} must be positive, from 2^-10 to 1")
    name = program_name(shape, target, f, degree, METHOD)
    scorer = Scorer(target, f, mode)
    found: list[tuple[Candidate, Program | None]] = []
    intervals = interval_grid(target, fit_interval, clamp)
    unusable: CoefficientError | None = None
    for i, li in enumerate(intervals):
        try:
            coefficients = endpoint_values(shape, target, degree, li)
        except CoefficientError as error:
            found.append((Candidate(li, li, np.inf, "coefficient"), None))
            unusable = error
            continue
        for lc in clamp_grid(target, f, li, clamp, clamp_step):
            try:
                program = shape.build(name, function, direction, f, degree, coefficients | {"clamp": lc})
            except CoefficientError as error:
                found.append((Candidate(li, lc, np.inf, "coefficient"), None))
                unusable = error
                continue
            refused = gate(program, shape, lc) if gates else ""
            score = scorer.score(program)
            found.append((Candidate(li, lc, score, refused), None if refused else program))
        if progress:
            progress(i + 1, len(intervals))
    return chosen(found, name, METHOD, mode, unusable)
