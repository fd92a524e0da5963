"""Independent oracles: exact integer arithmetic and MPFR. Nothing here imports polyfma.

A number is (sign, mantissa, exponent) with value (-1)**sign * mantissa * 2**exponent; the mantissa is an
int, or one of the strings nan, inf.
"""

from __future__ import annotations

import json
from fractions import Fraction
from typing import Any

import gmpy2

# name: (width, stored significand bits, bias)
LAYOUT = {"bf16": (16, 7, 127), "fp16": (16, 10, 15), "fp32": (32, 23, 127)}


def unpack(fmt: str, bits: int) -> tuple[int, Any, int]:
    width, stored, bias = LAYOUT[fmt]
    sign = bits >> (width - 1)
    exponent = (bits >> stored) & ((1 << (width - 1 - stored)) - 1)
    fraction = bits & ((1 << stored) - 1)
    if exponent == (1 << (width - 1 - stored)) - 1:
        return sign, ("nan" if fraction else "inf"), 0
    if exponent == 0:
        return sign, fraction, 1 - bias - stored
    return sign, fraction + (1 << stored), exponent - bias - stored


def signed(fmt: str, bits: int) -> Any:
    """A Fraction, or nan, +inf, -inf."""
    sign, mantissa, exponent = unpack(fmt, bits)
    if isinstance(mantissa, str):
        return "nan" if mantissa == "nan" else ("-inf" if sign else "+inf")
    return Fraction(-mantissa if sign else mantissa) * Fraction(2) ** exponent


def special(fmt: str, what: str) -> int:
    width, stored, _ = LAYOUT[fmt]
    infinity = ((1 << (width - 1 - stored)) - 1) << stored
    return {"nan": (1 << (width - 1)) - 1, "+inf": infinity, "-inf": infinity | 1 << (width - 1)}[what]


def pack(fmt: str, sign: int, mantissa: int, exponent: int) -> int:
    """The nearest pattern to mantissa * 2**exponent >= 0, ties to even."""
    width, stored, bias = LAYOUT[fmt]
    top = sign << (width - 1)
    if mantissa == 0:
        return top
    # The unit in the last place at this magnitude, never below the subnormal one.
    unit = max(mantissa.bit_length() + exponent - 1 - stored, 1 - bias - stored)
    if exponent >= unit:
        count = mantissa << (exponent - unit)
    elif unit - exponent > mantissa.bit_length() + 2:
        count = 0
    else:
        count, rest = divmod(mantissa, 1 << (unit - exponent))
        twice = 2 * rest
        if twice > 1 << (unit - exponent) or (twice == 1 << (unit - exponent) and count % 2):
            count += 1
    if count >> (stored + 1):  # rounded up to the next binade
        count, unit = count >> 1, unit + 1
    biased = unit + bias + stored if count >> stored else 0
    if biased >= (1 << (width - 1 - stored)) - 1:
        return top | special(fmt, "+inf")
    return top | (biased << stored) | (count & ((1 << stored) - 1))


def pack_fraction(fmt: str, value: Fraction) -> int:
    """A dyadic rational to its nearest pattern."""
    denominator = value.denominator
    assert denominator & (denominator - 1) == 0
    return pack(fmt, int(value < 0), abs(value.numerator), 1 - denominator.bit_length())


def fma(fmt: str, a: int, b: int, c: int) -> int:
    (sa, ma, ea), (sb, mb, eb), (sc, mc, ec) = unpack(fmt, a), unpack(fmt, b), unpack(fmt, c)
    if "nan" in (ma, mb, mc):
        return special(fmt, "nan")
    sp = sa ^ sb
    if ma == "inf" or mb == "inf":
        if ma == 0 or mb == 0 or (mc == "inf" and sc != sp):
            return special(fmt, "nan")
        return special(fmt, "-inf" if sp else "+inf")
    if mc == "inf":
        return special(fmt, "-inf" if sc else "+inf")
    low = min(ea + eb, ec)
    product = (ma * mb) << (ea + eb - low)
    addend = mc << (ec - low)
    total = (-product if sp else product) + (-addend if sc else addend)
    if total == 0:
        return pack(fmt, 1 if sp and sc else 0, 0, 0)
    return pack(fmt, int(total < 0), abs(total), low)


