"""The functions that programs stand in for, with rigorous values.

Values are balls of python-flint's ``arb``: an interval that provably contains the real number. A
rounded result is taken only when both ends of the ball round to it; otherwise the working precision
is doubled (silu(2^-133) in BF16 lies 2^-268 from a rounding boundary and needs about 300 bits).

Directions: ``forward`` is the function, ``backward`` its derivative.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from polyfma.errors import PolyfmaError, UnknownNameError
from polyfma.files import replacing
from polyfma.formats import Bits, Format, Values, get_format

if TYPE_CHECKING:
    from flint import arb

DIRECTIONS = ("forward", "backward")
Ball = Any  # flint.arb; python-flint's stubs do not type its operators


# Each ball function takes the parameter (None where the function has none) and x, and returns a ball.
def _sigma(x: Ball) -> Ball:
    return 1 / (1 + (-x).exp())


def _sigmoid(n: Ball, x: Ball) -> Ball:
    return _sigma(x) / n if n is not None else _sigma(x)


def _sigmoid_prime(n: Ball, x: Ball) -> Ball:
    product = _sigma(x) * _sigma(-x)
    return product / n if n is not None else product


def _tanh(_: Ball, x: Ball) -> Ball:
    return x.tanh()


def _sech2(x: Ball) -> Ball:
    return 4 * _sigma(2 * x) * _sigma(-2 * x)


def _tanh_prime(_: Ball, x: Ball) -> Ball:
    return _sech2(x)


def _silu(beta: Ball, x: Ball) -> Ball:
    return x * _sigma(x * (1 if beta is None else beta))


def _silu_prime(beta: Ball, x: Ball) -> Ball:
    u = x * (1 if beta is None else beta)
    return _sigma(u) * (1 + u * _sigma(-u))


def _gelu(_: Ball, x: Ball) -> Ball:
    import flint

    return x * (-x / flint.arb(2).sqrt()).erfc() / 2


def _gelu_prime(_: Ball, x: Ball) -> Ball:
    import flint

    density = (-x * x / 2).exp() / (2 * flint.arb.pi()).sqrt()
    return (-x / flint.arb(2).sqrt()).erfc() / 2 + x * density


def _gelu_tanh_argument(x: Ball) -> tuple[Ball, Ball]:
    """2u and d(2u)/dx for u = sqrt(2/pi) (x + 0.044715 x^3)."""
    import flint

    scale = 2 * (2 / flint.arb.pi()).sqrt()
    cubic = flint.fmpq(44715, 1000000)
    return scale * (x + cubic * x * x * x), scale * (1 + 3 * cubic * x * x)


def _gelu_tanh(_: Ball, x: Ball) -> Ball:
    return x * _sigma(_gelu_tanh_argument(x)[0])


def _gelu_tanh_prime(_: Ball, x: Ball) -> Ball:
    u, slope = _gelu_tanh_argument(x)
    return _sigma(u) * (1 + x * slope * _sigma(-u))


def _softcap(cap: Ball, x: Ball) -> Ball:
    return cap * (x / cap).tanh()


def _softcap_prime(cap: Ball, x: Ball) -> Ball:
    return _sech2(x / cap)


def _exp2(_: Ball, x: Ball) -> Ball:
    import flint

    return (x * flint.arb.const_log2()).exp()


def _exp2_prime(_: Ball, x: Ball) -> Ball:
    import flint

    return flint.arb.const_log2() * _exp2(_, x)


@dataclass(frozen=True)
class Shape:
    """What is known of a function or derivative without computing it.

    ``symmetry``: ``odd``; ``even``; ``centred`` (f(x) + f(-x) = limits[0] + limits[1], odd about its
    middle); ``residual`` (f(x) - f(-x) = x); ``none``.
    ``limits``: at -inf and +inf. ``range``: bounds of its values, infinite where they are not the limits.
    """

    symmetry: str
    limits: tuple[float, float]
    range: tuple[float, float]


@dataclass(frozen=True)
class _Family:
    forward: Callable[[Ball, Ball], Ball]
    backward: Callable[[Ball, Ball], Ball]
    shapes: tuple[Shape, Shape]
    formula: str
    parameter: str | None = None
    needs_parameter: bool = False
    domain: tuple[float, float] | None = None


_INF = float("inf")
_SIGMOID = Shape("centred", (0.0, 1.0), (0.0, 1.0))
_TANH = Shape("odd", (-1.0, 1.0), (-1.0, 1.0))
_BUMP = Shape("even", (0.0, 0.0), (0.0, 1.0))
_GATE = Shape("residual", (-0.0, _INF), (-_INF, _INF))
_GATE_SLOPE = Shape("centred", (0.0, 1.0), (-_INF, _INF))
_FAMILIES = {
    "sigmoid": _Family(_sigmoid, _sigmoid_prime, (_SIGMOID, Shape("even", (0.0, 0.0), (0.0, 0.25))),
                       "1/(1 + exp(-x))", parameter="n (divides the value, as in sigmoid attention over n keys)"),
    "tanh": _Family(_tanh, _tanh_prime, (_TANH, _BUMP), "tanh(x)"),
    "silu": _Family(_silu, _silu_prime, (_GATE, _GATE_SLOPE), "x/(1 + exp(-beta x)), beta = 1",
                    parameter="beta"),
    "gelu": _Family(_gelu, _gelu_prime, (_GATE, _GATE_SLOPE), "x Phi(x), exact"),
    "gelu-tanh": _Family(_gelu_tanh, _gelu_tanh_prime, (_GATE, _GATE_SLOPE),
                         "x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))"),
    "softcap": _Family(_softcap, _softcap_prime, (_TANH, _BUMP), "cap tanh(x/cap)", parameter="cap",
                       needs_parameter=True),
    "exp2": _Family(_exp2, _exp2_prime, (Shape("none", (0.0, _INF), (1.0, 2.0)),) * 2,
                    "2^f on the fraction 0 <= f <= 1", domain=(0.0, 1.0)),
}  # fmt: skip
_NAME = re.compile(r"(?P<family>[a-z0-9]+(?:-tanh)?)(?:-(?P<parameter>[0-9]+(?:\.[0-9]+)?))?")


@dataclass(frozen=True)
class Function:
    """A function in one direction. Build it with :func:`get_function`.

    ``name`` is the family with its parameter (``silu-1.702``, ``softcap-50``, ``sigmoid-4096``).
    """

    name: str
    direction: str
    family: str
    parameter: str | None
    shape: Shape
    formula: str
    domain: tuple[float, float] | None

    def ball(self, x: arb) -> arb:
        """The ball that contains f(x), at flint's current working precision. x must be finite."""
        import flint

        family = _FAMILIES[self.family]
        parameter = None if self.parameter is None else flint.arb(_fraction(self.parameter))
        return (family.forward if self.direction == "forward" else family.backward)(parameter, x)

    def values(self, x: ArrayLike) -> Values:
        """f at float64 points, within one float64 ulp of the real number. Any shape; limits at +-inf.

        Outside the domain (exp2: [0, 1]) the value is NaN.
        """
        array = np.asarray(x, dtype=np.float64)
        inside = self._inside(array).flat
        flat = [
            _float_of(self._enclose(float(v), 100)) if ok else self._special(float(v))
            for v, ok in zip(array.flat, inside, strict=True)
        ]
        return np.array(flat, dtype=np.float64).reshape(array.shape)

    def rounded(self, bits: ArrayLike, fmt: str | Format) -> Bits:
        """f correctly rounded to ``fmt`` at every input bit pattern; any format, any shape."""
        f = get_format(fmt)
        array = f.as_bits(bits)
        return self._tabulate(array.ravel(), f)[1].reshape(array.shape)

    def table(self, fmt: str | Format) -> Table:
        """Values at all 65,536 inputs of a 16-bit format; computed once, then read from the cache."""
        return _table(self, get_format(fmt))

    def zero_value(self) -> float:
        """f(0)."""
        return float(self.values(0.0))

    def _inside(self, x: Values) -> NDArray[np.bool_]:
        """Where f has a finite argument in its domain."""
        if self.domain is None:
            return np.isfinite(x)
        return np.asarray((x >= self.domain[0]) & (x <= self.domain[1]))

    def _special(self, x: float) -> float:
        """The value where :meth:`_inside` is false: the limit at an infinity, else NaN."""
        if np.isnan(x) or self.domain is not None:
            return float("nan")
        family = _FAMILIES[self.family]
        low, high = self.shape.limits
        limit = low if x < 0 else high
        if family.parameter == "cap" and self.direction == "forward":
            return limit * float(self.parameter or 1)
        if self.family == "sigmoid" and self.parameter is not None:
            return limit / float(self.parameter)
        return limit

    def _enclose(self, x: float, bits: int) -> Ball:
        """A ball with at least 60 good bits, or one that float64 cannot tell from zero."""
        import flint

        with flint.ctx.workprec(bits):
            ball = self.ball(flint.arb(x))
        if ball.rel_accuracy_bits() >= 60 or (bits > 400 and float(ball.abs_upper()) < 2.0**-1000):
            return ball
        if x == 0 and ball.is_exact():
            return ball
        return self._enclose(x, 2 * bits)

    def _tabulate(self, bits: Bits, fmt: Format) -> tuple[Values, Bits]:
        """Float64 values and correctly rounded bit patterns."""
        inputs = fmt.decode(bits)
        inside = self._inside(inputs)
        balls = [self._enclose(x, 100) if ok else None for x, ok in zip(inputs, inside, strict=True)]
        exact = np.array([self._special(x) if b is None else _float_of(b) for x, b in zip(inputs, balls, strict=True)])
        low = np.array([v if b is None else float(b.lower()) for v, b in zip(exact, balls, strict=True)])
        high = np.array([v if b is None else float(b.upper()) for v, b in zip(exact, balls, strict=True)])
        finite = inside & (inputs != 0)
        # float() rounds to nearest, so step outwards before the ends are rounded to the format.
        low_bits = fmt.encode(np.where(finite, np.nextafter(low, -np.inf), low))
        high_bits = fmt.encode(np.where(finite, np.nextafter(high, np.inf), high))
        rounded = low_bits.copy()
        for i in np.flatnonzero(finite & (low_bits != high_bits)):
            rounded[i] = self._decide(float(inputs[i]), fmt)
        rounded[inputs == 0] = self._at_zero(inputs[inputs == 0], fmt)
        return exact, rounded

    def _decide(self, x: float, fmt: Format) -> int:
        """The rounding of f(x) with as much precision as both ends of the ball need to agree."""
        import flint

        precision = 200
        while precision <= 1 << 16:
            with flint.ctx.workprec(precision):
                ball = self.ball(flint.arb(x))
                if ball.is_finite():
                    ends = [fmt.round_exact(*(int(v) for v in end.man_exp())) for end in (ball.lower(), ball.upper())]
                    if ends[0] == ends[1]:
                        return ends[0]
                    # Both round to a zero: the sign is that of the real number, which no end shows.
                    if (ends[0] | ends[1]) == fmt.sign_bit and precision > 800:
                        return fmt.sign_bit if x < 0 and self.shape.range[0] < 0 else 0
            precision *= 2
        raise PolyfmaError(f"{self.name} {self.direction} at {x!r} could not be rounded to {fmt} with {precision} bits")

    def _at_zero(self, zeros: Values, fmt: Format) -> Bits:
        value = np.full(zeros.shape, self.zero_value())
        return fmt.encode(np.copysign(value, zeros) if value.size and value[0] == 0 else value)


