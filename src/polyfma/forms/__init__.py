"""Forms: how the coefficients of a reduced polynomial become a Program, and the linear model behind it."""

from __future__ import annotations

from collections.abc import Mapping

from polyfma.errors import PolyfmaError, UnknownNameError
from polyfma.forms.base import Draft, Form, Model, Part, centre_of
from polyfma.forms.hardware import HARDWARE
from polyfma.forms.published import PUBLISHED
from polyfma.forms.searched import SEARCHED, WIDER
from polyfma.functions import Function

__all__ = ["FORMS", "Draft", "Form", "Model", "Part", "centre_of", "forms_for", "get_form", "published_form"]

FORMS: Mapping[str, Form] = {form.name: form for form in (*PUBLISHED, *SEARCHED, *WIDER, *HARDWARE)}
_PUBLISHED_FORM = {"odd": "odd", "centred": "centred-odd", "even": "even", "residual": "residual-tp"}


def get_form(name: str) -> Form:
    """The Form of that name. Raises UnknownNameError."""
    if name not in FORMS:
        raise UnknownNameError(f"unknown form {name!r}; known: {', '.join(FORMS)}")
    return FORMS[name]


def forms_for(target: Function) -> list[str]:
    """Names of the forms that serve a function in its direction."""
    return [name for name, form in FORMS.items() if form.serves(target)]


def published_form(target: Function) -> Form:
    """The form in which the controls of a function are published."""
    if target.shape.symmetry not in _PUBLISHED_FORM:
        raise PolyfmaError(f"{target.name} has no degree-D published form; use fit exp2 with form exp2-d1, exp2-pwl2, exp2-d2 or exp2-d3")
    return FORMS[_PUBLISHED_FORM[target.shape.symmetry]]
