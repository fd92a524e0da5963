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

import numpy as np
from numpy.typing import NDArray

from polyfma.errors import CoefficientError, PolyfmaError
from polyfma.formats import FP32, Format, Values, get_format
from polyfma.functions import Function, get_function
from polyfma.program import Op, Program

Model = tuple[Values, Values, NDArray[np.float64]]


class Draft:
    """Collects the operations and constants of a program while a form writes it.

    ``fmt`` is the format of the arithmetic, ``outer`` that of input and output; they differ only where a
    program computes in a wider format inside. The input is limited in ``outer`` and converted once.
    """

    def __init__(self, target: Function, outer: Format, degree: int, values: Mapping[str, float],
                 inner: Format | None = None) -> None:  # fmt: skip
        self.target, self.outer, self.degree, self.values = target, outer, degree, values
        self.fmt = inner or outer
        self.consts: dict[str, str] = {}
        self.ops: list[Op] = []

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
        if op == "fma.relu" and f is FP32:  # there is no such instruction: a max of its own
            return self("max.nan", self("fma", *src, fmt=f), self.const("zero_in", 0.0, fmt=f), dst=dst, fmt=f)
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
        magnitude = self("abs", "x", fmt=self.outer)
        return self.inside(self("min.nan", magnitude, self.const("clamp", fmt=self.outer), dst="t", fmt=self.outer))

    def clamped_signed(self) -> str:
        """x limited to [-Lc, Lc] in one instruction; NaN stays NaN."""
        clamp = self.const("clamp", fmt=self.outer)
        return self.inside(self("min.nan.xorsign.abs", "x", clamp, dst="ts", fmt=self.outer))

    def inside(self, name: str) -> str:
        """A value of the outer format in the format of the arithmetic."""
        return name if self.fmt is self.outer else self("cvt", name, dst=f"{name}_in")

    def result(self, name: str) -> dict[str, str]:
        """The output of a program, converted back where the arithmetic was wider."""
        return {"value": name if self.fmt is self.outer else self("cvt", name, dst="out", fmt=self.outer)}

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
    ``published`` whether it is in the published operation order, ``hardware`` whether it is the
    GPU's own function, with nothing to fit. ``free_names(degree)`` are the
    coefficients that a fit chooses, in the order of the model's columns. A form with ``parts`` has no model
    of its own; its coefficients are those of its parts. ``inner`` is a wider format of the arithmetic.
    ``tail`` says what makes the value at the clamp the limit: the coefficients themselves ("fitted"), or together with
    a final limit, so that they may pass it ("limited"), a residual that they bring to 0 ("residual"), or nothing in
    them, the form is exact there whatever they are ("exact").
    A form that is not linear in its coefficients has the model of its product multiplied out, and
    ``own_coefficients`` to factor that model's solution (None where it does not factor).
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
    inner: str | None = None
    least_degree: int = 1
    families: tuple[str, ...] = ()
    slope: bool = False
    bounded: bool = False
    own_coefficients: Callable[[Values], Values | None] | None = None
    tail: str = "fitted"
    hardware: bool = False

    def serves(self, target: Function) -> bool:
        """Whether the form fits the target's symmetry; its ``families`` forward, derivatives only (``slope``), or
        only functions that keep within their limits (``bounded``), because the form cuts off what passes them."""
        of_family = not self.families or (target.family in self.families and (self.slope or target.direction == "forward"))
        of_slope = not self.slope or target.direction == "backward"
        in_range = not self.bounded or np.all(np.isfinite(target.shape.range))
        return bool(target.shape.symmetry in self.kinds and of_family and of_slope and in_range)

    def free_names(self, degree: int) -> list[str]:
        return self.names_of(degree)

    def model(self, target: Function, x: Values, degree: int, clamp: float) -> Model:
        """(offset, multiplier, matrix) at x >= 0; the matrix has a column for each free coefficient."""
        return self.model_of(target, np.asarray(x, dtype=np.float64), degree, clamp)

    def build(self, name: str, function: str, direction: str, fmt: str | Format, degree: int,
              values: Mapping[str, float], *, budget: int | None = None) -> Program:  # fmt: skip
        """The Program with these coefficient values (and ``clamp``), each rounded to the format.

        ``budget`` is the N of a default name dN, where the form itself uses another number of coefficients;
        it becomes the program's degree. Raises CoefficientError for a value that is not representable,
        becomes subnormal in fp16 or overflows, PolyfmaError if one is missing or the form does not serve
        the function.
        """
        target, f = get_function(function, direction), get_format(fmt)
        if not self.serves(target):
            whom = "/".join(self.families) if self.families else f"{'/'.join(self.kinds)} functions"
            raise PolyfmaError(f"form {self.name} serves {whom}; {function} {direction} is {target.shape.symmetry}")
        if degree < self.least_degree and not self.hardware:
            raise PolyfmaError(f"form {self.name} begins at degree {self.least_degree}, not {degree}")
        needed = [*self.free_names(degree), *(["clamp"] if self.clamped else [])]
        missing = [n for n in needed if n not in values]
        if missing:
            raise PolyfmaError(f"form {self.name} at degree {degree} needs {', '.join(needed)}; missing: {', '.join(missing)}")
        draft = Draft(target, f, degree, values, get_format(self.inner) if self.inner else None)
        outputs = self.build_ops(draft)
        return Program(name, function, direction, f.name, degree if budget is None else budget, self.name, ("x",),
                       draft.consts, tuple(draft.ops), outputs)  # fmt: skip


# -- linear models -----------------------------------------------------------------------------------


def powers(x: Values, powers: Sequence[int]) -> NDArray[np.float64]:
    return np.stack([x**k for k in powers], axis=-1)


def names(first: int, extra: int = 0, prefix: str = "c") -> Callable[[int], list[str]]:
    return lambda degree: [f"{prefix}{k}" for k in range(first, degree + 1 + extra)]


def centred_model(target: Function, x: Values, degree: int, clamp: float) -> Model:
    t = np.minimum(x, clamp)
    return np.full_like(x, centre_of(target)), np.ones_like(x), powers(t, range(1, degree + 1))


def even_model(target: Function, x: Values, degree: int, clamp: float) -> Model:
    return np.zeros_like(x), np.ones_like(x), powers(np.minimum(x, clamp), range(degree + 1))


def product_model(target: Function, x: Values, degree: int, clamp: float) -> Model:
    return x / 2, x, powers(np.minimum(x, clamp), range(1, degree + 1))
