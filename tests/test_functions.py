from __future__ import annotations

import math

import gmpy2
import numpy as np
import pytest

import oracles
from polyfma.errors import UnknownNameError
from polyfma.formats import BF16, FP16, FP32, Format
from polyfma.functions import DIRECTIONS, function_names, get_function

NAMES = ("sigmoid", "tanh", "silu", "gelu", "gelu-tanh", "softcap-50", "silu-1.702", "sigmoid-4096")
FORMATS = (BF16, FP16)


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("name", NAMES)
def test_rounding_agrees_with_mpfr(name: str, direction: str) -> None:
    """Correct rounding at random inputs of every magnitude against MPFR with 1,500 bits."""
    rng = np.random.default_rng(3)
    for fmt in FORMATS:
        table = get_function(name, direction).table(fmt)
        top = int(fmt.encode(60.0))
        tiny = np.concatenate([np.arange(1, 140), rng.integers(1, top, 260)])
        for bits in np.concatenate([tiny, tiny | fmt.sign_bit]).tolist():
            value = oracles.mpfr_function(name, direction, float(fmt.decode(bits)))
            assert int(table.rounded[bits]) == oracles.pack_mpfr(fmt.name, value), (fmt, hex(bits))
            wanted = float(value)
            assert math.isclose(table.exact[bits], wanted, rel_tol=4e-16, abs_tol=1e-300)


def test_exp2_on_its_domain() -> None:
    for direction in DIRECTIONS:
        table = get_function("exp2", direction).table(FP16)
        for bits in range(0, int(FP16.encode(1.0)) + 1, 37):
            value = oracles.mpfr_function("exp2", direction, float(FP16.decode(bits)))
            assert int(table.rounded[bits]) == oracles.pack_mpfr("fp16", value)
        assert np.all(np.isnan(table.exact[int(FP16.encode(1.0)) + 1 : FP16.inf_bits]))


@pytest.mark.parametrize("fmt", FORMATS, ids=str)
@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("name", NAMES)
def test_whole_tables_have_their_symmetry_limits_and_range(name: str, direction: str, fmt: Format) -> None:
    function = get_function(name, direction)
    table, shape = function.table(fmt), function.shape
    positive = np.arange(fmt.inf_bits)
    right, left, x = table.exact[positive], table.exact[positive + fmt.sign_bit], fmt.decode(positive)
    if shape.symmetry == "odd":
        np.testing.assert_array_equal(right, -left)
        np.testing.assert_array_equal(table.rounded[positive + fmt.sign_bit], fmt.neg(table.rounded[positive]))
    elif shape.symmetry == "even":
        np.testing.assert_array_equal(table.rounded[positive], table.rounded[positive + fmt.sign_bit])
    elif shape.symmetry == "centred":
        np.testing.assert_allclose(right + left, function._special(-np.inf) + function._special(np.inf), rtol=4e-16)
    else:
        np.testing.assert_allclose(right - left, x, rtol=4e-16)
    values = fmt.decode(table.rounded)
    for bits in (fmt.inf_bits, fmt.inf_bits | fmt.sign_bit):
        assert values[bits] == function._special(float(fmt.decode(bits)))
    assert np.all(fmt.is_nan(table.rounded) == fmt.is_nan(fmt.all_bits()))
    finite = np.isfinite(table.exact)
    low, high = shape.range
    assert table.exact[finite].min() >= low - 1e-300 and table.exact[finite].max() <= high * (1 + 2e-16)


def test_silu_at_a_subnormal_midpoint_needs_more_than_float64() -> None:
    """silu(2^-133) = 2^-134 + 2^-268/4: only the second term says that it rounds up."""
    assert get_function("silu").table(BF16).rounded[1] == 1
    assert get_function("silu").table(BF16).rounded[0x8001] == 0x8000  # silu(-2^-133) rounds to -0
    assert get_function("silu").rounded(np.array([1], dtype=np.uint32), FP32)[0] == 1


def test_fp32_on_request() -> None:
    x = np.array([0.5, -3.25, 10.0, -100.0], dtype=np.float32)
    rounded = get_function("gelu").rounded(x.view(np.uint32), "fp32").view(np.float32)
    wanted = [np.float32(float(oracles.mpfr_function("gelu", "forward", float(v)))) for v in x]
    np.testing.assert_array_equal(rounded, wanted)


def test_values_outside_the_domain_and_at_infinities() -> None:
    assert np.isnan(get_function("exp2").values(1.5)) and np.isnan(get_function("exp2").values(np.inf))
    assert get_function("softcap-50").values(-np.inf) == -50
    assert get_function("silu").values(-np.inf) == 0 and get_function("silu").values(np.inf) == np.inf
    assert np.isnan(get_function("tanh").values(np.nan))
    assert get_function("tanh").values(np.zeros((2, 3))).shape == (2, 3)


@pytest.mark.parametrize("name", ["relu", "silu-", "silu--1", "softcap", "softcap-0", "tanh-3", "gelu-1.5", "SILU", ""])
def test_unknown_functions_are_refused(name: str) -> None:
    with pytest.raises(UnknownNameError):
        get_function(name)
    with pytest.raises(UnknownNameError, match="forward, backward"):
        get_function("silu", "sideways")
    assert "softcap-CAP" in function_names()


def test_a_damaged_cache_file_is_made_anew(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    from polyfma import functions

    monkeypatch.setenv("POLYFMA_CACHE_DIR", str(tmp_path))
    functions._table.cache_clear()
    good = get_function("tanh").table(FP16)
    (file,) = tmp_path.glob("*.npz")
    for damage in (b"", file.read_bytes()[:-300], b"x" * 100):
        file.write_bytes(damage)
        functions._table.cache_clear()
        np.testing.assert_array_equal(get_function("tanh").table(FP16).rounded, good.rounded)
    functions._table.cache_clear()


def test_an_unwritable_cache_costs_only_time(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    from polyfma import functions

    blocked = tmp_path / "file"
    blocked.write_text("in the way")
    monkeypatch.setenv("POLYFMA_CACHE_DIR", str(blocked / "below"))
    functions._table.cache_clear()
    assert get_function("tanh").table(FP16).exact.shape == (1 << 16,)
    functions._table.cache_clear()


def test_mpfr_oracle_is_itself_sane() -> None:
    assert gmpy2.cmp(oracles.mpfr_function("gelu", "forward", 0.0), 0) == 0
    assert abs(float(oracles.mpfr_function("silu", "backward", 0.0)) - 0.5) < 1e-16
