"""A mix: what each pair of scores is computed by, walked in turn. ``hardware+NAME`` alternates the GPU's tanh with a program.

Pairs are what two fp32 accumulators next to each other make; packed 16-bit instructions work on both at once, and a kernel
that gives some pairs to the special-function unit and the others to a polynomial keeps both pipes busy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

import numpy as np

from polyfma import catalog
from polyfma.emit.lowering import needed_ops
from polyfma.errors import ProgramError, UnknownNameError
from polyfma.folding import fold
from polyfma.formats import FP32, Bits
from polyfma.program import Op, Program
from polyfma.replay import replay

HARDWARE = "hardware"
EXPONENTIAL = "exponential"  # sigmoid by the hardware's exponential and reciprocal


@dataclass(frozen=True)
class Mix:
    """``parts``: HARDWARE, EXPONENTIAL or a Program, one for each pair in turn."""

    parts: tuple[str | Program, ...]

    def __post_init__(self) -> None:
        if not isinstance(self.parts, tuple) or not self.parts or not all(isinstance(p, str | Program) for p in self.parts):
            raise ProgramError(f"a mix is a tuple of words and Programs, not {str(self.parts)[:60]}")

    @cached_property
    def text(self) -> str:
        return "+".join(p if isinstance(p, str) else p.name for p in self.parts)

    @cached_property
    def digest(self) -> str:
        """What a compiled kernel depends on."""
        return "+".join(p if isinstance(p, str) else p.digest for p in self.parts)

    @property
    def programs(self) -> list[Program]:
        return [p for p in dict.fromkeys(self.parts) if isinstance(p, Program)]

    @property
    def packed(self) -> list[Program]:
        """The programs that compute in 16 bits throughout."""
        return [p for p in self.programs if all(op.format != "fp32" for op in p.ops)]

    def part(self, pair: int) -> str | Program:
        return self.parts[pair % len(self.parts)]


Given = str | Program | Mix | Sequence[str | Program]


def parse(given: Given, function: str, words: Sequence[str]) -> Mix:
    """The Mix of a name, a Program, names joined by ``+``, or a list of them; every program must be of ``function``, forward.

    ``words`` are the parts that are no programs. Raises UnknownNameError or ProgramError.
    """
    if isinstance(given, Mix):
        items: list[str | Program] = list(given.parts)
    elif isinstance(given, str):
        items = [part.strip() for part in given.split("+")]
    elif isinstance(given, Program):
        items = [given]
    else:
        items = list(given) if isinstance(given, Sequence) else [given]
    if any(isinstance(item, str) and not item for item in items):
        raise UnknownNameError(f"mix {str(given)[:60]!r} has an empty part; parts are {', '.join(words)} or {function} programs, joined by +")
    if not items:
        raise UnknownNameError(f"a mix of no programs; name {', '.join(words)} or {function} programs of the catalogue")
    mix = Mix(tuple(_part(item, function, words) for item in items))
    formats = {p.format for p in mix.packed}
    if function == "tanh" and len(formats) > 1:
        raise ProgramError(f"mix {mix.text} has programs of {' and '.join(sorted(formats))}; scores are scaled for one format, so take programs of one")
    return mix


def _part(item: object, function: str, words: Sequence[str]) -> str | Program:
    if isinstance(item, str) and item in words:
        return item
    if not isinstance(item, str | Program):
        raise ProgramError(f"a mix is made of names and Programs, not {type(item).__name__}")
    program = _named(item, function, words) if isinstance(item, str) else item
    if program.function.startswith("sigmoid-") and function == "sigmoid":
        raise ProgramError(f"{program.name} has a factor in its constants; take a sigmoid program and weight_scale, which costs nothing")
    if (program.function, program.direction) != (function, "forward"):
        raise ProgramError(f"{program.name} computes {program.function} {program.direction}; a {function} forward program is needed here")
    if any(op.op.endswith(".approx") for op in program.ops):
        raise ProgramError(f"{program.name} is the GPU's own function; write {words[0]!r} for it here")
    if "value" not in program.outputs:
        raise ProgramError(f"{program.name} has outputs {', '.join(program.outputs)}; one named value is needed here")
    if function == "sigmoid":  # whose kernels use a derivative too
        _check_masked(program)
        return program
    return value_of(program)


def _named(name: str, function: str, words: Sequence[str]) -> Program:
    try:
        return catalog.load(name)
    except UnknownNameError:
        raise UnknownNameError(f"unknown part {name[:60]!r}; parts are {', '.join(words)} or {function} programs (polyfma list {function}), joined by +") from None


def value_bits(program: Program, bits: Bits) -> Bits:
    """The output ``value`` of a program on bit patterns."""
    found = replay(program, bits)
    return found["value"] if isinstance(found, dict) else found


@lru_cache(maxsize=256)
def value_of(program: Program) -> Program:
    """What a program's output ``value`` needs, without another output's operations."""
    if set(program.outputs) == {"value"}:
        return program
    return replace(program, name=f"{program.name}.value", ops=needed_ops(program, ("value",)), outputs={"value": program.outputs["value"]})


def _check_masked(program: Program) -> None:
    """Raises ProgramError for a program whose weight of a masked score, -inf, is not exactly 0."""
    weight = float(program.fmt.decode(value_bits(program, np.array([int(program.fmt.encode(-np.inf))], dtype=program.fmt.dtype)))[0])
    if weight != 0:
        raise ProgramError(f"{program.name} gives {weight:g} for a masked score, which must weigh 0; take a program with exact tails")


@lru_cache(maxsize=256)
def in_fp32(program: Program) -> Program:
    """The program with every operation in fp32 and no conversion: what it computes of an fp32 input, but for roundings.

    For programs whose 16-bit operations only take in and give out, so that the roundings left away are conversions and a limit's.
    """
    replaced: dict[str, str] = {}
    ops: list[Op] = []
    for op in program.ops:
        src = tuple(replaced.get(s, s) for s in op.src)
        if op.op == "cvt":
            replaced[op.dst] = src[0]
        else:
            ops.append(replace(op, src=src, format="fp32"))
    consts = {name: FP32.hex(int(FP32.encode(program.const_value(name)))) for name in program.consts}
    outputs = {label: replaced.get(name, name) for label, name in program.outputs.items()}
    return Program(f"{program.name}.in-fp32", program.function, program.direction, "fp32", program.degree, program.form,
                   program.inputs, consts, tuple(ops), outputs)  # fmt: skip


@lru_cache(maxsize=256)
def scaled(program: Program, input_scale: float, output_scale: float, offset: float = 0.0) -> Program:
    """:func:`in_fp32` of output_scale * p(input_scale * x) + offset: scales in its constants, the offset in its last multiplication."""
    folded = fold(in_fp32(program), input_scale=input_scale, output_scale=output_scale)
    if not offset:
        return folded
    ((label, result),), last = folded.outputs.items(), folded.ops[-1]
    consts = {**folded.consts, "offset": FP32.hex(int(FP32.encode(offset)))}
    if last.op == "mul" and last.dst == result:
        ops = (*folded.ops[:-1], Op("fma", result, (*last.src, "offset"), "fp32"))
    else:
        ops, result = (*folded.ops, Op("add", "moved", (result, "offset"), "fp32")), "moved"
    return Program(f"{folded.name}.offset{offset:g}".replace("+", ""), folded.function, folded.direction, "fp32", folded.degree, folded.form,
                   folded.inputs, consts, ops, {label: result})  # fmt: skip