def negate(fmt: str, bits: int) -> int:
    return bits ^ (1 << (LAYOUT[fmt][0] - 1))


def constant(fmt: str, value: float) -> int:
    return pack_fraction(fmt, Fraction(value))


def minimum(fmt: str, a: int, b: int, nan: bool, largest: bool = False) -> int:
    va, vb = signed(fmt, a), signed(fmt, b)
    canonical = special(fmt, "nan")
    if va == "nan" or vb == "nan":
        if nan or (va == "nan" and vb == "nan"):
            return canonical
        return b if va == "nan" else a

    def key(v: object, bits: int) -> tuple[Fraction, int]:
        number = {"+inf": Fraction(10) ** 60, "-inf": -(Fraction(10) ** 60)}.get(v, v) if isinstance(v, str) else v
        return number, 0 if bits >> (LAYOUT[fmt][0] - 1) else 1  # -0 below +0

    first = key(va, a) <= key(vb, b)
    return (b if first else a) if largest else (a if first else b)


def evaluate(op: str, fmt: str, src: list[int], source_formats: list[str]) -> int:
    width = LAYOUT[fmt][0]
    top, ones = 1 << (width - 1), (1 << width) - 1
    one, minus_zero = constant(fmt, 1.0), top
    if op in ("fma", "fma.relu", "fma.sat"):
        y = fma(fmt, *src)
        value = signed(fmt, y)
        if op == "fma":
            return y
        if value == "nan":
            return y if op == "fma.relu" else 0
        if y & top:
            return 0
        return y if op == "fma.relu" or (value != "+inf" and value <= 1) else one
    if op == "mul":
        # -0 is the addend that changes no product, the sign of a zero included.
        return fma(fmt, src[0], src[1], minus_zero)
    if op == "add":
        return fma(fmt, src[0], one, src[1])
    if op == "sub":
        return fma(fmt, src[0], one, negate(fmt, src[1]))
    if op in ("min", "min.nan"):
        return minimum(fmt, *src, nan=op == "min.nan")
    if op in ("max", "max.nan"):
        return minimum(fmt, *src, nan=op == "max.nan", largest=True)
    if op.endswith("xorsign.abs"):
        y = minimum(fmt, src[0] & ~top, src[1] & ~top, nan=".nan." in op)
        return y if signed(fmt, y) == "nan" else y | ((src[0] ^ src[1]) & top)
    if op in ("abs", "neg"):
        if signed(fmt, src[0]) == "nan":
            return special(fmt, "nan")
        return src[0] & ~top if op == "abs" else src[0] ^ top
    if op == "copysign":
        return (src[0] & ~top) | (src[1] & top)
    if op in ("set.ge", "set.gt"):
        a, b = signed(fmt, src[0]), signed(fmt, src[1])
        if "nan" in (a, b):
            return 0
        rank = [Fraction(10) ** 60 * (1 if v == "+inf" else -1) if isinstance(v, str) else v for v in (a, b)]
        return ones if (rank[0] >= rank[1] if op == "set.ge" else rank[0] > rank[1]) else 0
    if op == "select":
        return src[1] if src[0] else src[2]
    if op == "cvt":
        sign, mantissa, exponent = unpack(source_formats[0], src[0])
        if isinstance(mantissa, str):
            return special(fmt, str(signed(source_formats[0], src[0])))
        return pack(fmt, sign, mantissa, exponent)
    raise AssertionError(op)


