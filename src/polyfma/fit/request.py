"""What a search is asked for, and the shapes that fit its budget."""

from __future__ import annotations

from dataclasses import dataclass, field

from polyfma.certify import Certificate, faults
from polyfma.errors import CoefficientError
from polyfma.fit.objective import Objective
from polyfma.formats import Format
from polyfma.forms import Form, get_form
from polyfma.forms.searched import SEARCHED
from polyfma.functions import Function, get_function
from polyfma.program import Program


@dataclass(frozen=True)
class Request:
    """What is searched: the target, its format, the budget, and the requirements."""

    function: str
    direction: str
    fmt: Format
    degree: int
    free: bool = False
    objective: Objective = field(default_factory=Objective)
    monotone: float | None = None
    seed: int = 0
    effort: str = "normal"
    form: str | None = None

    @property
    def target(self) -> Function:
        return get_function(self.function, self.direction)

    @property
    def name(self) -> str:
        shape = "" if self.form is None else f"{self.form}-"
        return f"{self.function}.{self.direction}.{self.fmt}.{shape}d{self.degree}" + (".free" if self.free else "")

    def accepts(self, certificate: Certificate) -> list[str]:
        found = faults(certificate, free=self.free)
        if self.monotone is not None and certificate.monotone_ulps_quarter > self.monotone:
            found.append(f"monotone within {certificate.monotone_ulps_quarter:g} ulp, not {self.monotone:g}")
        return found


@dataclass(frozen=True)
class Shape:
    """A form at its own degree, searched for a request."""

    form: Form
    degree: int
    request: Request

    def program(self, values: dict[str, float]) -> Program:
        r = self.request
        return self.form.build(r.name, r.function, r.direction, r.fmt, self.degree, values, budget=r.degree)


def degree_within_budget(form: Form, request: Request) -> int | None:
    """The largest degree of a form with at most N + 1 FMA-pipe and N + 6 packed instructions; None if none fits."""
    n = request.degree
    for degree in range(n + 1, 0, -1):
        names = form.free_names(degree)
        if degree < form.least_degree or not names or len(names) > n + 1 or (len(names) > n and not {"c0", "d0"} & set(names)):
            continue
        try:
            counts = form.build("budget", request.function, request.direction, request.fmt, degree,
                                dict.fromkeys(names, 0.5) | {"clamp": 4.0}).counts  # fmt: skip
        except CoefficientError:
            return None
        if counts.fma <= n + 1 and counts.instructions <= n + 6:
            return degree
    return None


def shapes(request: Request) -> list[Shape]:
    """The searched forms that serve the target within the budget; the named form at its own degree, if one is."""
    if request.form is not None:
        form = get_form(request.form)
        fits = form.serves(request.target) and request.degree >= form.least_degree and bool(form.free_names(request.degree))
        return [Shape(form, request.degree, request)] if fits and not form.parts else []
    found = []
    for form in SEARCHED:
        degree = degree_within_budget(form, request) if form.serves(request.target) else None
        if degree is not None:
            found.append(Shape(form, degree, request))
    return found
