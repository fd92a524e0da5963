"""The Program: a straight-line list of packed operations with its constants. Everything else reads it.

As JSON (:meth:`Program.to_dict`) a program needs no library to be understood::

    {"name", "function", "direction", "format", "degree", "form", "inputs": ["x"],
     "consts": {name: hex bits}, "ops": [{"op", "dst", "src": [...], "format"}],
     "outputs": {"value": name}, "digest"}

Operands are inputs, constants or earlier results. Every operation works in its own ``format`` and rounds
once to it; only ``cvt`` takes an operand of another format. A constant has the width of the operations
that use it (4 hexadecimal digits for 16 bits, 8 for fp32). ``set.*`` give a mask of all ones or zeros;
only ``select`` takes one, as its first operand.

Conventions of names: ``clamp`` is the clamp Lc on |x|; ``c0``, ``c1``, ... are polynomial coefficients.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from polyfma.errors import ProgramError, UnknownNameError
from polyfma.formats import FORMATS, Format, get_format
from polyfma.functions import DIRECTIONS, Function, get_function


@dataclass(frozen=True)
class Operation:
    """What the IR knows of an operation: operand count, the pipe that runs it, what it computes."""

    arity: int
    pipe: str
    meaning: str


OPERATIONS: Mapping[str, Operation] = MappingProxyType(
    {
        "fma": Operation(3, "fma", "a * b + c, rounded once"),
        "fma.relu": Operation(3, "fma", "max(a * b + c, +0); NaN stays NaN; 16-bit formats only"),
        "fma.sat": Operation(3, "fma", "a * b + c clamped to [0, 1]; NaN becomes +0; fp16 and fp32 only"),
        "mul": Operation(2, "fma", "a * b"),
        "add": Operation(2, "fma", "a + b"),
        "sub": Operation(2, "fma", "a - b"),
        "min": Operation(2, "alu", "the smaller; a NaN loses against a number"),
        "max": Operation(2, "alu", "the larger; a NaN loses against a number"),
        "min.nan": Operation(2, "alu", "the smaller; NaN if either is"),
        "max.nan": Operation(2, "alu", "the larger; NaN if either is"),
        "min.xorsign.abs": Operation(2, "alu", "min(|a|, |b|) with the xor of the signs; a NaN loses"),
        "min.nan.xorsign.abs": Operation(2, "alu", "min(|a|, |b|) with the xor of the signs; NaN if either is"),
        "abs": Operation(1, "alu", "|a|"),
        "neg": Operation(1, "alu", "-a"),
        "copysign": Operation(2, "alu", "the magnitude of the first with the sign of the second"),
        "set.ge": Operation(2, "alu", "mask of a >= b; false for NaN"),
        "set.gt": Operation(2, "alu", "mask of a > b; false for NaN"),
        "select": Operation(3, "alu", "by the mask a: b where true, c where false"),
        "cvt": Operation(1, "cvt", "a, rounded once to the operation's format"),
        "tanh.approx": Operation(1, "mufu", "the GPU's own tanh, replayed from a recorded table"),
        "ex2.approx": Operation(1, "mufu", "the GPU's own 2^a, replayed from a recorded table"),
    }
)
_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_FIELDS = ("name", "function", "direction", "format", "degree", "form", "inputs", "consts", "ops", "outputs")


@dataclass(frozen=True)
class Op:
    """One operation: ``dst = op(src...)`` in ``format``."""

    op: str
    dst: str
    src: tuple[str, ...]
    format: str

    def to_dict(self) -> dict[str, Any]:
        return {"op": self.op, "dst": self.dst, "src": list(self.src), "format": self.format}


@dataclass(frozen=True)
class Counts:
    """Instructions for one pair of lanes.

    A 16-bit operation is one packed instruction, an fp32 operation two scalar ones. A conversion from fp32
    to 16 bits packs both lanes in one, one to fp32 takes two, and one between 16-bit formats, which goes
    through fp32, three.
    """

    instructions: int
    fma: int
    alu: int
    cvt: int
    mufu: int


class Straightline:
    """What a :class:`Program` and a fused operation (:mod:`polyfma.ops`) share: operations that replay runs and emission lowers.

    Inputs and outputs are of ``format``; operations may work in other formats.
    """

    name: str
    format: str
    inputs: tuple[str, ...]
    consts: Mapping[str, str]
    ops: tuple[Op, ...]
    outputs: Mapping[str, str]

    @property
    def fmt(self) -> Format:
        """The format of inputs and outputs."""
        return get_format(self.format)

    @cached_property
    def const_formats(self) -> Mapping[str, Format]:
        """The format in which each constant is used (the program's own where it is not used)."""
        used = {name: get_format(op.format) for op in self.ops if op.op != "cvt" for name in op.src}
        return {name: used.get(name, self.fmt) for name in self.consts}

    def const_value(self, name: str) -> float:
        """A constant as a number."""
        return float(self.const_formats[name].decode(int(self.consts[name], 16)))

    @cached_property
    def counts(self) -> Counts:
        totals = dict.fromkeys(("fma", "alu", "cvt", "mufu"), 0)
        formats = dict.fromkeys(self.inputs, self.format)
        for op in self.ops:
            cost = 1 if get_format(op.format).width == 16 else 2
            if op.op == "cvt" and cost == 1 and formats[op.src[0]] != "fp32":
                cost = 3
            totals[OPERATIONS[op.op].pipe] += cost
            formats[op.dst] = op.format
        return Counts(sum(totals.values()), **totals)


@dataclass(frozen=True, eq=False)
class Program(Straightline):
    """A straight-line program for one function, direction and format. Immutable; equal by digest.

    Raises ProgramError on construction when an operand is undefined or of the wrong format, a name is
    defined twice, an operation or arity is unknown, or a constant's width does not fit its use.
    """

    name: str
    function: str
    direction: str
    format: str
    degree: int
    form: str
    inputs: tuple[str, ...]
    consts: Mapping[str, str]
    ops: tuple[Op, ...]
    outputs: Mapping[str, str]

    def __post_init__(self) -> None:
        object.__setattr__(self, "inputs", tuple(self.inputs))
        object.__setattr__(self, "ops", tuple(self.ops))
        object.__setattr__(self, "consts", MappingProxyType(dict(self.consts)))
        object.__setattr__(self, "outputs", MappingProxyType(dict(self.outputs)))
        _validate(self)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Program) and self.digest == other.digest

    def __hash__(self) -> int:
        return hash(self.digest)

    def __reduce__(self) -> tuple[Any, ...]:
        return Program.from_dict, (self.to_dict(),)

    # -- views ---------------------------------------------------------------------------------------

    @property
    def target(self) -> Function:
        """The Function in the program's direction."""
        return get_function(self.function, self.direction)

    def target_of(self, output: str) -> Function:
        """What an output approximates: ``derivative`` the derivative, any other the program's own target."""
        return get_function(self.function, "backward") if output == "derivative" else self.target

    @property
    def clamp(self) -> float | None:
        """The clamp Lc on |x|, if the program has one."""
        return abs(self.const_value("clamp")) if "clamp" in self.consts else None

    @property
    def coefficients(self) -> dict[str, float]:
        """Name and value of every constant but the clamp."""
        return {name: self.const_value(name) for name in self.consts if name != "clamp"}

    # -- JSON ----------------------------------------------------------------------------------------

    def _content(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "function": self.function,
            "direction": self.direction,
            "format": self.format,
            "degree": self.degree,
            "form": self.form,
            "inputs": list(self.inputs),
            "consts": dict(self.consts),
            "ops": [op.to_dict() for op in self.ops],
            "outputs": dict(self.outputs),
        }

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the canonical JSON (sorted keys, no spaces) of every field but the digest itself."""
        canonical = json.dumps(self._content(), sort_keys=True, separators=(",", ":"), ensure_ascii=True)
        return hashlib.sha256(canonical.encode()).hexdigest()

    def to_dict(self) -> dict[str, Any]:
        """The JSON form described at the top of this module."""
        return self._content() | {"digest": self.digest}

    def to_json(self) -> str:
        """Readable JSON: one line a field, constant and operation."""
        return json.dumps(self.to_dict(), indent=1) + "\n"

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Program:
        """The Program of a dict made by :meth:`to_dict`.

        ``digest`` may be absent; one that does not match the content is refused. Raises ProgramError.
        """
        try:
            missing = [field for field in _FIELDS if field not in data]
            if missing:
                raise ProgramError(f"not a program: missing {', '.join(missing)}")
            unknown = sorted(set(data) - {*_FIELDS, "digest"})
            if unknown:
                raise ProgramError(f"not a program: unknown field {', '.join(map(repr, unknown))}")
            program = cls(
                **{f: data[f] for f in ("name", "function", "direction", "format", "degree", "form")},
                inputs=_as_list(data["inputs"]),
                consts={str(k): str(v) for k, v in data["consts"].items()},
                ops=tuple(_op_of(o) for o in data["ops"]),
                outputs={str(k): str(v) for k, v in data["outputs"].items()},
            )
        except (TypeError, KeyError, AttributeError, RecursionError) as error:
            raise ProgramError(f"not a program: {type(error).__name__}: {error}") from error
        given = data.get("digest", program.digest)
        if given != program.digest:
            raise ProgramError(
                f"digest of {program.name} does not match its content: stored {str(given)[:12]}, computed"
                f" {program.digest[:12]}; the file was changed: fit or load it again"
            )
        return program

    @classmethod
    def read(cls, path: str | Path) -> Program:
        """The Program of a JSON file. Raises ProgramError for any file that is not one."""
        try:
            data = json.loads(Path(path).read_text(encoding="utf-8"))
        except OSError as error:
            raise ProgramError(f"cannot read program {str(path)!r}: {error.strerror}") from error
        except (ValueError, RecursionError) as error:
            raise ProgramError(f"{str(path)!r} is not a program: not JSON ({error})") from error
        if not isinstance(data, dict):
            raise ProgramError(f"{str(path)!r} is not a program: expected a JSON object")
        return cls.from_dict(data)

    def renamed(self, name: str) -> Program:
        """The same program under another name (the digest covers the name)."""
        return Program.from_dict({k: v for k, v in self.to_dict().items() if k != "digest"} | {"name": name})

    def with_consts(self, consts: Mapping[str, int]) -> Program:
        """The same operations with other bit patterns for the named constants."""
        formats = self.const_formats
        unknown = sorted(set(consts) - set(self.consts))
        if unknown:
            raise ProgramError(f"{self.name} has no constant {', '.join(unknown)}")
        for name, bits in consts.items():
            if isinstance(bits, bool) or not isinstance(bits, int | np.integer) or not 0 <= bits <= formats[name].all_ones:
                raise ProgramError(f"constant {name} = {bits!r} is not a bit pattern of {formats[name]}")
        new = {n: formats[n].hex(consts[n]) if n in consts else h for n, h in self.consts.items()}
        return Program.from_dict({k: v for k, v in self.to_dict().items() if k != "digest"} | {"consts": new})

    # -- for people ----------------------------------------------------------------------------------

    def listing(self) -> list[str]:
        """The operations as readable lines, constants as numbers: ``t = min.nan(abs x, 5.25)``."""
        lines = []
        for op in self.ops:
            operands = [f"{self.const_value(s):.10g}" if s in self.consts else s for s in op.src]
            suffix = "" if op.format == self.format else f"   [{op.format}]"
            lines.append(f"{op.dst} = {op.op}({', '.join(operands)}){suffix}")
        return [*lines, *(f"{name}: {source}" for name, source in self.outputs.items())]


def _op_of(data: Mapping[str, Any]) -> Op:
    unknown = sorted(set(data) - {"op", "dst", "src", "format"})
    if unknown:
        raise ProgramError(f"not a program: unknown field {', '.join(map(repr, unknown))} of an operation")
    return Op(data["op"], data["dst"], _as_list(data["src"]), data["format"])


def _as_list(value: Any) -> tuple[Any, ...]:
    if not isinstance(value, list | tuple):
        raise TypeError(f"expected a list, not {value!r}")
    return tuple(value)


def _validate(p: Program) -> None:
    def refuse(problem: str) -> None:
        raise ProgramError(f"program {p.name!r}: {problem}")

    if not isinstance(p.name, str) or not _NAME.fullmatch(p.name):
        raise ProgramError(f"program name {p.name!r} must be letters, digits, '.', '_' and '-'")
    if not isinstance(p.degree, int) or isinstance(p.degree, bool) or p.degree < 0:
        refuse(f"degree {p.degree!r} must be a whole number from 0 up")
    if p.direction not in DIRECTIONS:
        refuse(f"direction {p.direction!r} must be forward or backward")
    try:
        get_format(p.format)
        get_function(p.function, p.direction)
    except UnknownNameError as error:
        raise ProgramError(f"program {p.name!r}: {error}") from error
    if len(p.inputs) != 1:
        refuse(f"it has {len(p.inputs)} inputs; a program has one")
    if not isinstance(p.form, str) or not _NAME.fullmatch(p.form):
        refuse(f"form {p.form!r} must be letters, digits, '.', '_' and '-'")
    for output in p.outputs:
        if not _IDENTIFIER.fullmatch(output):
            refuse(f"output {output!r} is not an identifier")
    for name, text in p.consts.items():
        if not re.fullmatch(r"[0-9a-f]{4}|[0-9a-f]{8}", text):
            refuse(f"constant {name} = {text!r} must be 4 or 8 lower-case hexadecimal digits")
    check_straightline(p, refuse)


def check_straightline(p: Straightline, refuse: Callable[[str], None]) -> None:
    """Calls ``refuse`` with the first problem of constants, operations or outputs."""
    kinds = _check_ops(p, refuse)
    if not p.outputs:
        refuse("it has no output")
    for output, source in p.outputs.items():
        if kinds.get(source) != p.format:
            refuse(f"output {output} = {source!r} is not a result of format {p.format}")


def _check_ops(p: Straightline, refuse: Callable[[str], None]) -> dict[str, str]:
    """The kind (format name, or ``mask:`` and format) of every defined name."""
    kinds: dict[str, str] = dict.fromkeys(p.inputs, p.format)
    for name in (*p.inputs, *p.consts, *(op.dst for op in p.ops)):
        if not isinstance(name, str) or not _IDENTIFIER.fullmatch(name):
            refuse(f"{name!r} is not an identifier")
    if len(kinds) != len(p.inputs) or set(p.consts) & set(kinds):
        refuse("an input or constant is named twice")
    for op in p.ops:
        known = OPERATIONS.get(op.op)
        if known is None:
            refuse(f"unknown operation {op.op!r}; known: {', '.join(OPERATIONS)}")
            continue
        if op.format not in FORMATS:
            refuse(f"{op.op} -> {op.dst}: unknown format {op.format!r}")
        if (op.op, op.format) in (("fma.sat", "bf16"), ("fma.relu", "fp32")):
            refuse(f"{op.op} does not exist in {op.format} on any architecture; end with min or max instead")
        if len(op.src) != known.arity:
            refuse(f"{op.op} -> {op.dst} takes {known.arity} operands, not {len(op.src)}")
        for position, source in enumerate(op.src):
            _check_operand(p, op, position, source, kinds, refuse)
        if op.dst in kinds or op.dst in p.consts:
            refuse(f"{op.dst!r} is defined twice")
        kinds[op.dst] = f"mask:{op.format}" if op.op.startswith("set.") else op.format
    _check_constants(p, refuse)
    return kinds


def _check_constants(p: Straightline, refuse: Callable[[str], None]) -> None:
    """Every constant has one width: that of the operations that use it, all in one format."""
    for name, text in p.consts.items():
        used = {op.format for op in p.ops if name in op.src} or {p.format}
        if len(used) > 1:
            refuse(f"constant {name!r} is used in {' and '.join(sorted(used))}; give each format its own")
        (fmt,) = used
        if len(text) != get_format(fmt).hex_digits:
            refuse(f"constant {name!r} has {len(text)} hex digits; {fmt} takes {get_format(fmt).hex_digits}")


def _check_operand(p: Straightline, op: Op, position: int, source: str, kinds: dict[str, str], refuse: Callable[[str], None]) -> None:
    wanted = f"mask:{op.format}" if op.op == "select" and position == 0 else op.format
    if source in p.consts:
        if op.op == "cvt" or wanted != op.format:
            refuse(f"{op.op} -> {op.dst}: constant {source!r} cannot be operand {position + 1}")
        return
    kind = kinds.get(source)
    if kind is None:
        refuse(f"{op.op} -> {op.dst}: operand {source!r} is not defined before")
    elif op.op == "cvt":
        if kind.startswith("mask:"):
            refuse(f"cvt -> {op.dst}: {source!r} is a mask")
        if kind == op.format:
            refuse(f"cvt -> {op.dst}: {source!r} is {kind} already")
    elif kind != wanted:
        refuse(f"{op.op} -> {op.dst}: operand {source!r} is {kind}, not {wanted}")
