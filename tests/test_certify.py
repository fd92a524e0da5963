from __future__ import annotations

import copy
import json
import math

import gmpy2
import pytest

import oracles
import polyfma as pf
from polyfma import Op, Program, ProgramError
from polyfma.forms import get_form
from polyfma.functions import get_function

EXAMPLE = "sigmoid.forward.bf16.d3.sollya"


def identity(fmt: str = "bf16", function: str = "tanh") -> Program:
    return Program("identity", function, "forward", fmt, 1, "none", ("x",), {}, (Op("min.nan", "y", ("x", "x"), fmt),), {"value": "y"})


def test_errors_against_an_independent_loop() -> None:
    """Every figure of a whole certificate recomputed with exact integers and MPFR, input by input, [0, 8]."""
    p = pf.load(EXAMPLE)
    c = pf.certify(p)
    text = p.to_json()
    worst = {"abs": 0.0, "ulp": 0.0, "rel": 0.0}
    for bits in range(0x3C00, int(p.fmt.encode(8.0)) + 1):  # 2^-7 .. 8: where the largest errors of x >= 0 are
        for x in (bits, bits | 0x8000):
            value = float(p.fmt.decode(x))
            exact = oracles.mpfr_function("sigmoid", "forward", value, 200)
            y = oracles.signed("bf16", oracles.interpret(text, x)["value"])
            error = float(abs(gmpy2.mpfr(y.numerator) / y.denominator - exact))
            worst["abs"] = max(worst["abs"], error)
            ulp = 2.0 ** (math.floor(math.log2(float(exact))) - 7)
            worst["ulp"] = max(worst["ulp"], error / ulp)
            if abs(value) <= p.clamp:
                worst["rel"] = max(worst["rel"], error / float(exact))
    assert c.max_abs_error == pytest.approx(worst["abs"], rel=1e-12)
    assert c.max_rel_error == pytest.approx(worst["rel"], rel=1e-12)
    assert c.max_ulp >= worst["ulp"] * (1 - 1e-12)


def test_correct_rounding_reaches_the_floor() -> None:
    """A program whose outputs are the correctly rounded ones has the floor as its errors, and no misrounding."""
    from polyfma import certify as _  # noqa: F401
    from polyfma.certify import _certify_output

    p = pf.load(EXAMPLE)
    bits = p.fmt.all_bits()
    c = _certify_output(p, "value", bits, p.target.table(p.fmt).rounded, "", "fused")
    assert c.max_abs_error == c.floor_abs_error and c.max_ulp == c.floor_ulp <= 0.5
    assert c.max_weighted_error == c.floor_weighted_error and c.misrounded == 0
    assert c.monotone_ulps == 0 and c.exact_tails and c.range["inside"] and c.symmetry["violations"] == 0


def test_published_floors() -> None:
    """The floors of correct rounding that the reference quotes, x 1e-3."""
    floors = {("bf16", "sigmoid", "forward"): 1.95, ("bf16", "tanh", "forward"): 1.94, ("bf16", "silu", "forward"): 7.06,
              ("bf16", "gelu", "forward"): 7.56, ("bf16", "sigmoid", "backward"): 0.49, ("bf16", "tanh", "backward"): 1.95,
              ("bf16", "silu", "backward"): 3.90, ("bf16", "gelu", "backward"): 3.91, ("fp16", "silu", "forward"): 0.96,
              ("fp16", "gelu", "forward"): 0.93, ("fp16", "tanh", "backward"): 0.24}  # fmt: skip
    for (fmt, function, direction), wanted in floors.items():
        c = pf.certify(pf.load(f"{function}.{direction}.{fmt}.d3.sollya"))
        assert round(1e3 * c.floor_weighted_error, 2) == pytest.approx(wanted, abs=0.0051)


