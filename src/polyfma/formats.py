"""Number formats and their arithmetic, on numpy bit patterns.

A value of a 16-bit format travels as its ``uint16`` bit pattern, a value of ``fp32`` as ``uint32``.
Arithmetic decodes to float64, forms the exact result, and rounds once, to nearest with ties to even,
subnormals kept: what ``fma.rn``, ``mul.rn`` and ``add.rn`` do on the GPU.

Why float64 is enough for a fused multiply-add that rounds once: a product of two 24-bit significands
is exact in 53 bits, and the sum of the product and the addend is turned into the *round-to-odd*
float64 by an error-free transformation (Knuth's TwoSum). Rounding a round-to-odd value of 53 bits to
24 bits or fewer gives the correctly rounded result of the exact sum (Boldo and Melquiond 2008), so the
double rounding that plain float64 arithmetic would suffer cannot happen.

NaN results of arithmetic are the canonical NaN of the hardware (0x7fff, 0x7fffffff).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from polyfma.errors import CoefficientError, UnknownNameError

Bits: TypeAlias = NDArray[np.unsignedinteger[Any]]
Values: TypeAlias = NDArray[np.float64]


@dataclass(frozen=True)
class Format:
    """A binary floating-point format with IEEE 754 semantics.

    ``precision`` counts the significand bits with the hidden one; ``emin`` and ``emax`` are the
    exponents of the smallest and the largest normal number.
    """

    name: str
    width: int
    precision: int
    emin: int
    emax: int

    def __str__(self) -> str:
        return self.name

    @property
    def dtype(self) -> np.dtype[Any]:
        """The unsigned integer dtype that carries bit patterns."""
        return np.dtype(np.uint16 if self.width == 16 else np.uint32)

    @property
    def sign_bit(self) -> int:
        return 1 << (self.width - 1)

    @property
    def all_ones(self) -> int:
        """The mask that means *true*."""
        return (1 << self.width) - 1

    @property
    def nan_bits(self) -> int:
        """The canonical NaN that arithmetic returns."""
        return self.all_ones >> 1

    @property
    def inf_bits(self) -> int:
        return ((1 << (self.width - self.precision)) - 1) << (self.precision - 1)

    @property
    def max_bits(self) -> int:
        """The largest finite number."""
        return self.inf_bits - 1

    @property
    def max_finite(self) -> float:
        return float((2.0 - 2.0 ** (1 - self.precision)) * 2.0**self.emax)

    @property
    def min_normal(self) -> float:
        return float(2.0**self.emin)

    @property
    def hex_digits(self) -> int:
        return self.width // 4

    @cached_property
    def _decode_table(self) -> Values:
        return self._decode(np.arange(1 << 16, dtype=self.dtype))

    def all_bits(self) -> Bits:
        """Every bit pattern of a 16-bit format, shape ``(65536,)``, ascending."""
        if self.width != 16:
            raise UnknownNameError(f"{self.name} has 2^{self.width} values; only 16-bit formats are listed whole")
        return np.arange(1 << 16, dtype=self.dtype)

    def finite_bits(self) -> Bits:
        """Every finite bit pattern of a 16-bit format, in ascending order of value (-0 before +0)."""
        positive = np.arange(self.inf_bits, dtype=self.dtype)
        return np.concatenate([(positive | self.dtype.type(self.sign_bit))[::-1], positive])

    # -- values <-> bits -------------------------------------------------------------------------

    def _decode(self, bits: Bits) -> Values:
        with np.errstate(invalid="ignore"):
            if self.name == "bf16":
                return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32).astype(np.float64)
            native = np.float16 if self.width == 16 else np.float32
            return bits.view(native).astype(np.float64)

    def decode(self, bits: ArrayLike) -> Values:
        """Bit patterns to float64 values, exactly. Any shape. Raises CoefficientError for what is not a bit pattern."""
        array = self.as_bits(bits)
        if self.width == 16:
            return np.asarray(self._decode_table[array])
        return self._decode(np.atleast_1d(array)).reshape(array.shape)

    def as_bits(self, bits: ArrayLike) -> Bits:
        """Integers of any dtype as this format's bit patterns, refused where they are not."""
        array = np.asarray(bits)
        if array.dtype == self.dtype:
            return array
        if array.size and (array.dtype.kind not in "ui" or int(array.min()) < 0 or int(array.max()) > self.all_ones):
            raise CoefficientError(f"not {self.name} bit patterns: {array.dtype} values; {self.dtype} integers are")
        return array.astype(self.dtype)

    def encode(self, values: ArrayLike) -> Bits:
        """Float64 values to bit patterns, rounded once to nearest even. Any shape; NaN becomes canonical."""
        return self.pack(self.round(np.asarray(values, dtype=np.float64)))

    def pack(self, values: Values) -> Bits:
        """Bit patterns of values that already lie on the format's grid."""
        with np.errstate(invalid="ignore", over="ignore"):
            if self.name == "fp16":
                bits: Bits = values.astype(np.float16).view(np.uint16)
            else:
                bits = values.astype(np.float32).view(np.uint32)
                if self.width == 16:
                    bits = (bits >> np.uint32(16)).astype(np.uint16)
        return np.where(np.isnan(values), self.dtype.type(self.nan_bits), bits)

    def round(self, values: Values) -> Values:
        """The nearest value of the format, ties to even, overflow to infinity, as float64.

        Scaling by a power of two makes the format's last place the units of float64, where ``rint``
        rounds to even; below ``emin`` the last place stays that of the subnormals.
        """
        exponent = ((np.abs(values).view(np.int64) >> 52) - 1023).clip(min=self.emin)
        shift = self.precision - 1 - exponent
        scale = ((1023 + shift) << 52).view(np.float64)
        unscale = ((1023 - shift) << 52).view(np.float64)
        with np.errstate(invalid="ignore", over="ignore"):
            rounded = np.rint(values * scale) * unscale
        return np.where(np.abs(rounded) > self.max_finite, np.copysign(np.inf, rounded), rounded)

    def round_exact(self, mantissa: int, exponent: int) -> int:
        """The bit pattern nearest to ``mantissa * 2**exponent`` (Python integers, nothing rounded before)."""
        sign = self.sign_bit if mantissa < 0 else 0
        magnitude = abs(mantissa)
        if magnitude == 0:
            return 0
        top = max(magnitude.bit_length() - 1 + exponent, self.emin)
        drop = top - (self.precision - 1) - exponent
        if drop <= 0:
            kept = magnitude << -drop
        elif drop > magnitude.bit_length() + 1:  # far below the smallest subnormal; the shift would not fit memory
            kept = 0
        else:
            kept, rest = magnitude >> drop, magnitude & ((1 << drop) - 1)
            half = 1 << (drop - 1)
            kept += rest > half or (rest == half and kept & 1)
        # A significand that carries out lands on the next binade's first pattern by itself.
        pattern = ((top - self.emin) << (self.precision - 1)) + kept
        return sign | min(pattern, self.inf_bits)

    def ulp(self, values: Values) -> Values:
        """The distance between neighbouring numbers at each value's binade (subnormal spacing below ``emin``)."""
        exponent = ((np.abs(values).view(np.int64) >> 52) - 1023).clip(self.emin, self.emax)
        return ((exponent - (self.precision - 1) + 1023) << 52).view(np.float64)

    def ordinal(self, bits: Bits) -> NDArray[np.int64]:
        """Integers in the order of the values; -0 and +0 are neighbours, so that min and max can tell them."""
        wide = np.asarray(bits).astype(np.int64)
        return np.where(wide & self.sign_bit, self.sign_bit - 1 - wide, wide)

    def is_nan(self, bits: Bits) -> NDArray[np.bool_]:
        return np.asarray((bits & self.dtype.type(self.nan_bits)) > self.inf_bits)

    # -- arithmetic: bits in, bits out, one rounding -------------------------------------------------

    def fma(self, a: Bits, b: Bits, c: Bits) -> Bits:
        """``a * b + c``, rounded once."""
        with np.errstate(invalid="ignore", over="ignore"):
            return self.pack(self.round(_add_to_odd(self.decode(a) * self.decode(b), self.decode(c))))

    def mul(self, a: Bits, b: Bits) -> Bits:
        with np.errstate(invalid="ignore"):
            return self.pack(self.round(self.decode(a) * self.decode(b)))

    def add(self, a: Bits, b: Bits) -> Bits:
        with np.errstate(invalid="ignore"):
            return self.pack(self.round(_add_to_odd(self.decode(a), self.decode(b))))

    def sub(self, a: Bits, b: Bits) -> Bits:
        with np.errstate(invalid="ignore"):
            return self.pack(self.round(_add_to_odd(self.decode(a), -self.decode(b))))

    def relu(self, a: Bits) -> Bits:
        """max(a, +0) as the ``.relu`` modifier does it: a negative value or -0 becomes +0, NaN is canonical."""
        zeroed = np.where(np.asarray(a) & self.dtype.type(self.sign_bit), self.dtype.type(0), a)
        return np.where(self.is_nan(a), self.dtype.type(self.nan_bits), zeroed)

    def sat(self, a: Bits) -> Bits:
        """Clamp to [0, 1] as the ``.sat`` modifier does it: NaN becomes +0."""
        one = self.encode(1.0)
        clamped = self.min(self.relu(a), one)
        return np.where(self.is_nan(a), self.dtype.type(0), clamped)

    def min(self, a: Bits, b: Bits, *, nan: bool = False) -> Bits:
        """PTX ``min``: -0 below +0; a NaN loses against a number unless ``nan``, then it wins."""
        return self._select_extreme(a, b, np.less, nan)

    def max(self, a: Bits, b: Bits, *, nan: bool = False) -> Bits:
        """PTX ``max``, with the rules of :meth:`min`."""
        return self._select_extreme(a, b, np.greater, nan)

    def _select_extreme(self, a: Bits, b: Bits, better: np.ufunc, nan: bool) -> Bits:
        a_nan, b_nan = self.is_nan(a), self.is_nan(b)
        best = np.where(better(self.ordinal(a), self.ordinal(b)), a, b)
        if not nan:
            best = np.where(a_nan, b, np.where(b_nan, a, best))
        lost = (a_nan | b_nan) if nan else (a_nan & b_nan)
        return np.where(lost, self.dtype.type(self.nan_bits), best).astype(self.dtype)

    def min_xorsign_abs(self, a: Bits, b: Bits, *, nan: bool = False) -> Bits:
        """PTX ``min.xorsign.abs``: min(|a|, |b|) with the exclusive or of the two signs."""
        smaller = self.min(self.abs(a), self.abs(b), nan=nan)
        signed = smaller | ((a ^ b) & self.dtype.type(self.sign_bit))
        return np.asarray(np.where(self.is_nan(smaller), self.dtype.type(self.nan_bits), signed))

    def abs(self, a: Bits) -> Bits:
        """|a|; a NaN becomes canonical (PTX leaves it open, the H200 does so)."""
        return self._canonical(a, a & self.dtype.type(self.nan_bits))

    def neg(self, a: Bits) -> Bits:
        """-a; a NaN becomes canonical, as in :meth:`abs`."""
        return self._canonical(a, a ^ self.dtype.type(self.sign_bit))

    def _canonical(self, a: Bits, result: Bits) -> Bits:
        return np.asarray(np.where(self.is_nan(a), self.dtype.type(self.nan_bits), result))

    def copysign(self, magnitude: Bits, sign: Bits) -> Bits:
        """Bitwise: the payload of a NaN stays."""
        return np.asarray((magnitude & self.dtype.type(self.nan_bits)) | (sign & self.dtype.type(self.sign_bit)))

    def set_ge(self, a: Bits, b: Bits) -> Bits:
        """All ones where a >= b, else zero; false where either is NaN."""
        return self._mask(np.greater_equal(self.decode(a), self.decode(b)))

    def set_gt(self, a: Bits, b: Bits) -> Bits:
        return self._mask(np.greater(self.decode(a), self.decode(b)))

    def _mask(self, truth: NDArray[np.bool_]) -> Bits:
        return np.asarray(np.where(truth, self.dtype.type(self.all_ones), self.dtype.type(0)))

    def select(self, mask: Bits, if_true: Bits, if_false: Bits) -> Bits:
        """Bitwise choice, so that a mask of all ones or zero takes one operand whole."""
        return np.asarray((mask & if_true) | (~mask & if_false))

    def convert_from(self, source: Format, bits: Bits) -> Bits:
        """``cvt.rn``: a value of another format, rounded once to this one."""
        return self.encode(source.decode(bits))

    # -- constants -----------------------------------------------------------------------------------

    def hex(self, bits: int) -> str:
        """The hexadecimal text of one bit pattern, as programs store constants: ``3e90``."""
        return f"{int(bits):0{self.hex_digits}x}"

    def constant(self, value: float, *, what: str = "constant") -> int:
        """The bit pattern nearest to ``value``, refused where the rounding loses its meaning.

        Raises CoefficientError if it is not finite, overflows, or is a nonzero number that becomes
        subnormal in fp16 (hardware may flush it, and its relative error is large) or zero anywhere.
        """
        bits = int(self.encode(value))
        rounded = float(self.decode(bits))
        if not np.isfinite(rounded):
            raise CoefficientError(
                f"{what} {value!r} is not finite in {self.name}; the largest value is {self.max_finite:g}"
            )
        if value != 0 and (rounded == 0 or (self.name == "fp16" and abs(rounded) < self.min_normal)):
            state = "zero" if rounded == 0 else "subnormal"
            raise CoefficientError(
                f"{what} {value!r} becomes {state} in {self.name}; magnitudes from {self.min_normal:g} are"
                " allowed: scale the input, lower the degree, or use bf16"
            )
        return bits


def _add_to_odd(a: Values, b: Values) -> Values:
    """a + b in float64, rounded to odd; exact where representable. TwoSum gives the rounding error."""
    total = a + b
    b_part = total - a
    error = (a - (total - b_part)) + (b - b_part)
    raw = total.view(np.int64)
    inexact_even = (error != 0) & np.isfinite(total) & ((raw & 1) == 0)
    away = (error > 0) == (total > 0)
    return np.where(inexact_even, raw + np.where(away, 1, -1), raw).view(np.float64)


BF16 = Format("bf16", width=16, precision=8, emin=-126, emax=127)
FP16 = Format("fp16", width=16, precision=11, emin=-14, emax=15)
FP32 = Format("fp32", width=32, precision=24, emin=-126, emax=127)
FORMATS = {f.name: f for f in (BF16, FP16, FP32)}


def get_format(name: str | Format) -> Format:
    """The Format of that name. Raises UnknownNameError."""
    if isinstance(name, Format):
        return name
    if name not in FORMATS:
        raise UnknownNameError(f"unknown format {name!r}; known: {', '.join(FORMATS)}")
    return FORMATS[name]
