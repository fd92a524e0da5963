"""Which program an operator runs: by function and dtype, from what the caller gave as ``program=`` and ``backward=``.

A :class:`Choice` is plain text when it passes through torch (``silu/bf16/NAME/NAME/``), so a compiled graph holds a
constant. It never depends on a tensor's size. The defaults are data (``defaults.json``): per function and dtype the most
accurate catalogue program that ran at copy speed on the measured device (:mod:`polyfma.bench.defaults` makes the file).
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

from polyfma import catalog
from polyfma.derivative import differentiate
from polyfma.errors import CoefficientError, ProgramError, UnknownNameError
from polyfma.folding import fold, scaled_outside
from polyfma.formats import get_format
from polyfma.functions import get_function
from polyfma.pareto import TIERS, best
from polyfma.program import Program
from polyfma.replay import replay

EXACT, MATCHED, DIRECT, HARDWARE = "exact", "matched", "direct", "hardware"
RELU = "relu"  # exact in one packed operation, so it has no programs
_registered: dict[str, Program] = {}
_scaled_from: dict[str, tuple[Program, float]] = {}  # digest of a program scaled outside: what it was, and the scale of its input


@dataclass(frozen=True)
class Choice:
    """``forward`` and ``backward`` are keys of programs (:func:`program_of`) or ``exact``; ``limit`` clamps a gated unit."""

    function: str
    format: str
    forward: str
    backward: str
    limit: float | None = None

    @property
    def key(self) -> str:
        return "/".join((self.function, self.format, self.forward, self.backward, "" if self.limit is None else repr(self.limit)))


@lru_cache(maxsize=1024)
def parse(key: str) -> Choice:
    """The Choice of a key."""
    function, fmt, forward, backward, limit = key.split("/")
    return Choice(function, fmt, forward, backward, float(limit) if limit else None)


def register(program: Program) -> str:
    """The key of a program: its catalogue name, or name and digest of one from elsewhere, which is remembered.

    ``program=`` takes the key too. It is how a compiled function names a Program on torch 2.11, which cannot hold one.
    """
    if program.name in _names() and catalog.load(program.name) == program:
        return program.name
    key = f"{program.name}#{program.digest[:16]}"
    _registered[key] = program
    return key


@cache
def _names() -> frozenset[str]:
    return frozenset(catalog.programs())


def program_of(key: str) -> Program:
    """The program of a key. Raises UnknownNameError for one of another process that was not given here."""
    if key in _registered:
        return _registered[key]
    if "#" in key and not Path(key).is_file():
        raise UnknownNameError(f"program {key!r} is not known in this process; pass the Program to polyfma.ops.register here too")
    return catalog.load(key)


def is_file(given: str) -> bool:
    """Whether the text is the path of a program's file, and not a name, a tier or a key."""
    return given not in (EXACT, HARDWARE, *TIERS) and given not in _names() and given not in _registered and Path(given).is_file()


@cache
def _defaults() -> dict[str, Any]:
    data: dict[str, Any] = json.loads((files("polyfma.ops") / "defaults.json").read_text(encoding="utf-8"))
    return data["programs"]


def default_program(function: str, fmt: str, direction: str = "forward") -> Program:
    """The default of a function in bf16 or fp16. A softcap of any cap is folded from the measured one."""
    base, cap = _base(function)
    return adapted(catalog.load(_defaults()[base][fmt][direction]), function, cap, fmt)


def _base(function: str) -> tuple[str, float | None]:
    """The function that has defaults, and for a softcap its cap."""
    if function.startswith("softcap-"):
        return "softcap", float(function.removeprefix("softcap-"))
    if function not in _defaults():
        raise UnknownNameError(f"no default program for {function!r}; pass program=, one of your own or exact")
    return function, None


def adapted(program: Program, function: str, cap: float | None, fmt: str) -> Program:
    """A program of tanh or of another cap as cap * tanh(x / cap), in ``fmt``. Anything else stays as it is.

    The scales go into its constants, or outside where those cannot hold them.
    """
    if cap is None or (program.function, program.format) == (function, fmt):
        return program
    ratio = (1 if program.function == "tanh" else float(program.function.removeprefix("softcap-"))) / cap
    after = 1 / ratio if program.direction == "forward" else 1.0
    try:
        scaled = fold(program, input_scale=ratio, output_scale=after)
    except (CoefficientError, ProgramError):
        scaled = scaled_outside(program, input_scale=ratio, output_scale=after)
    data = {k: v for k, v in _in_format(scaled, fmt).to_dict().items() if k != "digest"}
    made = Program.from_dict(data | {"function": function})
    if scaled.form.endswith("-scaled"):
        _scaled_from[made.digest] = (program, ratio)
    return made


def _computes_in_fp32(program: Program) -> bool:
    """Whether the format is only that of input, output and the clamp between them."""
    return all(op.format == "fp32" or op.op in ("cvt", "min.nan.xorsign.abs", "min.nan") for op in program.ops)


def _in_format(program: Program, fmt: str) -> Program:
    """A program that computes in fp32 with 16-bit input and output of the other kind."""
    if program.format == fmt:
        return program
    f = get_format(fmt)
    consts = {name: f.hex(int(f.encode(np.clip(program.const_value(name), -f.max_finite, f.max_finite)))) if wanted is program.fmt else program.consts[name]
              for name, wanted in program.const_formats.items()}  # fmt: skip
    ops = [op.to_dict() | {"format": fmt if op.format == program.format else op.format} for op in program.ops]
    data = {k: v for k, v in program.to_dict().items() if k != "digest"}
    return Program.from_dict(data | {"name": f"{program.name}.{fmt}", "format": fmt, "consts": consts, "ops": ops})


