"""The last step of a search: small steps of all free constants of a program together, clamp and slope included.

The search proper fixes a clamp and moves coefficients; here any two constants move by up to two places of the
format's grid while the first coefficient is solved exactly, until nothing helps.
"""

from __future__ import annotations

import re

import numpy as np

from polyfma.fit import search_vm, vm
from polyfma.fit.inputs import scored_inputs, wide_reach
from polyfma.fit.request import Request
from polyfma.formats import Values
from polyfma.program import Program
from polyfma.replay import real_values

_STEPS = 64  # of the format's grid, for the sign of the slope in the first coefficient


def polish(program: Program, request: Request, *, keep_clamp: bool = False, kicks: int = 0) -> Program:
    """A program of the same operations with a smaller score, or the program itself.

    The score is the search's: on its inputs, with the tails and the range that the request demands. The caller
    certifies what comes back. ``kicks`` is how many random steps of several constants follow the systematic ones.
    """
    names = _movable(program, keep_clamp)
    if len(names) < 2 or program.clamp is None:
        return program
    code = vm.compile_program(program, names)
    inputs = scored_inputs(request, wide_reach(program), every=True)
    slopes = _slope_signs(program, names[0], inputs.x)
    blocks = [vm.layout(v) for v in (inputs.x, inputs.f, inputs.low, inputs.high, inputs.weight, slopes)]
    values = np.array([program.const_value(n) for n in names])
    bias = -1.0 if request.objective.distribution is None else request.objective.bias_weight
    improved = search_vm.polish_one(code.ops, code.constants, code.coefficient_slots, code.output, code.coefficient_format, *blocks, bias, values,
                             kicks, request.seed)  # fmt: skip
    if not improved:
        return program
    formats = program.const_formats
    return program.with_consts({n: int(formats[n].encode(v)) for n, v in zip(names, values, strict=True)})


def _movable(program: Program, keep_clamp: bool) -> list[str]:
    """Coefficients first, then clamp and slope; only those of one format, which is that of the coefficients."""
    coefficients = [n for n in program.consts if re.fullmatch(r"[cd]\d+", n)]
    if not coefficients:
        return []
    fmt = program.const_formats[coefficients[0]]
    others = [n for n in ("clamp", "slope") if n in program.consts and not (keep_clamp and n == "clamp")]
    return [n for n in (*coefficients, *others) if program.const_formats[n] == fmt]


def _slope_signs(program: Program, name: str, x: Values) -> Values:
    """The sign of the output's slope in a coefficient, at every input, in real arithmetic."""
    fmt = program.const_formats[name]
    bits = int(program.consts[name], 16)
    magnitude = max((bits & (fmt.sign_bit - 1)) + _STEPS, int(fmt.encode(4 * fmt.min_normal)))
    moved = program.with_consts({name: magnitude | bits & fmt.sign_bit})
    difference = real_values(moved, x) - real_values(program, x)
    if bits & fmt.sign_bit:
        difference = -difference
    return np.where(difference < 0, -1.0, 1.0)
