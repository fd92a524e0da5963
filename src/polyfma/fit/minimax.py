"""The control: Sollya's fpminimax, coefficients on the format's precision, same form, degree and clamp."""

from __future__ import annotations

import re
import shutil
import subprocess

import numpy as np

from polyfma.errors import CoefficientError, FitError, MissingToolError, UnknownNameError
from polyfma.fit.common import (
    Candidate,
    Fit,
    Progress,
    Scorer,
    check_request,
    chosen,
    clamp_grid,
    interval_grid,
    program_name,
)
from polyfma.formats import Format, get_format
from polyfma.forms import Form, centre_of, get_form, published_form
from polyfma.functions import Function, get_function
from polyfma.program import Program

METHOD = "sollya"
_TIMEOUT_S = 120
# f in Sollya's language, value and derivative; @ is the parameter.
_EXPRESSIONS = {
    "sigmoid": ("1/(1+exp(-x))/@", "1/(1+exp(-x))/(1+exp(x))/@"),
    "tanh": ("tanh(x)", "1/cosh(x)^2"),
    "silu": ("x/(1+exp(-@*x))", "1/(1+exp(-@*x))*(1+@*x/(1+exp(@*x)))"),
    "gelu": ("x*erfc(-x/sqrt(2))/2", "erfc(-x/sqrt(2))/2+x*exp(-x^2/2)/sqrt(2*pi)"),
    "gelu-tanh": (
        "x/(1+exp(-2*sqrt(2/pi)*(x+44715/1000000*x^3)))",
        "1/(1+exp(-2*sqrt(2/pi)*(x+44715/1000000*x^3)))*(1+x*2*sqrt(2/pi)*(1+3*44715/1000000*x^2)"
        "/(1+exp(2*sqrt(2/pi)*(x+44715/1000000*x^3))))",
    ),
    "softcap": ("@*tanh(x/@)", "1/cosh(x/@)^2"),
}
# The reduced target of each form: what p approximates.
_REDUCED = {
    "odd": "{f}",
    "even": "{f}",
    "centred-odd": "({f})-{centre}",
    "residual-tp": "(({f})-x/2)/x",
    "residual-even": "({f})-x/2",
    "sigmoid-product": "(({f})-x/2)/x",
}


def sollya_expression(form: Form, target: Function) -> str:
    """The reduced target in Sollya's language."""
    text = _EXPRESSIONS[target.family][0 if target.direction == "forward" else 1].replace("@", target.parameter or "1")
    return _REDUCED[form.name].format(f=text, centre=repr(centre_of(target)))


def sollya_path() -> str:
    """The sollya program. Raises MissingToolError with how to get it."""
    found = shutil.which("sollya")
    if found is None:
        raise MissingToolError("sollya is not on PATH: install it (Debian: apt-get install sollya), or use method"
                               " endpoint-ls or lattice")  # fmt: skip
    return found


def fpminimax(expression: str, powers: list[int], precision: int, clamp: float) -> list[float] | None:
    """Coefficients of Sollya's fpminimax on [eps, Lc]; None where Sollya finds no polynomial.

    Odd bases vanish at 0, so their lower end is 2^-20, slightly above it.
    """
    low = "0" if powers[0] == 0 else "1b-20"
    monomials, formats = ",".join(map(str, powers)), ",".join([str(precision)] * len(powers))
    lines = ["display=decimal!;", f"g={expression};"]
    lines.append(f"p=fpminimax(g,[|{monomials}|],[|{formats}|],[{low};{clamp!r}],absolute,floating);")
    lines += [f'print("@", {j}, coeff(p,{k}));' for j, k in enumerate(powers)]
    found = dict(re.findall(r"^@ (\d+) (\S+)$", _run("\n".join(lines) + "\nquit;\n"), re.MULTILINE))
    try:
        return [float(found[str(j)]) for j in range(len(powers))]
    except (KeyError, ValueError):  # "error" or a non-number: Sollya gave no polynomial for this clamp
        return None


def _run(script: str) -> str:
    try:
        done = subprocess.run([sollya_path()], input=script, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        raise FitError(f"sollya gave no answer within {_TIMEOUT_S} s; fix the clamp (Lc) to search less") from None
    return done.stdout


def fit_sollya(
    function: str, direction: str = "forward", fmt: str | Format = "bf16", degree: int = 4, *,
    form: str | None = None, clamp: float | None = None, mode: str = "fused", progress: Progress | None = None,
) -> Fit:  # fmt: skip
    """The best fpminimax program over the clamps of the published grid, scored as endpoint-ls is.

    The fit interval is [0, Lc]. Raises MissingToolError without Sollya, FitError if it finds nothing.
    """
    target, f = get_function(function, direction), get_format(fmt)
    shape = get_form(form) if form else published_form(target)
    check_request(target, shape, degree, None, clamp)
    if shape.name not in _REDUCED:
        raise FitError(f"form {shape.name} has no Sollya control; these have: {', '.join(_REDUCED)}")
    if mode not in ("split", "fused"):
        raise UnknownNameError(f"unknown replay mode {mode!r} for a fit; known: split, fused")
    name = program_name(shape, target, f, degree, METHOD)
    scorer = Scorer(target, f, mode)
    clamps = sorted({c for li in interval_grid(target, clamp, clamp) for c in clamp_grid(target, f, li, clamp or li, 1)})
    names = shape.free_names(degree)
    powers = [int(n[1:]) for n in names]
    found: list[tuple[Candidate, Program | None]] = []
    unusable: CoefficientError | None = None
    for i, lc in enumerate(clamps):
        values = fpminimax(sollya_expression(shape, target), powers, f.precision, lc)
        if values is None:
            found.append((Candidate(lc, lc, np.inf, "sollya finding none"), None))
        else:
            try:
                program = shape.build(name, function, direction, f, degree, dict(zip(names, values, strict=True)) | {"clamp": lc})
                found.append((Candidate(lc, lc, scorer.score(program)), program))
            except CoefficientError as error:
                found.append((Candidate(lc, lc, np.inf, "coefficient"), None))
                unusable = error
        if progress:
            progress(i + 1, len(clamps))
    return chosen(found, name, METHOD, mode, unusable)