def function_with(family: str, parameter: str | None) -> str:
    """The function's name with its parameter (``float.hex``) written as names have it (``softcap-30``)."""
    if parameter is None or (family == "silu" and float.fromhex(parameter) == 1):
        return family
    return f"{family}-{np.format_float_positional(float.fromhex(parameter), trim='-')}"


def choose(function: str, fmt: str, program: str | Program | None = None, backward: str | Program | None = None,
           limit: float | None = None) -> Choice:  # fmt: skip
    """The Choice of an operator call.

    ``program``: None for the default, a name or path, a Program, a tier (fast, balanced, accurate, faithful, hardware) or ``exact``.
    ``backward``: ``direct`` (a fitted program of the derivative; the default for programs, but where FP16 cannot hold a cap's scale), ``matched`` (the derivative of
    the forward program), ``exact`` (the default for exact), or a backward program or its name. Raises UnknownNameError and
    ProgramError that say what was given and what is allowed.
    """
    if function == RELU:
        return Choice(RELU, fmt, EXACT, EXACT, limit)
    get_function(function)
    forward = _forward(function, fmt, program)
    if backward is None:
        slope = None if forward is None else _default_slope(function, fmt)
    else:
        slope = _backward(function, fmt, forward, backward)
    keys = [EXACT if p is None else register(p) for p in (forward, slope)]
    return Choice(function, fmt, keys[0], keys[1], limit)


def _forward(function: str, fmt: str, given: str | Program | None) -> Program | None:
    """The forward program; None for exact."""
    if given is None:
        return default_program(function, fmt)
    if given == EXACT:
        return None
    if isinstance(given, str) and given in (*TIERS, HARDWARE):
        return _tier(function, fmt, given)
    return _checked(_program(given), function, fmt, "forward")


def _program(given: object) -> Program:
    """A Program or the program of a name or key. Raises ProgramError for anything else, UnknownNameError for an unknown name."""
    if isinstance(given, Program):
        return given
    if not isinstance(given, str):
        raise ProgramError(f"{given!r} must be a name, a Program, or a word that program= or backward= takes")
    return _named(given)


def _named(given: str) -> Program:
    try:
        return program_of(given)
    except UnknownNameError as error:
        raise UnknownNameError(f"{error}; an operator also takes {', '.join(TIERS)}, {HARDWARE} and {EXACT}") from error


def _tier(function: str, fmt: str, tier: str) -> Program:
    """The tier's program of the function; of a softcap without programs in the format, of tanh."""
    base, cap = _base(function)
    if cap is not None:
        base = "softcap-50" if fmt == "bf16" or tier == HARDWARE else "tanh"
    if tier == HARDWARE and f"{base}.forward.{fmt}.{HARDWARE}" not in _names():
        raise UnknownNameError(f"{function} has no hardware form; it has programs ({', '.join(TIERS)}) and {EXACT}")
    found = catalog.load(f"{base}.forward.{fmt}.{HARDWARE}") if tier == HARDWARE else best(base, format=fmt, tier=tier)
    return adapted(found, function, cap, fmt)


def _default_slope(function: str, fmt: str) -> Program | None:
    """The default program of the derivative; None, for exact, where no program holds the cap's scale in the format."""
    try:
        return default_program(function, fmt, "backward")
    except CoefficientError:
        return None


def _backward(function: str, fmt: str, forward: Program | None, given: str | Program) -> Program | None:
    """The program of the derivative; None for exact."""
    if given == EXACT:
        return None
    if given == DIRECT:
        return default_program(function, fmt, "backward")
    if given == MATCHED:
        if forward is None:
            raise ProgramError("backward 'matched' is the derivative of a program; the exact forward has none: use backward='exact'")
        return _matched(forward)
    return _checked(_program(given), function, fmt, "backward")


@lru_cache(maxsize=256)
def _matched(forward: Program) -> Program:
    base, ratio = _scaled_from.get(forward.digest, (forward, 1.0))
    # c tanh'(x/c) / c: the two scales cancel, before they could lose the small one's digits.
    slope = scaled_outside(differentiate(base), input_scale=ratio)
    values = slope.fmt.decode(np.asarray(replay(slope, slope.fmt.finite_bits())))
    if not np.isfinite(values).all():
        raise ProgramError(f"{forward.name} overflows inside, so its own derivative is not finite everywhere; use backward='direct'")
    return slope


def _checked(program: Program, function: str, fmt: str, direction: str) -> Program:
    """A program that this operator can run."""
    cap = float(function.removeprefix("softcap-")) if function.startswith("softcap-") else None
    if cap is not None and program.function.startswith(("softcap-", "tanh")) and (program.format == fmt or _computes_in_fp32(program)):
        program = adapted(program, function, cap, fmt)  # of another cap
    given = (program.function, program.direction, program.format)
    if given != (function, direction, fmt):
        raise ProgramError(f"{program.name} is a {given[0]} {given[1]} program in {given[2]}; this call needs {function} {direction} in {fmt}"
                           " (the dtype of the input)")  # fmt: skip
    if set(program.outputs.values()) & {*program.inputs, *program.consts}:
        raise ProgramError(f"{program.name} gives back its input; an operator takes a program that computes")
    if len(program.outputs) != 1:
        raise ProgramError(f"{program.name} has outputs {', '.join(program.outputs)}; an operator takes a program of one output")
    return program

