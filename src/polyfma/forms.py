"""Forms: how the coefficients of a reduced polynomial become a Program, and the linear model behind it.

A form knows two things. :meth:`Form.build` writes the operations. :meth:`Form.model` gives the same
computation in real arithmetic for x >= 0 as ``offset + multiplier * (matrix @ coefficients)``, which is
what fits solve. Symmetric functions need no other side.

Words: t = min(|x|, Lc) with the clamp Lc; p is the polynomial; the centre is 1/2 for sigmoid and for the
derivatives of SiLU and GELU, 0 for tanh.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyfma.errors import CoefficientError, PolyfmaError, UnknownNameError
from polyfma.formats import Format, Values, get_format
from polyfma.functions import Function, get_function
from polyfma.program import Op, Program

Model = tuple[Values, Values, NDArray[np.float64]]
THRESHOLD = 1.25  # where the published two-row sigmoid changes rows, b3_deployed


class Draft:
    """Collects the operations and constants of a program while a form writes it."""

    def __init__(self, target: Function, fmt: Format, degree: int, values: Mapping[str, float]) -> None:
        self.target, self.fmt, self.degree, self.values = target, fmt, degree, values
        self.consts: dict[str, str] = {}
        self.ops: list[Op] = []
        self.formats: dict[str, Format] = {"x": fmt}

    def const(self, name: str, value: float | None = None, fmt: Format | None = None) -> str:
        """A constant, by default the coefficient of that name; refused if its format loses it."""
        f = fmt or self.fmt
        number = float(self.values[name] if value is None else value)
        if name == "clamp" and number <= 0:
            raise CoefficientError(f"clamp {number!r} must be positive")
        self.consts[name] = f.hex(f.constant(number, what=f"coefficient {name} ="))
        return name

    def bits(self, name: str, bits: int, fmt: Format | None = None) -> str:
        """A constant given as a bit pattern."""
        self.consts[name] = (fmt or self.fmt).hex(bits)
        return name

    def __call__(self, op: str, *src: str, dst: str | None = None, fmt: Format | None = None) -> str:
        f = fmt or self.fmt
        name = dst or f"r{len(self.ops)}"
        self.ops.append(Op(op, name, src, f.name))
        return name

    def horner(self, t: str, names: Sequence[str], *, last: str = "fma", dst: str | None = None,
               fmt: Format | None = None) -> str:  # fmt: skip
        """names[0] + t names[1] + t^2 names[2] + ...; one fma a step, the last one of the given kind."""
        total = names[-1]
        for i, name in reversed(list(enumerate(names[:-1]))):
            total = self(last if i == 0 else "fma", total, t, name, dst=dst if i == 0 else None, fmt=fmt)
        return total

    def coefficient_names(self, first: int, last: int, prefix: str = "c", fmt: Format | None = None) -> list[str]:
        return [self.const(f"{prefix}{k}", fmt=fmt) for k in range(first, last + 1)]

    def clamped_magnitude(self) -> str:
        """t = min(|x|, Lc); NaN stays NaN."""
        return self("min.nan", self("abs", "x"), self.const("clamp"), dst="t")

    def clamped_signed(self) -> str:
        """x limited to [-Lc, Lc] in one instruction; NaN stays NaN."""
        return self("min.nan.xorsign.abs", "x", self.const("clamp"), dst="ts")

    def centre(self) -> str:
        return self.const("centre", centre_of(self.target))


def centre_of(target: Function) -> float:
    """The middle of the limits: 1/2 for sigmoid, 0 for tanh."""
    low, high = target._special(-np.inf), target._special(np.inf)
    return (low + high) / 2


Build = Callable[[Draft], Mapping[str, str]]
ModelFunction = Callable[[Function, Values, int, float], Model]


@dataclass(frozen=True)
class Part:
    """A polynomial of a form that is fitted by itself, as another form: ``coupled`` has two."""

    form: str
    direction: str
    extra_degree: int = 0
    prefix: str = ""


@dataclass(frozen=True)
class Form:
    """One way to write a program.

    ``formula`` is what it computes; ``kind`` the symmetries (:class:`~polyfma.functions.Shape`) it serves;
    ``published`` whether it is in the published operation order. ``free_names(degree)`` are the
    coefficients that a fit chooses, in the order of the model's columns. A form with ``parts`` has no model
    of its own; its coefficients are those of its parts.
    """

    name: str
    formula: str
    kinds: tuple[str, ...]
    build_ops: Build
    model_of: ModelFunction
    names_of: Callable[[int], list[str]]
    published: bool = False
    clamped: bool = True
    note: str = ""
    parts: tuple[Part, ...] = ()

    def serves(self, target: Function) -> bool:
        return target.shape.symmetry in self.kinds

    def free_names(self, degree: int) -> list[str]:
        return self.names_of(degree)

    def model(self, target: Function, x: Values, degree: int, clamp: float) -> Model:
        """(offset, multiplier, matrix) at x >= 0; the matrix has a column for each free coefficient."""
        return self.model_of(target, np.asarray(x, dtype=np.float64), degree, clamp)

    def build(self, name: str, function: str, direction: str, fmt: str | Format, degree: int,
              values: Mapping[str, float]) -> Program:  # fmt: skip
        """The Program with these coefficient values (and ``clamp``), each rounded to the format.

        Raises CoefficientError for one that is not representable, becomes subnormal in fp16 or overflows,
        PolyfmaError if a coefficient is missing or the form does not serve the function.
        """
        target, f = get_function(function, direction), get_format(fmt)
        if not self.serves(target):
            raise PolyfmaError(f"form {self.name} serves {'/'.join(self.kinds)} functions; {function} {direction}"
                               f" is {target.shape.symmetry}: {', '.join(forms_for(target))} do")  # fmt: skip
        needed = [*self.free_names(degree), *(["clamp"] if self.clamped else [])]
        missing = [n for n in needed if n not in values]
        if missing:
            raise PolyfmaError(f"form {self.name} at degree {degree} needs {', '.join(needed)}; missing: {', '.join(missing)}")
        draft = Draft(target, f, degree, values)
        outputs = self.build_ops(draft)
        return Program(name, function, direction, f.name, degree, self.name, ("x",), draft.consts, tuple(draft.ops), outputs)


# -- linear models -----------------------------------------------------------------------------------


def _powers(x: Values, powers: Sequence[int]) -> NDArray[np.float64]:
    return np.stack([x**k for k in powers], axis=-1)


def _names(first: int, extra: int = 0, prefix: str = "c") -> Callable[[int], list[str]]:
    return lambda degree: [f"{prefix}{k}" for k in range(first, degree + 1 + extra)]


def _centred_model(target: Function, x: Values, degree: int, clamp: float) -> Model:
    t = np.minimum(x, clamp)
    return np.full_like(x, centre_of(target)), np.ones_like(x), _powers(t, range(1, degree + 1))


def _even_model(target: Function, x: Values, degree: int, clamp: float) -> Model:
    return np.zeros_like(x), np.ones_like(x), _powers(np.minimum(x, clamp), range(degree + 1))


def _beyond(x: Values, clamp: float, multiplier: Values) -> tuple[Values, Values]:
    """Past the clamp the select takes relu(x): offset x, nothing of the polynomial."""
    return np.where(x > clamp, x, x / 2), np.where(x > clamp, 0.0, multiplier)


def _residual_tp_model(target: Function, x: Values, degree: int, clamp: float) -> Model:
    offset, multiplier = _beyond(x, clamp, x)
    return offset, multiplier, _powers(np.minimum(x, clamp), range(1, degree + 1))


def _residual_even_model(target: Function, x: Values, degree: int, clamp: float) -> Model:
    offset, multiplier = _beyond(x, clamp, np.ones_like(x))
    return offset, multiplier, _powers(np.minimum(x, clamp), range(degree + 1))


def _product_model(target: Function, x: Values, degree: int, clamp: float) -> Model:
    return x / 2, x, _powers(np.minimum(x, clamp), range(1, degree + 1))


# -- published forms, in the published operation order ---------------------------------------------------


def _signed_polynomial(d: Draft) -> str:
    """sign(x) p(t) with p(0) = 0."""
    t = d.clamped_magnitude()
    names = d.coefficient_names(1, d.degree)
    return d("copysign", d("mul", d.horner(t, names), t, dst="p"), "x", dst="s")


def _odd(d: Draft) -> Mapping[str, str]:
    return {"value": _signed_polynomial(d)}


def _centred_odd(d: Draft) -> Mapping[str, str]:
    return {"value": d("add", _signed_polynomial(d), d.centre(), dst="y")}


def _even(d: Draft) -> Mapping[str, str]:
    return {"value": d.horner(d.clamped_magnitude(), d.coefficient_names(0, d.degree), dst="y")}


def _sigmoid_product(d: Draft) -> Mapping[str, str]:
    gate = d("add", _signed_polynomial(d), d.const("centre", 0.5), dst="g")
    return {"value": d("mul", gate, "x", dst="y")}


def _relu_beyond_clamp(d: Draft, y: str) -> Mapping[str, str]:
    """Our addition to the published residual rows, which leave |x| > Lc undefined: relu(x) by a select."""
    beyond = d("set.gt", d.ops[0].dst, "clamp", dst="beyond")
    return {"value": d("select", beyond, d("max", "x", d.const("zero", 0.0), dst="relu"), y, dst="out")}


def _residual_tp(d: Draft) -> Mapping[str, str]:
    t = d.clamped_magnitude()
    p = d("mul", d.horner(t, d.coefficient_names(1, d.degree)), t, dst="p")
    half = d("mul", "x", d.const("half", 0.5), dst="h")
    return _relu_beyond_clamp(d, d("fma", t, p, half, dst="y"))


def _residual_even(d: Draft) -> Mapping[str, str]:
    t = d.clamped_magnitude()
    p = d.horner(t, d.coefficient_names(0, d.degree), dst="p")
    return _relu_beyond_clamp(d, d("fma", "x", d.const("half", 0.5), p, dst="y"))


# -- two coefficient rows and the coupled block, as deployed in sigmoid attention --------------------------


def _two_row_names(degree: int) -> list[str]:
    return [f"a{k}" for k in range(1, degree + 1)] + [f"b{k}" for k in range(degree + 1)]


def _two_row_model(target: Function, x: Values, degree: int, clamp: float) -> Model:
    t = np.minimum(x, clamp)
    high = (t >= THRESHOLD)[:, None]
    matrix = np.concatenate([np.where(high, 0.0, _powers(t, range(1, degree + 1))),
                             np.where(high, _powers(t, range(degree + 1)), 0.0)], axis=1)  # fmt: skip
    return np.full_like(x, centre_of(target)), np.ones_like(x), matrix


def _two_row_value(d: Draft, t: str) -> str:
    high = d("set.ge", t, d.const("threshold", THRESHOLD), dst="high")
    zero = d.const("zero", 0.0)
    rows = [(zero, d.const("b0"))] + [(d.const(f"a{k}"), d.const(f"b{k}")) for k in range(1, d.degree + 1)]
    chosen = [d("select", high, b, a, dst=f"k{i}") for i, (a, b) in enumerate(rows)]
    signed = d("copysign", d.horner(t, chosen, dst="p"), "x", dst="s")
    # max.nan, so that the final limit at 0 keeps a NaN.
    return d("max.nan", d("add", signed, d.centre(), dst="y"), zero, dst="value")


def _two_row(d: Draft) -> Mapping[str, str]:
    return {"value": _two_row_value(d, d.clamped_magnitude())}


def _coupled_names(degree: int) -> list[str]:
    return [*_two_row_names(degree), *(f"d{k}" for k in range(degree + 2))]


def _coupled(d: Draft) -> Mapping[str, str]:
    """The two-row value and, from the same t, an even derivative of one degree more, limited below at 0."""
    t = d.clamped_magnitude()
    value = _two_row_value(d, t)
    slope = d.horner(t, d.coefficient_names(0, d.degree + 1, "d"), dst="q")
    return {"value": value, "derivative": d("max.nan", slope, "zero", dst="derivative")}


# -- the exp2 fraction ---------------------------------------------------------------------------------


def _exp2_d1(d: Draft) -> Mapping[str, str]:
    return {"value": d("add", "x", d.const("c0", 1.0), dst="y")}


def _exp2_pwl2(d: Draft) -> Mapping[str, str]:
    """1 + a f + b max(f - 1/2, 0); b = 2(1 - a) keeps the value 2 at f = 1."""
    line = d("fma", d.const("a"), "x", d.const("one", 1.0), dst="line")
    knee = d("max.nan", d("add", "x", d.const("knee", -0.5)), d.const("zero", 0.0), dst="m")
    return {"value": d("fma", d.const("b"), knee, line, dst="y")}


def _exp2_d2(d: Draft) -> Mapping[str, str]:
    """1 + a f + b f^2; b = 1 - a keeps the value 2 at f = 1."""
    return {"value": d.horner("x", [d.const("one", 1.0), d.const("a"), d.const("b")], dst="y")}


def _exp2_d3(d: Draft) -> Mapping[str, str]:
    return {"value": d.horner("x", d.coefficient_names(0, 3), dst="y")}


def _exp2_pwl2_model(target: Function, x: Values, degree: int, clamp: float) -> Model:
    return np.ones_like(x), np.ones_like(x), np.stack([x, np.maximum(x - 0.5, 0)], axis=-1)


def _exp2_polynomial_model(target: Function, x: Values, degree: int, clamp: float) -> Model:
    return np.ones_like(x), np.ones_like(x), _powers(x, range(1, degree + 1))


def _exp2_d3_model(target: Function, x: Values, degree: int, clamp: float) -> Model:
    return np.zeros_like(x), np.ones_like(x), _powers(x, range(4))


_TAIL_NOTE = "relu(x) beyond Lc by set, max and select is our addition; the published rows leave it undefined"
_ALL = (
    Form("odd", "sign(x) p(t), p(0) = 0", ("odd",), _odd, _centred_model, _names(1), published=True),
    Form("centred-odd", "centre + sign(x) p(t), p(0) = 0", ("centred",), _centred_odd, _centred_model, _names(1),
         published=True),
    Form("even", "p(t)", ("even",), _even, _even_model, _names(0), published=True),
    Form("residual-tp", "x/2 + t p(t), p(0) = 0; relu(x) beyond Lc", ("residual",), _residual_tp,
         _residual_tp_model, _names(1), published=True, note=_TAIL_NOTE),
    Form("residual-even", "x/2 + p(t), p(0) free; relu(x) beyond Lc", ("residual",), _residual_even,
         _residual_even_model, _names(0), published=True, note=_TAIL_NOTE),
    Form("sigmoid-product", "x (1/2 + sign(x) p(t)), p(0) = 0", ("residual",), _sigmoid_product, _product_model,
         _names(1), published=True, note="NaN at -inf where p(Lc) = 1/2, else an error that grows with |x|"),
    Form("two-row", "max(centre + sign(x) p(t), 0), p by one of two coefficient rows at t >= 5/4", ("centred",),
         _two_row, _two_row_model, _two_row_names, published=True),
    Form("coupled", "the two-row value and an even derivative q(t) from one t", ("centred",), _coupled, _two_row_model,
         _coupled_names, published=True, parts=(Part("two-row", "forward"), Part("even", "backward", 1, "d"))),
    Form("exp2-d1", "1 + f", ("none",), _exp2_d1, _exp2_polynomial_model, lambda degree: [], published=True,
         clamped=False),
    Form("exp2-pwl2", "1 + a f + b max(f - 1/2, 0), b = 2 (1 - a)", ("none",), _exp2_pwl2, _exp2_pwl2_model,
         lambda degree: ["a", "b"], published=True, clamped=False),
    Form("exp2-d2", "1 + a f + b f^2, b = 1 - a", ("none",), _exp2_d2, _exp2_polynomial_model,
         lambda degree: ["a", "b"], published=True, clamped=False),
    Form("exp2-d3", "c0 + c1 f + c2 f^2 + c3 f^3", ("none",), _exp2_d3, _exp2_d3_model,
         lambda degree: [f"c{k}" for k in range(4)], published=True, clamped=False),
)  # fmt: skip
FORMS: Mapping[str, Form] = {form.name: form for form in _ALL}
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


def values_of(program: Program) -> dict[str, Any]:
    """The numbers from which the program's form would build it again."""
    return {name: program.const_value(name) for name in program.consts}
