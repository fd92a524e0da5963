"""Runs a Program on bit patterns, exactly as the hardware does.

``fused``: every operation rounds once; what the GPU does. ``split``: a fused multiply-add rounds its
product first and then the sum; what the published search assumed. ``real``: float64 without rounding
to any format, for reading the approximation alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from polyfma.errors import CoefficientError, ProgramError, UnknownNameError
from polyfma.formats import Bits, Format, Values, get_format
from polyfma.hardware import recorded
from polyfma.program import Op, Program, Straightline

MODES = ("fused", "split", "real")
Outputs = NDArray[Any] | dict[str, NDArray[Any]]

_FUSED: dict[str, Callable[..., Bits]] = {
    "fma": Format.fma,
    "fma.relu": lambda f, a, b, c: f.relu(f.fma(a, b, c)),
    "fma.sat": lambda f, a, b, c: f.sat(f.fma(a, b, c)),
    "mul": Format.mul,
    "add": Format.add,
    "sub": Format.sub,
    "min": Format.min,
    "max": Format.max,
    "min.nan": lambda f, a, b: f.min(a, b, nan=True),
    "max.nan": lambda f, a, b: f.max(a, b, nan=True),
    "min.xorsign.abs": Format.min_xorsign_abs,
    "min.nan.xorsign.abs": lambda f, a, b: f.min_xorsign_abs(a, b, nan=True),
    "abs": Format.abs,
    "neg": Format.neg,
    "copysign": Format.copysign,
    "set.ge": Format.set_ge,
    "set.gt": Format.set_gt,
    "select": Format.select,
}
_SPLIT: dict[str, Callable[..., Bits]] = _FUSED | {
    "fma": lambda f, a, b, c: f.add(f.mul(a, b), c),
    "fma.relu": lambda f, a, b, c: f.relu(f.add(f.mul(a, b), c)),
    "fma.sat": lambda f, a, b, c: f.sat(f.add(f.mul(a, b), c)),
}


def _real_min(a: Values, b: Values) -> Values:
    return np.where(np.isnan(a), b, np.where(np.isnan(b), a, np.minimum(a, b)))


def _real_max(a: Values, b: Values) -> Values:
    return np.where(np.isnan(a), b, np.where(np.isnan(b), a, np.maximum(a, b)))


def _xorsign(magnitude: Values, a: Values, b: Values) -> Values:
    return np.where(np.signbit(a) ^ np.signbit(b), -magnitude, magnitude)


_REAL: dict[str, Callable[..., Any]] = {
    "fma": lambda a, b, c: a * b + c,
    "fma.relu": lambda a, b, c: np.maximum(a * b + c, 0.0),
    "fma.sat": lambda a, b, c: _real_min(_real_max(a * b + c, np.zeros(())), np.ones(())),
    "mul": lambda a, b: a * b,
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "min": _real_min,
    "max": _real_max,
    "min.nan": np.minimum,
    "max.nan": np.maximum,
    "min.xorsign.abs": lambda a, b: _xorsign(_real_min(np.abs(a), np.abs(b)), a, b),
    "min.nan.xorsign.abs": lambda a, b: _xorsign(np.minimum(np.abs(a), np.abs(b)), a, b),
    "abs": np.abs,
    "neg": np.negative,
    "copysign": np.copysign,
    "set.ge": np.greater_equal,
    "set.gt": np.greater,
    "select": np.where,
    "cvt": lambda a: a,
    "tanh.approx": np.tanh,
    "ex2.approx": np.exp2,
}


def replay(program: Straightline, bits: ArrayLike, *more: ArrayLike, mode: str = "fused") -> Outputs:
    """The program's output at input bit patterns of any shape.

    ``bits`` is an unsigned integer array of the format's width (uint16, or uint32 for fp32); the result
    has its shape: bit patterns in ``fused`` and ``split`` mode, float64 in ``real``. A program with
    several outputs gives a dict by output name; a fused operation of several inputs takes them one after the
    other. Raises UnknownNameError for an unknown mode and ProgramError for inputs that are not bit patterns of the format.
    """
    if not isinstance(program, Straightline):
        raise ProgramError(f"replay takes a Program, not {type(program).__name__}; polyfma.load(name) gives one")
    if mode not in MODES:
        raise UnknownNameError(f"unknown mode {mode!r}; known: {', '.join(MODES)}")
    if len(more) + 1 != len(program.inputs):
        raise ProgramError(f"{program.name} takes {len(program.inputs)} inputs ({', '.join(program.inputs)}), not {len(more) + 1}")
    inputs = [_input_bits(program, given) for given in (bits, *more)]
    state = _run_reals(program, [program.fmt.decode(i) for i in inputs]) if mode == "real" else _run_bits(program, inputs, mode)
    shape = np.broadcast_shapes(*(i.shape for i in inputs))
    results = {name: np.broadcast_to(state[source], shape).copy() for name, source in program.outputs.items()}
    return results if len(results) > 1 else next(iter(results.values()))


def replay_op(op: Op, operands: Sequence[Bits]) -> Bits:
    """One operation but a conversion on bit patterns of its format, fused."""
    return np.asarray(_FUSED[op.op](get_format(op.format), *operands))


def real_values(program: Program, x: Values) -> Values:
    """The single output in real arithmetic at float64 inputs, which need not be on the format's grid."""
    return np.asarray(_run_reals(program, [x])[next(iter(program.outputs.values()))])


def _input_bits(program: Straightline, bits: ArrayLike) -> Bits:
    try:
        return program.fmt.as_bits(bits)
    except CoefficientError as error:
        raise ProgramError(f"{program.name} takes bit patterns: {error}") from error


def _run_bits(program: Straightline, inputs: Sequence[Bits], mode: str) -> dict[str, Bits]:
    table = _FUSED if mode == "fused" else _SPLIT
    state: dict[str, Bits] = dict(zip(program.inputs, inputs, strict=True))
    formats = dict.fromkeys(program.inputs, program.fmt)
    for name, text in program.consts.items():
        formats[name] = program.const_formats[name]
        state[name] = np.array(int(text, 16), dtype=formats[name].dtype)
    for op in program.ops:
        fmt = get_format(op.format)
        operands = [state[s] for s in op.src]
        if op.op == "cvt":
            state[op.dst] = fmt.convert_from(formats[op.src[0]], operands[0])
        else:
            state[op.dst] = table[op.op](fmt, *operands) if op.op in table else _hardware(op, operands[0])
        formats[op.dst] = fmt
    return state


def _hardware(op: Op, operand: Bits) -> Bits:
    """The hardware's own function, from the table recorded on a GPU (:mod:`polyfma.hardware`)."""
    if get_format(op.format).width != 16:
        raise ProgramError(f"{op.op} in {op.format} cannot be replayed: only 16-bit formats have recorded tables")
    return np.asarray(recorded(op.op, op.format)[operand])


def _run_reals(program: Straightline, inputs: Sequence[Values]) -> dict[str, Values]:
    state: dict[str, Values] = dict(zip(program.inputs, inputs, strict=True))
    state |= {name: np.array(program.const_value(name)) for name in program.consts}
    with np.errstate(all="ignore"):
        for op in program.ops:
            state[op.dst] = _REAL[op.op](*(state[s] for s in op.src))
    return state