@dataclass(frozen=True)
class Table:
    """A function over a whole 16-bit format, indexed by input bit pattern.

    ``exact``: float64, within an ulp of the real value. ``rounded``: the correctly rounded bits.
    """

    exact: Values
    rounded: Bits


@lru_cache(maxsize=256)
def get_function(name: str, direction: str = "forward") -> Function:
    """The Function of that name: ``silu``, ``silu-1.702``, ``softcap-50``, ...

    Raises UnknownNameError for an unknown family, direction or parameter.
    """
    if not isinstance(name, str) or len(name) > 64:
        raise UnknownNameError(f"a function is named by a short text, not {str(name)[:40]!r}")
    if direction not in DIRECTIONS:
        raise UnknownNameError(f"unknown direction {direction!r}; known: forward, backward")
    match = _NAME.fullmatch(name)
    family = _FAMILIES.get(match["family"]) if match else None
    if match is None or family is None:
        raise UnknownNameError(f"unknown function {name!r}; known: {', '.join(function_names())}")
    parameter = match["parameter"]
    if parameter is not None and family.parameter is None:
        raise UnknownNameError(f"function {name!r}: {match['family']} takes no parameter")
    if parameter is None and family.needs_parameter:
        raise UnknownNameError(f"function {name!r} needs its {family.parameter}, for example {name}-50")
    if parameter is not None and float(parameter) <= 0:
        raise UnknownNameError(f"function {name!r}: the parameter must be positive")
    shape = family.shapes[DIRECTIONS.index(direction)]
    if parameter is not None and match["family"] == "softcap" and direction == "forward":
        shape = Shape(shape.symmetry, shape.limits, (-float(parameter), float(parameter)))
    if parameter is not None and match["family"] == "sigmoid":
        shape = Shape(shape.symmetry, shape.limits, (0.0, shape.range[1] / float(parameter)))
    return Function(name, direction, match["family"], parameter, shape, family.formula, family.domain)