def interpret(program_json: str, x: int, split: bool = False) -> dict[str, int]:
    """Run a program's JSON on one input bit pattern."""
    p = json.loads(program_json)
    values = {name: int(text, 16) for name, text in p["consts"].items()} | dict.fromkeys(p["inputs"], x)
    formats = dict.fromkeys(p["inputs"], p["format"])
    for op in p["ops"]:
        src = [values[s] for s in op["src"]]
        if split and op["op"].startswith("fma"):
            product = evaluate("mul", op["format"], src[:2], [])
            total = evaluate("add", op["format"], [product, src[2]], [])
            suffix = op["op"][3:]
            one = constant(op["format"], 1.0)
            minus_zero = 1 << (LAYOUT[op["format"]][0] - 1)
            values[op["dst"]] = evaluate(f"fma{suffix}", op["format"], [total, one, minus_zero], []) if suffix else total
        else:
            values[op["dst"]] = evaluate(op["op"], op["format"], src, [formats.get(s, op["format"]) for s in op["src"]])
        formats[op["dst"]] = op["format"]
    return {name: values[source] for name, source in p["outputs"].items()}


def mpfr_function(name: str, direction: str, x: float, precision: int = 1500) -> gmpy2.mpfr:
    """The real functions in MPFR, by formulas of their own."""
    family, _, parameter = name.partition("-") if name != "gelu-tanh" else (name, "", "")
    with gmpy2.context(gmpy2.get_context(), precision=precision, emin=gmpy2.get_emin_min(), emax=gmpy2.get_emax_max()):
        x = gmpy2.mpfr(x)
        n = gmpy2.mpfr(parameter) if parameter else gmpy2.mpfr(1)
        half, one = gmpy2.mpfr("0.5"), gmpy2.mpfr(1)
        forward = direction == "forward"
        if family == "sigmoid":
            th = gmpy2.tanh(x / 2)
            return (half + half * th if abs(x) < 50 else one / (one + gmpy2.exp(-x))) / n if forward else one / (
                4 * n * gmpy2.cosh(x / 2) ** 2)
        if family == "tanh":
            return gmpy2.tanh(x) if forward else one / gmpy2.cosh(x) ** 2
        if family == "softcap":
            return n * gmpy2.tanh(x / n) if forward else one / gmpy2.cosh(x / n) ** 2
        if family == "silu":
            s = one / (one + gmpy2.exp(-n * x))
            return x * s if forward else s + n * x / (4 * gmpy2.cosh(n * x / 2) ** 2)
        if family == "gelu":
            root = gmpy2.sqrt(gmpy2.mpfr(2))
            cdf = half * gmpy2.erfc(-x / root)
            return x * cdf if forward else cdf + x * gmpy2.exp(-x * x / 2) / gmpy2.sqrt(2 * gmpy2.const_pi())
        if family == "gelu-tanh":
            c = gmpy2.sqrt(2 / gmpy2.const_pi())
            u = c * (x + gmpy2.mpfr("0.044715") * x**3)
            th = gmpy2.tanh(u)
            if forward:
                return half * x * (one + th) if x > -5 else x / (one + gmpy2.exp(-2 * u))
            s = one / (one + gmpy2.exp(-2 * u))
            return s + half * x * c * (one + 3 * gmpy2.mpfr("0.044715") * x * x) / gmpy2.cosh(u) ** 2
        if family == "exp2":
            return gmpy2.exp2(x) if forward else gmpy2.log(gmpy2.mpfr(2)) * gmpy2.exp2(x)
    raise AssertionError(name)


def pack_mpfr(fmt: str, value: gmpy2.mpfr) -> int:
    """Round an MPFR number, taken as exact, to a format."""
    sign = int(gmpy2.is_signed(value))
    if gmpy2.is_zero(value):
        return pack(fmt, sign, 0, 0)
    if gmpy2.is_infinite(value):
        return special(fmt, "-inf" if sign else "+inf")
    mantissa, exponent = value.as_mantissa_exp()
    return pack(fmt, sign, abs(int(mantissa)), int(exponent))