def test_the_identity_as_tanh() -> None:
    c = pf.certify(identity())
    assert c.max_abs_error == pytest.approx(3.3895e38, rel=1e-4) and c.max_abs_at.bits in ("7f7f", "ff7f")
    assert not c.exact_tails and c.tails["+inf"]["value"] == math.inf and not c.range["inside"]
    assert c.nan == "propagates" and c.zero == {"f(0)": 0.0, "+0": "0000", "-0": "8000", "exact": True, "sign_kept": True}
    assert c.symmetry == {"kind": "odd", "violations": 0, "max_deviation": math.inf} or c.symmetry["violations"] >= 0
    assert c.monotone_ulps == 0 and c.subnormal["flushed"] == 0


def test_a_non_finite_output_at_a_finite_input_is_an_infinite_error() -> None:
    square = Program("sq", "tanh", "backward", "bf16", 2, "none", ("x",), {}, (Op("mul", "y", ("x", "x"), "bf16"),), {"value": "y"})
    c = pf.certify(square)
    assert c.max_abs_error == math.inf and c.max_ulp == math.inf and c.max_weighted_error == math.inf
    stored = json.loads(c.to_json())
    assert stored["max_abs_error"] == "inf" and c.differences(stored) == []


def test_lost_nan_is_seen() -> None:
    p = Program("n", "tanh", "forward", "fp16", 1, "none", ("x",), {"one": "3c00"}, (Op("min.xorsign.abs", "y", ("x", "one"), "fp16"),), {"value": "y"})
    assert pf.certify(p).nan == "lost at 2046 of 2046"


def test_bias_and_rms_under_a_normal_distribution() -> None:
    """x as an approximation of tanh: E[x - tanh x] is 0 by symmetry, E e^2 / E f^2 by quadrature."""
    from scipy.integrate import quad
    from scipy.stats import norm

    c = pf.certify(identity("fp16"))
    for s in (0.25, 1.0, 2.0):
        top = quad(lambda x, s=s: (x - math.tanh(x)) ** 2 * norm.pdf(x, 0, s), -12 * s, 12 * s, limit=200)[0]
        bottom = quad(lambda x, s=s: math.tanh(x) ** 2 * norm.pdf(x, 0, s), -12 * s, 12 * s, limit=200)[0]
        assert c.rel_rms[f"{s:g}"] == pytest.approx(math.sqrt(top / bottom), rel=1e-3)
        assert abs(c.bias[f"{s:g}"]) < 1e-12


def test_monotonicity_sees_one_planted_step() -> None:
    from polyfma.certify import _certify_output

    p = pf.load(EXAMPLE)
    bits, rounded = p.fmt.all_bits(), p.target.table(p.fmt).rounded.copy()
    at = int(p.fmt.encode(1.0))
    rounded[at] -= 3  # three ulps below its neighbours
    c = _certify_output(p, "value", bits, rounded, "", "fused")
    assert 2 <= c.monotone_ulps <= 3 and c.misrounded == 1


def test_monotonicity_follows_a_function_that_turns() -> None:
    """silu falls to its minimum near -1.278 and rises after it; its correct rounding goes with it."""
    from polyfma.certify import _certify_output

    p = pf.load("silu.forward.bf16.d3.sollya")
    c = _certify_output(p, "value", p.fmt.all_bits(), p.target.table(p.fmt).rounded, "", "fused")
    assert c.monotone_ulps == 0


def test_flushed_subnormals_are_counted() -> None:
    p = Program("f", "tanh", "forward", "fp16", 1, "none", ("x",), {"big": "5c00", "neg": "dc00"},
                (Op("add", "a", ("x", "big"), "fp16"), Op("add", "y", ("a", "neg"), "fp16")), {"value": "y"})  # fmt: skip
    assert pf.certify(p).subnormal["flushed"] == 2 * 1023


@pytest.mark.parametrize("name", ["sigmoid.forward.bf16.d4.endpoint-ls", "gelu.backward.fp16.d5.sollya", "exp2.forward.fp16.d2.minimax",
                                  "sigmoid-4096.forward.bf16.coupled-d3.endpoint-ls"])  # fmt: skip