def function_scale(target: Function) -> float:
    """The x that stands for 1: the cap of softcap, 1/beta of SiLU."""
    if target.parameter is None or target.family == "sigmoid":
        return 1.0
    return float(target.parameter) if target.family == "softcap" else 1 / float(target.parameter)


def function_names() -> list[str]:
    """The families; those with a parameter show it in brackets."""
    return [
        f"{n}-CAP" if f.needs_parameter else (f"{n}[-{(f.parameter or '').split()[0].upper()}]" if f.parameter else n)
        for n, f in _FAMILIES.items()
    ]


def _fraction(text: str) -> Any:
    import flint

    whole, _, decimals = text.partition(".")
    return flint.fmpq(int(whole + decimals), 10 ** len(decimals))


def _float_of(ball: Ball) -> float:
    return float(ball.mid())


# -- cached tables -----------------------------------------------------------------------------------


def cache_directory() -> Path:
    """Where tables are kept: $POLYFMA_CACHE_DIR, else polyfma in $XDG_CACHE_HOME or ~/.cache."""
    chosen = os.environ.get("POLYFMA_CACHE_DIR")
    if chosen:
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "polyfma"


@cache
def _source_key() -> str:
    """Tables are valid for the code that made them: a change of either source file makes new ones."""
    here = Path(__file__)
    text = b"".join((here.parent / name).read_bytes() for name in ("formats.py", "functions.py"))
    return hashlib.sha256(text).hexdigest()[:12]


