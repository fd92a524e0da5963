"""A PTX interpreter for the instructions of straight-line packed arithmetic, written from the PTX ISA.

It reads text alone and shares nothing with polyfma: formats, roundings and comparisons are its own. Registers
hold numpy arrays of uint32 (one 32-bit register for many threads); ``.pred`` registers hold booleans.

Rounding: the exact sum of a product (exact in float64 for 16-bit operands) and an addend is taken in float64
with its error term; where that could round to the wrong side, the element is done again in rationals.
"""

from __future__ import annotations

import re
from fractions import Fraction

import numpy as np

# name: (bits stored in the significand, least exponent of a normal number, bits of the exponent)
KINDS = {"bf16": (7, -126, 8), "f16": (10, -14, 5), "f32": (23, -126, 8)}
_LOP3 = np.array([0xF0, 0xCC, 0xAA])


def decode(kind, bits):
    stored, emin, ebits = KINDS[kind]
    bits = bits.astype(np.int64)
    sign = np.where(bits >> (stored + ebits) & 1, -1.0, 1.0)
    exponent, fraction = bits >> stored & (1 << ebits) - 1, bits & (1 << stored) - 1
    normal = np.ldexp(1.0 + fraction / 2.0**stored, np.clip(exponent + emin - 1, emin, None))
    value = np.where(exponent == 0, np.ldexp(fraction / 2.0**stored, emin), normal)
    return sign * np.where(exponent == (1 << ebits) - 1, np.where(fraction, np.nan, np.inf), value)


def encode(kind, exact, error=None):
    """The nearest pattern to exact + error (error far below exact), ties to even; NaN gives the canonical 0x7f...f."""
    stored, emin, ebits = KINDS[kind]
    magnitude = np.abs(exact)
    finite = np.isfinite(exact)
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        exponent = np.maximum(np.where((magnitude > 0) & finite, np.frexp(np.where(finite, magnitude, 1.0))[1] - 1, emin), emin)
        scaled = np.ldexp(np.where(finite, magnitude, 0.0), stored - exponent)
        count = np.rint(scaled)
        if error is not None:
            fraction = np.abs(scaled - np.floor(scaled) - 0.5)
            doubtful = finite & (error != 0) & (fraction < 2.0**-20)
            for i in np.flatnonzero(doubtful):
                count.flat[i] = _rational(exact.flat[i], error.flat[i], int(stored - exponent.flat[i]))
    infinity = ((1 << ebits) - 1) << stored
    bits = np.minimum(count.astype(np.int64) + (exponent.astype(np.int64) - emin << stored), infinity)
    bits = np.where(np.isinf(exact), infinity, bits) | np.where(np.signbit(exact), 1 << stored + ebits, 0)
    return np.where(np.isnan(exact), (1 << stored + ebits) - 1, bits)


def _rational(value, error, shift):
    return round(abs(Fraction(float(value)) + Fraction(float(error))) * Fraction(2) ** shift)  # round() ties to even


def add_exactly(a, b):
    """float64 sum and its error (Knuth)."""
    with np.errstate(invalid="ignore", over="ignore"):
        total = a + b
        part = total - a
        error = (a - (total - part)) + (b - part)
    return total, np.where(np.isfinite(total), error, 0.0)


def arithmetic(code, kind, operands):
    """One lane of fma, mul, add, sub, min, max, abs, neg: patterns in, patterns out."""
    stored, _, ebits = KINDS[kind]
    top, canonical = 1 << stored + ebits, (1 << stored + ebits) - 1
    values = [decode(kind, o) for o in operands]
    name, *modifiers = code
    if name in ("fma", "mul", "add", "sub"):
        with np.errstate(invalid="ignore", over="ignore"):
            if name == "fma":
                product = values[0] * values[1]
                if kind == "f32":  # a product of 48 bits is exact in float64
                    assert np.all(~np.isfinite(product) | (np.abs(product) == 0) | (np.abs(product) > 2.0**-960))
                total, error = add_exactly(product, values[2])
            elif name == "mul":
                total, error = values[0] * values[1], None
            else:
                total, error = add_exactly(values[0], values[1] if name == "add" else -values[1])
        bits = encode(kind, total, error)
        nan = np.isnan(total)
        if "relu" in modifiers:
            bits = np.where(nan, canonical, np.where(bits & top, 0, bits))
        if "sat" in modifiers:
            one = int(encode(kind, np.array([1.0]))[0])
            bits = np.where(nan, 0, np.where(bits & top, 0, np.minimum(bits, one)))
        return bits
    if name in ("abs", "neg"):
        flipped = operands[0] & (top - 1) if name == "abs" else operands[0] ^ top
        return np.where(np.isnan(values[0]), canonical, flipped)
    assert name in ("min", "max"), code
    a, b = (o.astype(np.int64) for o in operands)
    sign = (a ^ b) & top
    if "abs" in modifiers:
        assert "xorsign" in modifiers
        a, b = a & (top - 1), b & (top - 1)
    # -0 is less than +0; otherwise the order of the values.
    key_a, key_b = (np.where(v & top, -(v & (top - 1)) - 1, v) for v in (a, b))
    best = np.where((key_a < key_b) == (name == "min"), a, b)
    nan_a, nan_b = np.isnan(values[0]), np.isnan(values[1])
    best = np.where(nan_a, b, np.where(nan_b, a, best))
    lost = (nan_a | nan_b) if "NaN" in modifiers else (nan_a & nan_b)
    if "xorsign" in modifiers:
        best = best | sign
    return np.where(lost, canonical, best)


