"""Exact sequences in float32 emulation, and the float64 references that the CPU rounds."""

from __future__ import annotations

import numpy as np
import pytest

import lanes
import polyfma as pf
from polyfma.ops.exact import both_steps, steps
from polyfma.ops.reference import reference

FUNCTIONS = ("sigmoid", "tanh", "silu", "silu-1.702", "gelu", "gelu-tanh", "softcap-50", "softcap-30")
directions = pytest.mark.parametrize("direction", ["forward", "backward"])
functions = pytest.mark.parametrize("function", FUNCTIONS)
formats = pytest.mark.parametrize("fmt", [pf.BF16, pf.FP16])
# Inputs that an error of the special functions within the ISA's bound could misround; without one there is none.
AT_RISK = {("silu-1.702", "forward"): 2}


def wrong(fmt, got, want):
    """Which patterns differ, NaN and zeros of either sign aside."""
    values, wanted = fmt.decode(got), fmt.decode(want)
    return (got != want) & ~(np.isnan(values) & np.isnan(wanted)) & ~((values == 0) & (wanted == 0))


@functions
@directions
def test_bf16_sequences_round_right_whatever_the_special_functions_err(function, direction) -> None:
    x = pf.BF16.decode(pf.BF16.all_bits())
    want = pf.get_function(function, direction).table("bf16").rounded
    at_risk = np.zeros(65536, bool)
    for ex2 in (-2, 0, 2):
        for rcp in (-1, 0, 1):
            y = lanes.run(steps(function, direction, "bf16"), x, ex2, rcp)["y"]
            missed = wrong(pf.BF16, pf.BF16.encode(y.astype(np.float64)), want)
            assert (ex2, rcp) != (0, 0) or not missed.any()
            at_risk |= missed
    assert at_risk.sum() <= AT_RISK.get((function, direction), 0)


@functions
@directions
def test_fp16_sequences_miss_a_few_inputs(function, direction) -> None:
    x = pf.FP16.decode(pf.FP16.all_bits())
    y = lanes.run(steps(function, direction, "fp16"), x)["y"]
    assert wrong(pf.FP16, pf.FP16.encode(y.astype(np.float64)), pf.get_function(function, direction).table("fp16").rounded).sum() <= 7


@functions
@directions
@formats
def test_references_round_to_the_rigorous_tables(function, direction, fmt) -> None:
    with np.errstate(all="ignore"):
        values = reference(function, direction, fmt.decode(fmt.all_bits()))
    got, want = fmt.encode(values), pf.get_function(function, direction).table(fmt).rounded
    assert not wrong(fmt, got, want).any()
    finite_input = np.isfinite(fmt.decode(fmt.all_bits()))
    assert (got == want)[finite_input].all()  # signs of zeros too


PARAMETERS = ("softcap-0.01", "softcap-2", "softcap-15", "softcap-31.3", "softcap-1000", "softcap-100000", "silu-0.5", "silu-1.5", "silu-2")


@pytest.mark.parametrize("function", PARAMETERS)
@directions
@formats
def test_other_caps_and_alphas(function, direction, fmt) -> None:
    """Within the range that operators take: at most two BF16 inputs and a dozen FP16 inputs misrounded."""
    x = fmt.decode(fmt.all_bits())
    with np.errstate(all="ignore"):
        want = fmt.encode(reference(function, direction, x))
    got = fmt.encode(lanes.run(steps(function, direction, fmt.name), x)["y"].astype(np.float64))
    assert wrong(fmt, got, want).sum() <= (2 if fmt is pf.BF16 else 12)


@functions
@formats
def test_shared_sequences_give_the_separate_results(function, fmt) -> None:
    """A gated unit's backward pass computes value and slope together: the same bits after rounding in BF16, in FP16 all but four."""
    x = fmt.decode(fmt.all_bits())
    both = lanes.run(both_steps(function, fmt.name), x)
    for register, direction in (("value", "forward"), ("slope", "backward")):
        alone = lanes.run(steps(function, direction, fmt.name, factor=True), x)["y"]
        differ = wrong(fmt, fmt.encode(both[register].astype(np.float64)), fmt.encode(alone.astype(np.float64))).sum()
        assert differ <= (4 if fmt is pf.FP16 else 0)


@pytest.mark.parametrize("function", ["silu", "silu-1.702", "gelu", "gelu-tanh"])
@formats
def test_factors_are_accurate_beyond_the_format(function, fmt) -> None:
    """What a gated unit multiplies: relative error within 2^-12 wherever a product by the format's largest number shows it by a
    twentieth of the least subnormal, and fp32 accuracy where the function is of ordinary size."""
    x = fmt.decode(fmt.finite_bits())
    unseen = max(float(fmt.decode(1)) / fmt.max_finite / 20, 2.0**-138)  # fp32 itself loses digits from 2^-126 down
    for direction in ("forward", "backward"):
        y = lanes.run(steps(function, direction, fmt.name, factor=True), x)["y"].astype(np.float64)
        with np.errstate(all="ignore"):
            exact = reference(function, direction, x)
            error = np.abs(y - exact)
        root = np.where((direction == "backward") & (np.abs(x) < 2), 2.0**-26, 0.0)  # a derivative's, where only fp32's own error is left
        assert (error <= np.maximum.reduce([2.0**-12 * np.abs(exact), np.full(x.shape, unseen), root])).all()
        ordinary = np.abs(exact) > 1e-3
        assert np.median(error[ordinary] / np.abs(exact[ordinary])) < 2.0**-20


def test_unknown_functions_are_refused() -> None:
    for given in (("relu", "forward", "bf16"), ("exp2", "forward", "bf16"), ("silu", "forward", "fp32"), ("silu", "sideways", "bf16")):
        with pytest.raises(pf.UnknownNameError):
            steps(*given)