@lru_cache(maxsize=64)
def _table(function: Function, fmt: Format) -> Table:
    path = cache_directory() / f"{function.name}.{function.direction}.{fmt}.{_source_key()}.npz"
    stored = _read_table(path)
    if stored is None:
        stored = Table(*function._tabulate(fmt.all_bits(), fmt))
        _write_table(path, stored.exact, stored.rounded)
    # Shared by everyone who asks: a write would change certificates.
    stored.exact.setflags(write=False)
    stored.rounded.setflags(write=False)
    return stored


def _read_table(path: Path) -> Table | None:
    """The cached table; None where there is none or the file is damaged, and it is then made anew."""
    try:
        with np.load(path) as data:
            exact, rounded = data["exact"], data["rounded"]
            intact = str(data["digest"]) == _table_digest(exact, rounded)
    except Exception:  # any damage whatever to a cache file means only that it is rebuilt
        return None
    return Table(exact, rounded) if intact and exact.shape == rounded.shape == (1 << 16,) else None


def _table_digest(exact: Values, rounded: NDArray[Any]) -> str:
    return hashlib.sha256(exact.tobytes() + rounded.tobytes()).hexdigest()


def _write_table(path: Path, exact: Values, rounded: Bits) -> None:
    """Replace the cache file whole; a directory that cannot be written only costs the time again."""
    try:
        with replacing(path) as temporary:
            np.savez(temporary, exact=exact, rounded=rounded, digest=_table_digest(exact, rounded))
    except OSError:
        return


