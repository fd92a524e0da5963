"""Hybrid routes: lane pairs that alternate between the special-function unit and the FMA pipe.

Neither unit waits for the other, so a kernel that sends some pairs to a hardware program and the rest to a polynomial
can be faster than either alone. Which pair goes where is known at compile time: pair % period < hardware_pairs.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from polyfma.emit.architecture import Architecture, get_architecture
from polyfma.emit.cuda import cuda_source, method_name
from polyfma.emit.cute import cute_source
from polyfma.emit.header import guarded, identifier
from polyfma.emit.lowering import LAYOUTS, check_architecture
from polyfma.errors import ProgramError, UnknownNameError
from polyfma.program import Program

TARGETS = ("cuda", "cute")
LONGEST_PERIOD = 1024
Comments = Callable[[Program], Sequence[str]]


@dataclass(frozen=True)
class Hybrid:
    """Of every ``period`` lane pairs the first ``hardware_pairs`` run ``hardware``, the others ``polynomial``.

    Raises ProgramError unless both have one output for the same function, direction and format, the first uses the
    special-function unit and the second does not, and 0 < hardware_pairs < period.
    """

    hardware: Program
    polynomial: Program
    period: int
    hardware_pairs: int = 1

    def __post_init__(self) -> None:
        for p in (self.hardware, self.polynomial):
            if not isinstance(p, Program):
                raise ProgramError(f"a hybrid takes two Programs, not {type(p).__name__}; polyfma.load(name) gives one")
        same = [(p.function, p.direction, p.format, tuple(p.outputs)) for p in (self.hardware, self.polynomial)]
        if same[0] != same[1] or len(self.hardware.outputs) != 1:
            raise ProgramError(f"a hybrid takes two programs of one function, direction and format with one output each, not"
                               f" {self.hardware.name} and {self.polynomial.name}")  # fmt: skip
        if not self.hardware.counts.mufu or self.polynomial.counts.mufu:
            raise ProgramError(f"a hybrid takes a program of the special-function unit and one without it, in this order, not"
                               f" {self.hardware.name} and {self.polynomial.name}")  # fmt: skip
        if identifier(self.hardware) == identifier(self.polynomial):
            raise ProgramError(f"{self.hardware.name} and {self.polynomial.name} have one identifier in source; rename one")
        whole = all(isinstance(n, int) and not isinstance(n, bool) for n in (self.period, self.hardware_pairs))
        if not whole or not 0 < self.hardware_pairs < self.period <= LONGEST_PERIOD:
            raise ProgramError(f"a hybrid needs whole numbers 0 < hardware_pairs < period <= {LONGEST_PERIOD}, not hardware_pairs={self.hardware_pairs!r},"
                               f" period={self.period!r}")  # fmt: skip

    @property
    def name(self) -> str:
        return f"{self.polynomial.name}.hybrid-{self.hardware_pairs}-of-{self.period}"

    def program_of(self, pair: int) -> Program:
        """Which program runs a lane pair, counted from 0."""
        return self.hardware if pair % self.period < self.hardware_pairs else self.polynomial


def hybrid_source(hybrid: Hybrid, target: str, arch: str | Architecture, layout: str | None, comments: Comments) -> str:
    """CUDA: both structs and ``polyfma::NAME`` whose ``value<pair>(x)`` picks one. CuTe: both functions and ``NAME(pair, ...)``."""
    if target not in TARGETS:
        raise UnknownNameError(f"hybrids are emitted for {' and '.join(TARGETS)}, not {target!r}")
    if target == "cuda":
        return _cuda(hybrid, layout, comments)
    architecture = get_architecture(arch)
    check_architecture(hybrid.hardware, architecture, hybrid.hardware.ops)
    return _cute(hybrid, architecture, layout, comments)


def _own_identifier(hybrid: Hybrid) -> str:
    return identifier(hybrid.polynomial) + f"_hybrid_{hybrid.hardware_pairs}_of_{hybrid.period}"


def _condition(hybrid: Hybrid) -> str:
    return f"pair % {hybrid.period} < {hybrid.hardware_pairs}"


def _cuda(hybrid: Hybrid, layout: str | None, comments: Comments) -> str:
    output, a, b = next(iter(hybrid.polynomial.outputs)), identifier(hybrid.hardware), identifier(hybrid.polynomial)
    name = method_name(output)
    suffixes = {"packed": ("packed", "packed", ""), "f32-packed": ("float2", "packed", "_packed"), "f32": ("float2", "float2", "_f32")}
    methods = []
    for one in (layout,) if layout else LAYOUTS:
        taken, given, suffix = suffixes[one]
        methods.append(f"  template <int pair> __device__ static {given} {name}{suffix}({taken} x) {{\n    if constexpr ({_condition(hybrid)})"
                       f" return {a}::{name}{suffix}(x);\n    else return {b}::{name}{suffix}(x);\n  }}\n")  # fmt: skip
    parts = [cuda_source(p, (output,), layout, comments(p)) for p in (hybrid.hardware, hybrid.polynomial)]
    own = (f"namespace polyfma {{\n// of every {hybrid.period} pairs, {hybrid.hardware_pairs} through the special-function unit; C++17\n"
           f"struct {_own_identifier(hybrid)} {{\n  using scalar = {b}::scalar;\n  using packed = {b}::packed;\n"
           f"{''.join(methods)}}};\n}}  // namespace polyfma")  # fmt: skip
    both = hashlib.sha256((hybrid.hardware.digest + hybrid.polynomial.digest).encode()).hexdigest()
    return "\n".join([*parts, guarded(_own_identifier(hybrid), both, own, layout)])


def _cute(hybrid: Hybrid, architecture: Architecture, layout: str | None, comments: Comments) -> str:
    outputs, a, b = tuple(hybrid.polynomial.outputs), identifier(hybrid.hardware), identifier(hybrid.polynomial)
    ports = {"f32-packed": ("", "x0, x1"), "f32": ("_f32", "x0, x1"), "packed": ("_packed", "x")}
    functions = []
    for one in (layout,) if layout else tuple(ports):
        suffix, arguments = ports[one]
        functions.append(f'def {_own_identifier(hybrid)}{suffix}(pair: int, {arguments}):\n    """``pair`` is a Python int: a loop over'
                         f' pairs must be unrolled at trace time."""\n    return {a}{suffix}({arguments}) if {_condition(hybrid)} else'
                         f" {b}{suffix}({arguments})\n")  # fmt: skip
    parts = [cute_source(p, outputs, architecture, layout, comments(p)) for p in (hybrid.hardware, hybrid.polynomial)]
    return "\n\n".join([*parts, *functions])