class Machine:
    """Runs the body of one ``{ ... }`` block. ``tables`` are recorded results of hardware functions by (name, kind)."""

    def __init__(self, registers, tables=None):
        self.registers = dict(registers)
        self.kinds = {}
        self.tables = tables or {}
        self.counts = {}

    def run(self, block):
        text = re.sub(r"//[^\n]*", "", block)
        for statement in text.strip().removeprefix("{").removesuffix("}").split(";"):
            statement = statement.strip()
            if not statement:
                continue
            code, _, rest = statement.partition(" ")
            if code == ".reg":
                kind, _, names = rest.strip().partition(" ")
                for name in names.split(","):
                    assert name.strip() not in self.kinds, f"register {name} declared twice"
                    self.kinds[name.strip()] = kind
                continue
            operands = [o.strip() for o in re.findall(r"\{[^}]*\}|[^,]+", rest)]
            self.counts[code] = self.counts.get(code, 0) + 1
            self.step(code.split("."), operands)
        return self.registers

    def get(self, operand):
        if operand.startswith("0f"):
            return np.array(int(operand[2:], 16), dtype=np.int64)
        if operand[0].isdigit():
            return np.array(int(operand, 0), dtype=np.int64)
        return self.registers[operand]  # a KeyError is a register read before it is written

    def put(self, name, value):
        self.registers[name] = value if np.asarray(value).dtype == bool else np.asarray(value).astype(np.int64)

    def step(self, code, operands):
        dst, sources = operands[0], operands[1:]
        name, kind = code[0], code[-1]
        if name == "mov":
            if dst.startswith("{"):
                value = self.get(sources[0])
                for lane, register in enumerate(dst.strip("{} ").split(",")):
                    self.put(register.strip(), value >> 16 * lane & 0xFFFF)
                return
            self.put(dst, self.get(sources[0]))
        elif name == "shl":
            self.put(dst, self.get(sources[0]) << int(sources[1]) & 0xFFFFFFFF)
        elif name in ("and", "xor"):
            a, b = map(self.get, sources)
            self.put(dst, a & b if name == "and" else a ^ b)
        elif name == "lop3":
            a, b, c = (self.get(s) for s in sources[:3])
            table, result = int(sources[3], 16), np.zeros((), dtype=np.int64)
            for minterm in range(8):
                if table >> minterm & 1:
                    part = np.array(0xFFFFFFFF, dtype=np.int64)
                    for value, bit in ((a, 4), (b, 2), (c, 1)):
                        part = part & (value if minterm & bit else ~value & 0xFFFFFFFF)
                    result = result | part
            self.put(dst, result)
        elif name == "selp":
            self.put(dst, np.where(self.get(sources[2]), self.get(sources[0]), self.get(sources[1])))
        elif name == "copysign":
            sign, magnitude = map(self.get, sources)
            self.put(dst, magnitude & 0x7FFFFFFF | sign & 0x80000000)
        elif name == "cvt":
            self.convert(code, dst, sources)
        elif name in ("set", "setp"):
            self.compare(code, dst, sources)
        else:
            self.put(dst, self.by_lane(code, kind, [self.get(s) for s in sources]))

    def by_lane(self, code, kind, values):
        rounding = [m for m in code[1:-1] if m != "rn"]
        if code[0] in ("fma", "mul", "add", "sub"):
            assert "rn" in code, code
        if not kind.endswith("x2"):
            return self.one_lane([code[0], *rounding], kind, values)
        halves = [self.one_lane([code[0], *rounding], kind[:-2], [v >> 16 * i & 0xFFFF for v in values]) for i in (0, 1)]
        return halves[0] | halves[1] << 16

    def one_lane(self, code, kind, values):
        if code[1:2] == ["approx"]:
            return self.tables[code[0], kind][values[0]].astype(np.int64)
        shape = np.broadcast_shapes(*(v.shape for v in values))
        return arithmetic(code, kind, [np.broadcast_to(v, shape) for v in values])

    def convert(self, code, dst, sources):
        if code[1:] == ["f32", "f16"]:
            self.put(dst, encode("f32", decode("f16", self.get(sources[0]))))
            return
        assert code[1] == "rn" and code[3] == "f32" and code[2] in ("bf16x2", "f16x2"), code
        high, low = (encode(code[2][:-2], decode("f32", self.get(s))) for s in sources)
        self.put(dst, high << 16 | low)

    def compare(self, code, dst, sources):
        relation = {"ge": np.greater_equal, "gt": np.greater}[code[1]]
        a, b = map(self.get, sources)
        kind = code[-1]
        if code[0] == "setp":
            self.put(dst, relation(decode(kind, a), decode(kind, b)))
            return
        assert code[2] == "u32", code
        if kind == "f32":
            self.put(dst, np.where(relation(decode(kind, a), decode(kind, b)), 0xFFFFFFFF, 0))
            return
        masks = [np.where(relation(*(decode(kind[:-2], v >> 16 * i & 0xFFFF) for v in (a, b))), 0xFFFF, 0) for i in (0, 1)]
        self.put(dst, masks[0] | masks[1] << 16)


def body(module):
    """The inline block of a module with one .func: what is between the inner braces."""
    return re.search(r"\{\s*(\{.*?\n\s*\})\s*ret;", module, re.DOTALL)[1]
