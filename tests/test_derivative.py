"""The derivative of a program: against differences of the program in real arithmetic, and on every input."""

from __future__ import annotations

import numpy as np
import pytest

import polyfma as pf
from polyfma.derivative import differentiate
from polyfma.replay import real_values

FORWARD = [n for n in pf.programs() if ".forward." in n and not n.startswith("exp2") and "coupled" not in n]
# x^3 overflows inside: its derivative is not finite there, which the operators refuse.
OVERFLOWS = [n for n in FORWARD if n.startswith("gelu-tanh") and n.endswith("hardware")]


def one_of_each_form():
    found = {}
    for name in FORWARD:
        program = pf.load(name)
        found.setdefault((program.form, program.function), name)
    return sorted(found.values())


@pytest.mark.parametrize("name", one_of_each_form())
def test_it_is_the_slope_of_the_program(name) -> None:
    program = pf.load(name)
    slope = differentiate(program)
    scale = 50.0 if program.function == "softcap-50" else 1.0
    x = np.random.default_rng(0).uniform(-6, 6, 4000) * scale
    h = 1e-7 * scale
    difference = (real_values(program, x + h) - real_values(program, x - h)) / (2 * h)
    wrong = np.abs(real_values(slope, x) - difference) > 1e-4
    assert wrong.sum() <= 3  # a kink of the program between x - h and x + h
    assert (slope.function, slope.direction, slope.format) == (program.function, "backward", program.format)


@pytest.mark.parametrize("name", one_of_each_form())
def test_it_is_finite_and_propagates_nan(name) -> None:
    slope = differentiate(pf.load(name))
    f = slope.fmt
    x, y = f.decode(f.all_bits()), f.decode(np.asarray(pf.replay(slope, f.all_bits())))
    assert np.isnan(y[np.isnan(x)]).all()
    assert name in OVERFLOWS or np.isfinite(y[~np.isnan(x)]).all()


def test_constant_and_linear_programs() -> None:
    base = {"function": "tanh", "direction": "forward", "format": "bf16", "degree": 1, "form": "test", "inputs": ["x"]}
    linear = pf.Program.from_dict(base | {"name": "linear", "consts": {"a": "4000", "b": "3f80"}, "outputs": {"value": "y"},
                                          "ops": [{"op": "fma", "dst": "y", "src": ["x", "a", "b"], "format": "bf16"}]})  # fmt: skip
    flat = pf.Program.from_dict(base | {"name": "flat", "consts": {"a": "4000"}, "outputs": {"value": "y"},
                                        "ops": [{"op": "min", "dst": "y", "src": ["a", "a"], "format": "bf16"}]})  # fmt: skip
    same = pf.Program.from_dict(base | {"name": "same", "consts": {}, "outputs": {"value": "y"},
                                        "ops": [{"op": "neg", "dst": "y", "src": ["x"], "format": "bf16"}]})  # fmt: skip
    bits = pf.BF16.encode(np.array([-3.0, 0.0, 2.0]))
    for program, want in ((linear, 2.0), (flat, 0.0), (same, -1.0)):
        assert pf.BF16.decode(np.asarray(pf.replay(differentiate(program), bits))).tolist() == [want] * 3


def test_what_has_no_derivative_is_refused() -> None:
    for given, message in ((pf.load("silu.backward.bf16.d3"), "no forward program"), ("silu.forward.bf16.d3", "takes a Program"),
                           (pf.load("sigmoid.forward.bf16.coupled-d3.endpoint-ls"), "of one output")):  # fmt: skip
        with pytest.raises(pf.ProgramError, match=message):
            differentiate(given)
