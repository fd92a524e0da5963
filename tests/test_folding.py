from __future__ import annotations

import numpy as np
import pytest

import polyfma as pf
from polyfma import CoefficientError, ProgramError

NAMES = pf.programs()
FORMS = list({(pf.load(n).form, pf.load(n).format): n for n in NAMES}.values())
POWERS = ((2.0, 1.0), (1.0, 4.0), (4.0, 0.25), (0.5, 1.0), (1.0, 2.0**-12), (0.25, 4.0))


@pytest.mark.parametrize("name", FORMS)
def test_powers_of_two_give_the_same_bits_scaled(name: str) -> None:
    """y(x) of the folded program is S_out p(S_in x) to the bit, where no result of the chain is subnormal; or it is refused."""
    p = pf.load(name)
    fmt = p.fmt
    done = 0
    half = fmt.name == "fp16" or "fp16" in p.form
    for s_in, s_out in POWERS[: 3 if half else None]:
        try:
            folded = pf.fold(p, input_scale=s_in, output_scale=s_out)
        except (ProgramError, CoefficientError):
            continue
        done += 1
        bits = fmt.finite_bits()
        x = fmt.decode(bits)
        low, high = (2.0**-3, 2.0**5) if half else (2.0**-60, 2.0**20)
        usable = (np.abs(x) >= low) & (np.abs(x) <= high)
        got, wanted = pf.replay(folded, bits[usable]), pf.replay(p, fmt.encode(x[usable] * s_in))
        for output in p.outputs:
            g, w = (fmt.decode(v[output] if isinstance(v, dict) else v) for v in (got, wanted))
            clear = (np.abs(w) > (2.0**-4 if half else 2.0**-80)) & (np.abs(w) < (2.0**12 if half else 2.0**100))
            assert np.array_equal(g[clear], w[clear] * s_out), (name, s_in, s_out)
    # What is made of x itself, as x * sigmoid(x), takes inverse scales only; a hardware function no input scale.
    assert done or p.counts.mufu or half, name


def test_scales_reach_the_constants_they_must() -> None:
    p = pf.load("tanh.forward.bf16.d3")
    folded = pf.fold(p, input_scale=0.5, output_scale=8.0)
    assert folded.clamp == 2 * p.clamp and folded.name == "tanh.forward.bf16.d3.in0.5.out8"
    for k in (1, 2, 3):
        assert folded.const_value(f"c{k}") == p.const_value(f"c{k}") * 8 / 2**k
    assert folded.ops == p.ops and folded.digest != p.digest
    assert pf.fold(p) is p


def test_the_centre_scales_with_the_output_only() -> None:
    """Sigmoid over n = 4096 keys: p / n, as sigmoid attention folds it."""
    p = pf.load("sigmoid.forward.bf16.d4")
    folded = pf.fold(p, output_scale=1 / 4096)
    assert folded.const_value("centre") == 0.5 / 4096 and folded.const_value("limit") == 1 / 4096
    x = p.fmt.finite_bits()
    assert np.array_equal(p.fmt.decode(pf.replay(folded, x)) * 4096, p.fmt.decode(pf.replay(p, x)))


def test_arbitrary_scales_round_the_constants() -> None:
    p = pf.load("tanh.forward.bf16.d4")
    folded = pf.fold(p, input_scale=1 / 50, output_scale=50.0)
    x = np.linspace(-150, 150, 2001)
    error = np.abs(pf.BF16.decode(pf.replay(folded, pf.BF16.encode(x))) - 50 * np.tanh(pf.BF16.decode(pf.BF16.encode(x)) / 50))
    assert np.max(error) < 50 * 0.02


def test_x_sigmoid_needs_inverse_scales() -> None:
    p = pf.load("silu.forward.bf16.d4")
    with pytest.raises(ProgramError, match=r"cannot take input_scale 2 with output_scale 1: an operation would mix values"):
        pf.fold(p, input_scale=2.0)
    folded = pf.fold(p, input_scale=1.702, output_scale=1 / 1.702)
    target = pf.get_function("silu-1.702").table(pf.BF16)
    bits = pf.BF16.finite_bits()
    error = np.abs(pf.BF16.decode(pf.replay(folded, bits)) - target.exact[bits]) / np.maximum(1, np.abs(target.exact[bits]) / 2)
    assert np.max(error) < 0.02


