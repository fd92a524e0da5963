"""The errors that the catalogue has to meet or beat, row by row (x 1e-3, weighted, all finite inputs, fused)."""

from __future__ import annotations

import pytest

import polyfma as pf
from polyfma import catalog
from polyfma.catalog.build import CONTROLS, FUNCTIONS, SEARCHED_DEGREES
from polyfma.certify import faults_of

# function and format: for each of D2..D6 (tails, free); None where no figure was given.
REFERENCE = {
    ("sigmoid", "forward", "bf16"): [(23.0, None), (7.95, 7.81), (5.61, 5.04), (5.06, 4.49), (5.38, None)],
    ("tanh", "forward", "bf16"): [(42.0, None), (14.2, 13.3), (10.16, 8.11), (8.52, 7.81), (13.8, None)],
    ("silu", "forward", "bf16"): [(72.8, None), (19.9, None), (18.1, None), (18.0, None), (20.2, None)],
    ("gelu", "forward", "bf16"): [(38.2, None), (10.2, None), (7.93, None), (7.65, None), (7.57, None)],
    ("sigmoid", "backward", "bf16"): [(15.1, None), (11.4, 8.99), (4.45, 3.63), (4.88, 4.55), (7.75, None)],
    ("tanh", "backward", "bf16"): [(60.5, None), (45.7, 36.0), (17.8, 14.5), (18.9, 17.4), (27.2, None)],
    ("silu", "backward", "bf16"): [(None, 36.2), (1.25 * 19.1, 19.1), (1.25 * 16.7, 16.7), (1.25 * 12.7, 12.7), (1.25 * 14.0, 14.0)],
    ("gelu", "backward", "bf16"): [(None, 32.7), (1.25 * 19.7, 19.7), (1.25 * 15.4, 15.4), (1.25 * 12.2, 12.2), (1.25 * 15.6, 15.6)],
    ("sigmoid", "forward", "fp16"): [(19.8, None), (5.65, None), (3.99, 3.36), (2.46, 1.95), (1.05 * 2.54, 1.95)],
    ("tanh", "forward", "fp16"): [(38.9, None), (11.0, None), (7.71, 6.26), (4.82, 3.91), (4.93, 4.04)],
    ("silu", "forward", "fp16"): [(72.5, None), (12.7, None), (8.44, None), (7.17, None), (1.05 * 7.36, None)],
    ("gelu", "forward", "fp16"): [(36.5, None), (6.4, None), (2.71, None), (2.74, None), (2.09, None)],
    ("sigmoid", "backward", "fp16"): [(15.1, None), (1.05 * 10.9, 8.39), (3.77, 2.97), (2.14, 1.77), (1.05 * 3.08, 2.68)],
    ("tanh", "backward", "fp16"): [(63.5, None), (1.05 * 43.7, 33.6), (15.1, 11.9), (8.95, 7.10), (12.0, 10.8)],
    ("silu", "backward", "fp16"): [(None, 33.8), (1.25 * 15.4, 15.4), (1.25 * 13.1, 13.1), (1.25 * 7.81, 7.81), (1.25 * 7.81, 7.81)],
    ("gelu", "backward", "fp16"): [(None, 30.0), (1.25 * 16.5, 16.5), (1.25 * 12.1, 12.1), (1.25 * 4.50, 4.50), (1.25 * 6.00, 6.00)],
}  # fmt: skip
ROWS = [(*key, degree, *figures) for key, rows in REFERENCE.items() for degree, figures in zip(SEARCHED_DEGREES, rows, strict=True)]


def error(name: str) -> float:
    return 1e3 * float(catalog.record(name)["certificate"]["max_weighted_error"])


def meets(found: float, figure: float) -> bool:
    """At or below a figure to its printed digits."""
    digits = len(f"{figure:.10g}".replace(".", "").lstrip("0"))
    return float(f"{found:.{digits}g}") <= figure + 1e-9


@pytest.mark.parametrize(("function", "direction", "fmt", "degree", "tails", "free"), ROWS)
def test_the_reference_is_met(function: str, direction: str, fmt: str, degree: int, tails: float | None, free: float | None) -> None:
    stem = f"{function}.{direction}.{fmt}.d{degree}"
    if tails is not None:
        assert meets(error(stem), tails), (stem, error(stem), tails)
    if free is not None:
        assert meets(error(f"{stem}.free"), free), (stem, error(f"{stem}.free"), free)


DEFAULTS = [n for n in pf.programs() for f in FUNCTIONS if n.startswith(f"{f}.") and n.split(".d")[-1].isdigit() and ".endpoint" not in n]


@pytest.mark.parametrize("name", DEFAULTS)
def test_default_programs_are_default_programs(name: str) -> None:
    """Budget, requirements, no mask, no subnormal coefficient; never above a control; never worse than degree - 1."""
    p, c = pf.load(name), catalog.record(name)["certificate"]
    n = p.degree
    assert name.endswith(f".d{n}") and c["fma"] <= n + 1 and c["instructions"] <= n + 6
    assert not [op for op in p.ops if op.op == "select"] and faults_of(c) == []
    for const, value in p.coefficients.items():
        assert value == 0 or p.format != "fp16" or abs(value) >= 2.0**-14, const
    for control in CONTROLS:
        if f"{name}.{control}" in pf.programs():
            other = catalog.record(f"{name}.{control}")["certificate"]
            if faults_of(other) == []:
                assert error(name) <= error(f"{name}.{control}")
            assert error(f"{name}.free") <= error(f"{name}.{control}"), control
    assert error(f"{name}.free") <= error(name)
    below = name.replace(f".d{n}", f".d{n - 1}")
    if below in DEFAULTS:
        assert error(name) <= error(below) and error(f"{name}.free") <= error(f"{below}.free")


def test_silu_without_a_clamp_on_its_output() -> None:
    """SiLU at <= 6 FMAs and <= 9 instructions: |x| < 8 within 15.9e-3, finite and exact-tailed everywhere."""
    p = pf.load("silu.forward.bf16.wsq-d3")
    assert p.counts.fma <= 6 and p.counts.instructions <= 9
    bits = p.fmt.finite_bits()
    x = p.fmt.decode(bits)
    near = bits[abs(x) < 8]
    worst = abs(p.fmt.decode(pf.replay(p, near)) - p.target.table(p.fmt).exact[near]).max()
    assert worst <= 15.9e-3 and faults_of(catalog.record(p.name)["certificate"]) == []


def test_gelu_at_its_floor_with_five_fmas() -> None:
    c = catalog.record("gelu.forward.bf16.w-d3")["certificate"]
    assert c["fma"] <= 5 and 1e3 * c["max_weighted_error"] <= 7.5650


@pytest.mark.parametrize("name", [n for n in pf.programs() if ".monotone-" in n])
def test_monotone_rows_are(name: str) -> None:
    c = catalog.record(name)["certificate"]
    assert c["monotone_ulps_quarter"] <= int(name[-1]) and faults_of(c) == []


def test_silu_for_gating() -> None:
    """x * sigmoid D4 with exact tails and sigma(0) = 1/2: small bias, small relative error under N(0, 1)."""
    p, c = pf.load("silu.forward.bf16.times-sigmoid-d4"), catalog.record("silu.forward.bf16.times-sigmoid-d4")["certificate"]
    assert p.const_value("centre") == 0.5 and c["tails"]["exact"]
    assert c["rel_rms"]["1"] <= 0.005 and abs(c["bias"]["0.25"]) <= 1e-3 and abs(c["bias"]["1"]) <= 1e-3