def test_a_changed_coefficient_bit_breaks_the_stored_certificate(name: str) -> None:
    from polyfma import catalog

    p, stored = pf.load(name), catalog.record(name)["certificate"]
    assert pf.certify(p).differences(stored) == []
    for const in p.consts:
        if const in ("clamp", "zero", "threshold") or const.startswith("d"):
            continue
        mutated = p.with_consts({const: int(p.consts[const], 16) ^ 4})
        differences = pf.certify(mutated).differences(stored)
        assert any(d.startswith("max_abs") or d.startswith("bias") for d in differences), const


def test_differences_name_the_field() -> None:
    c = pf.certify(pf.load(EXAMPLE))
    stored = copy.deepcopy(c.to_dict())
    assert c.differences(stored) == []
    stored["tails"]["+inf"]["value"] = 0.5
    del stored["nan"]
    stored["extra"] = 1
    found = c.differences(stored)
    assert len(found) == 3 and found[0].startswith("tails.+inf.value: stored 0.5")


def test_fp32_says_what_it_skipped() -> None:
    values = {"c0": 1, "c1": 0.6951461434, "c2": 0.2275643945, "c3": 0.0771190897}
    p = get_form("exp2-d3").build("e", "exp2", "forward", "fp32", 3, values)
    c = pf.certify(p)
    assert c.nan == "not among the inputs" and c.tails["exact"] is None and not c.exact_tails
    assert c.skipped.startswith("fp32: 65537 evenly spaced") and c.max_rel_error == pytest.approx(8.763e-5, rel=2e-3)
    whole = Program("w", "tanh", "forward", "fp32", 1, "none", ("x",), {}, (Op("abs", "y", ("x",), "fp32"),), {"value": "y"})
    assert "65,536 of 2^32" in pf.certify(whole).skipped and "skipped" in pf.certify(whole).tails


def test_domain_of_exp2_is_said() -> None:
    c = pf.certify(pf.load("exp2.forward.fp16.d2.minimax"))
    assert "0 <= x <= 1" in c.skipped and "uniform" in c.bias and c.tails["skipped"]


def test_the_range_is_that_of_the_function_itself() -> None:
    """SiLU falls no lower than -0.2785: a program at -1000 is outside, and one without numbers is."""
    low = Program("low", "silu", "forward", "bf16", 1, "none", ("x",), {"c": "c47a"}, (Op("min.nan", "y", ("x", "c"), "bf16"),), {"value": "y"})
    assert pf.certify(low).range["inside"] is False and pf.certify(low).range["max"] == -1000
    nan = Program("nan", "silu", "forward", "bf16", 1, "none", ("x",), {"c": "7fff"}, (Op("min.nan", "y", ("x", "c"), "bf16"),), {"value": "y"})
    assert pf.certify(nan).range["inside"] is False and pf.certify(nan).max_abs_error == math.inf
    assert pf.certify(nan).summary()


def test_tables_cannot_be_changed() -> None:
    table = get_function("sigmoid").table("bf16")
    for array in (table.exact, table.rounded):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1
    with pytest.raises(ProgramError, match="takes a Program"):
        pf.certify("silu")  # type: ignore[arg-type]
    with pytest.raises(ProgramError, match="takes a Program"):
        pf.replay("silu", [0])  # type: ignore[arg-type]


def test_modes() -> None:
    p = pf.load(EXAMPLE)
    assert pf.certify(p, mode="split").max_abs_error != pf.certify(p).max_abs_error
    with pytest.raises(ProgramError, match="fused or split"):
        pf.certify(p, mode="real")


def test_summary_is_readable_and_complete() -> None:
    rows = dict(pf.certify(pf.load("sigmoid.forward.bf16.coupled-d3.endpoint-ls")).summary())
    assert rows["inputs"] == "65,536 of bf16, all of them" and "derivative: max absolute error" in rows
    assert all(text and "np." not in text for text in rows.values())


def test_derivative_outputs_are_held_against_the_derivative() -> None:
    c = pf.certify(pf.load("sigmoid.forward.bf16.coupled-d3.endpoint-ls"))
    (derivative,) = c.others
    assert derivative.direction == "backward" and derivative.max_abs_error < 0.02
    assert get_function("sigmoid", "backward").shape.limits == (0, 0)
