"""Runs an exact sequence (polyfma.ops.exact) in numpy float32, the special functions with a chosen error.

``ex2.approx`` and ``rcp.approx`` are the correctly rounded value moved by ``ex2_ulps`` and ``rcp_ulps`` (the ISA allows about 2
and 1); ``ex2`` of a whole number is exact. Subnormals are flushed where the opcode says so.
"""

from __future__ import annotations

import numpy as np

F32 = np.float32


def flushed(v):
    return np.where(np.abs(v) < F32(2.0**-126), np.copysign(F32(0), v), v)


def moved(v, ulps):
    """v moved by whole ulps away from zero; zeros and what is not finite stay."""
    bits = v.view(np.int32)
    return np.where(np.isfinite(v) & (v != 0), bits + np.int32(ulps), bits).astype(np.int32).view(F32)


def exponential(a, ulps):
    a = flushed(a)
    value = flushed(np.exp2(a.astype(np.float64)).astype(F32))
    return np.where(a == np.rint(a), value, moved(value, ulps))


def reciprocal(a, ulps):
    value = flushed((1 / flushed(a).astype(np.float64)).astype(F32))
    return flushed(moved(value, ulps))


ARITHMETIC = {
    "mul.rn.f32": lambda a, b: a * b,
    "add.rn.f32": lambda a, b: a + b,
    "fma.rn.f32": lambda a, b, c: (a.astype(np.float64) * b + c).astype(F32),
    "abs.f32": np.abs,
    "neg.f32": np.negative,
    "max.NaN.f32": np.maximum,
    "min.NaN.f32": np.minimum,
    "max.f32": np.fmax,
    "min.NaN.xorsign.abs.f32": lambda a, b: np.copysign(np.minimum(np.abs(a), np.abs(b)), np.where(np.signbit(a) ^ np.signbit(b), F32(-1), F32(1))),
    "copysign.f32": lambda sign, magnitude: np.copysign(magnitude, sign),
    "setp.lt.f32": np.less,
    "setp.eq.f32": np.equal,
    "selp.f32": lambda a, b, p: np.where(p, a, b),
}


def run(sequence, x, ex2_ulps=0, rcp_ulps=0):
    """Every register of a sequence at float32 inputs, by name."""
    with np.errstate(all="ignore"):
        registers = {"x": x.astype(F32)}
        for step in sequence:
            operands = [registers[v] if isinstance(v, str) else F32(v) for v in step.src]
            if step.opcode == "ex2.approx.ftz.f32":
                result = exponential(operands[0], ex2_ulps)
            elif step.opcode == "rcp.approx.ftz.f32":
                result = reciprocal(operands[0], rcp_ulps)
            else:
                result = ARITHMETIC[step.opcode](*operands)
            registers[step.dst] = np.asarray(result, dtype=bool if step.opcode.startswith("setp") else F32)
    return registers