def test_hardware_functions_take_scales_around_them() -> None:
    p = pf.load("sigmoid.forward.bf16.hardware")
    assert pf.fold(p, input_scale=2.0, output_scale=0.25).const_value("factor") == 1.0
    with pytest.raises(ProgramError, match=r"cannot take input_scale"):
        pf.fold(pf.load("tanh.forward.bf16.hardware"), input_scale=2.0)


def test_the_largest_number_stays_only_where_it_bounds() -> None:
    def own(*ops: pf.Op) -> pf.Program:
        return pf.Program("own", "tanh", "forward", "bf16", 1, "odd", ("x",), {"m": "7f7f", "c": "3f80"}, ops, {"value": ops[-1].dst})

    product = own(pf.Op("fma", "y", ("x", "m", "c"), "bf16"))
    folded = pf.fold(product, output_scale=0.25)
    bits = pf.BF16.encode(np.array([2.0**-125, 2.0**-100, 1.0]))
    assert np.array_equal(pf.BF16.decode(pf.replay(folded, bits)), pf.BF16.decode(pf.replay(product, bits)) * 0.25)
    with pytest.raises(CoefficientError, match=r"constant m of own, scaled, .* not finite"):
        pf.fold(own(pf.Op("sub", "y", ("x", "m"), "bf16")), input_scale=0.5, output_scale=2.0)
    silu = pf.load("silu.forward.bf16.hardware")
    assert pf.fold(silu, input_scale=0.5, output_scale=2.0).const_value("lowest") == silu.const_value("lowest")


def test_refusals() -> None:
    powers = pf.Program("x8", "tanh", "forward", "bf16", 1, "odd", ("x",), {"k": "3f00", "one": "3f80"}, (
        pf.Op("mul", "a", ("x", "x"), "bf16"), pf.Op("mul", "b", ("a", "a"), "bf16"), pf.Op("mul", "d", ("b", "b"), "bf16"),
        pf.Op("fma", "y", ("d", "k", "one"), "bf16")), {"value": "y"})  # fmt: skip
    for scale in (1e-300, 1e300, 1e-40, 1e60):
        with pytest.raises(CoefficientError, match=r"constant k of x8, scaled"):
            pf.fold(powers, input_scale=scale)
    with pytest.raises(CoefficientError, match=r"becomes subnormal in bf16"):
        pf.fold(pf.load("sigmoid.forward.bf16.d4"), output_scale=2.0**-124)
    with pytest.raises(ProgramError, match=r"fold takes a Program, not str"):
        pf.fold("tanh.forward.bf16.d4", input_scale=2)
    p = pf.load("tanh.forward.fp16.d4")
    with pytest.raises(CoefficientError, match=r"constant c\d of tanh.forward.fp16.d4, scaled, .* becomes subnormal in fp16"):
        pf.fold(p, input_scale=0.02)
    for bad in (0.0, -1.0, float("nan"), float("inf"), "2", True, None, 10**400):
        with pytest.raises(ProgramError, match=r"must be a positive number"):
            pf.fold(p, input_scale=bad)


def test_scales_outside_the_program_round_before_and_after() -> None:
    """Where the constants cannot hold a scale: one multiplication at each end, each rounded."""
    from polyfma.folding import scaled_outside

    program = pf.load("tanh.forward.fp16.d4")
    with pytest.raises(pf.CoefficientError):
        pf.fold(program, input_scale=1 / 50, output_scale=50)
    scaled = scaled_outside(program, input_scale=1 / 50, output_scale=50.0)
    bits = pf.FP16.finite_bits()
    inner = pf.FP16.encode(pf.FP16.decode(bits) * pf.FP16.round(np.array(1 / 50)))
    want = pf.FP16.encode(pf.FP16.decode(np.asarray(pf.replay(program, inner))) * 50)
    assert np.array_equal(np.asarray(pf.replay(scaled, bits)), want)
    assert scaled.counts.instructions == program.counts.instructions + 2 and scaled.form.endswith("-scaled")
    with pytest.raises(pf.CoefficientError, match="input scale"):
        scaled_outside(program, input_scale=1e-6)
