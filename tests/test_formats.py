from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import oracles
from polyfma.errors import CoefficientError, UnknownNameError
from polyfma.formats import BF16, FORMATS, FP16, FP32, Format, get_format

ALL = list(FORMATS.values())
RANDOM_TRIPLES = 120_000


def adversarial_triples(fmt: Format, count: int, rng: np.random.Generator) -> list[np.ndarray]:
    """Triples whose exact sum lies at or beside a rounding boundary, cancels, or is subnormal or huge."""
    top = 1 << (fmt.width - 1)
    draw = lambda: rng.integers(0, 2 * top, count).astype(fmt.dtype)  # noqa: E731
    a, b = draw(), draw()
    with np.errstate(invalid="ignore", over="ignore"):
        product = fmt.decode(a) * fmt.decode(b)
        rounded = fmt.encode(product)
        # c near -a*b: massive cancellation; c an ulp-fraction of a*b: near-midpoints; c huge or tiny.
        cancel = fmt.neg(rounded) ^ rng.integers(0, 2, count).astype(fmt.dtype)
        half_ulp = fmt.encode(fmt.ulp(np.where(np.isfinite(product), product, 1.0)) * rng.choice([0.5, -0.5, 0.25, 1.5], count))
        tiny = fmt.encode(rng.choice([-1.0, 1.0], count) * 2.0 ** (fmt.emin - fmt.precision + 1))
    specials = np.array([0, top, fmt.inf_bits, fmt.inf_bits | top, fmt.nan_bits, 1, top | 1, fmt.max_bits,
                         fmt.max_bits | top, 1 << (fmt.precision - 1), (1 << (fmt.precision - 1)) - 1], dtype=fmt.dtype)
    grid = np.stack(np.meshgrid(specials, specials, specials), -1).reshape(-1, 3)
    # Significand products that end exactly on a midpoint, with an addend far below.
    midpoint_a = fmt.encode(1 + rng.integers(0, 1 << (fmt.precision - 1), count) * 2.0 ** (1 - fmt.precision))
    midpoint_b = fmt.encode(np.full(count, 1 + 2.0 ** (1 - fmt.precision)))
    return [
        np.stack([a, b, cancel], 1),
        np.stack([a, b, half_ulp], 1),
        np.stack([a, b, tiny], 1),
        np.stack([midpoint_a, midpoint_b, tiny], 1),
        np.stack([draw() & fmt.dtype.type(0x83FF if fmt.width == 16 else 0x80FFFFFF), draw(), draw()], 1),
        grid,
    ]


@pytest.mark.parametrize("part", range(3))
@pytest.mark.parametrize("fmt", ALL, ids=str)
def test_fma_rounds_once_against_exact_integers(fmt: Format, part: int) -> None:
    """With the adversarial ones over a million triples in all; not one may differ."""
    rng = np.random.default_rng(1000 * part + fmt.precision)
    triples = np.concatenate([
        rng.integers(0, 1 << fmt.width, (RANDOM_TRIPLES // 3 * 2, 3)).astype(fmt.dtype),
        *adversarial_triples(fmt, RANDOM_TRIPLES // 12, rng),
    ])  # fmt: skip
    got = fmt.fma(*triples.T)
    wanted = np.array([oracles.fma(fmt.name, *t) for t in triples.tolist()], dtype=fmt.dtype)
    wrong = np.flatnonzero(got != wanted)
    assert wrong.size == 0, [(fmt.name, *map(hex, triples[i].tolist()), hex(int(got[i])), hex(int(wanted[i]))) for i in wrong[:5]]
    assert len(triples) >= 118_000


@pytest.mark.parametrize("fmt", ALL, ids=str)
def test_fma_against_mpfr(fmt: Format) -> None:
    import gmpy2

    rng = np.random.default_rng(5)
    triples = np.concatenate([rng.integers(0, 1 << fmt.width, (20_000, 3)).astype(fmt.dtype),
                              *adversarial_triples(fmt, 3_000, rng)])  # fmt: skip
    context = gmpy2.context(precision=fmt.precision, emin=fmt.emin - fmt.precision + 2, emax=fmt.emax + 1, subnormalize=True)
    values = fmt.decode(triples)
    with context:
        wanted = [float(gmpy2.fma(*(gmpy2.mpfr(float(v)) for v in row))) for row in values]
    np.testing.assert_array_equal(fmt.decode(fmt.fma(*triples.T)), np.array(wanted))


@pytest.mark.parametrize("fmt", ALL, ids=str)
@pytest.mark.parametrize(
    "op", ["mul", "add", "sub", "min", "max", "min.nan", "max.nan", "min.xorsign.abs", "min.nan.xorsign.abs", "copysign", "set.ge", "set.gt"]
)
def test_binary_operations_against_exact_integers(fmt: Format, op: str) -> None:
    from polyfma.replay import _FUSED

    rng = np.random.default_rng(7)
    pairs = np.concatenate([rng.integers(0, 1 << fmt.width, (6000, 2)).astype(fmt.dtype),
                            *(t[:3000, [0, 2]] for t in adversarial_triples(fmt, 3000, rng))])  # fmt: skip
    got = _FUSED[op](fmt, *pairs.T)
    wanted = [oracles.evaluate(op, fmt.name, p, []) for p in pairs.tolist()]
    np.testing.assert_array_equal(got, np.array(wanted, dtype=fmt.dtype))


@pytest.mark.parametrize("fmt", [BF16, FP16], ids=str)
def test_unary_operations_on_every_value(fmt: Format) -> None:
    bits = fmt.all_bits()
    for op, method in (("abs", fmt.abs), ("neg", fmt.neg)):
        wanted = [oracles.evaluate(op, fmt.name, [b], []) for b in bits.tolist()]
        np.testing.assert_array_equal(method(bits), np.array(wanted, dtype=fmt.dtype))


@pytest.mark.parametrize("fmt", ALL, ids=str)
@pytest.mark.parametrize("op", ["fma.relu", "fma.sat"])
def test_limited_fma(fmt: Format, op: str) -> None:
    from polyfma.replay import _FUSED

    rng = np.random.default_rng(8)
    triples = np.concatenate([rng.integers(0, 1 << fmt.width, (6000, 3)).astype(fmt.dtype),
                              *(t[:2000] for t in adversarial_triples(fmt, 2000, rng))])  # fmt: skip
    wanted = [oracles.evaluate(op, fmt.name, t, []) for t in triples.tolist()]
    np.testing.assert_array_equal(_FUSED[op](fmt, *triples.T), np.array(wanted, dtype=fmt.dtype))


@pytest.mark.parametrize("fmt", [BF16, FP16], ids=str)
def test_conversion_from_fp32_against_ml_dtypes(fmt: Format) -> None:
    rng = np.random.default_rng(9)
    with np.errstate(invalid="ignore"):
        every = fmt.decode(fmt.all_bits()).astype(np.float32).view(np.uint32)
    bits = np.concatenate([rng.integers(0, 1 << 32, 300_000).astype(np.uint32),
                           np.arange(0, 1 << 32, 65_521, dtype=np.uint32),
                           (every[:, None] + np.array([0, 1, -1, 0x8000, 0x7FFF, 0x1000])).astype(np.uint32).ravel()])  # fmt: skip
    native = ml_dtypes.bfloat16 if fmt is BF16 else np.float16
    with np.errstate(all="ignore"):
        wanted = bits.view(np.float32).astype(native).view(np.uint16)
    got = fmt.convert_from(FP32, bits)
    nan = fmt.is_nan(wanted)
    np.testing.assert_array_equal(fmt.is_nan(got), nan)
    np.testing.assert_array_equal(got[~nan], wanted[~nan])


def test_bf16_products_against_ml_dtypes() -> None:
    """ml_dtypes multiplies in float32, where a product of two bf16 is exact: one rounding."""
    rng = np.random.default_rng(10)
    a, b = rng.integers(0, 1 << 16, (2, 200_000)).astype(np.uint16)
    with np.errstate(all="ignore"):
        wanted = (a.view(ml_dtypes.bfloat16) * b.view(ml_dtypes.bfloat16)).view(np.uint16)
        exact = np.abs(BF16.decode(a) * BF16.decode(b))
    normal = (exact > 2.0**-120) | (exact == 0)  # below, float32 itself rounds
    got = BF16.mul(a, b)
    nan = BF16.is_nan(wanted)
    np.testing.assert_array_equal(got[normal & ~nan], wanted[normal & ~nan])
    np.testing.assert_array_equal(BF16.is_nan(got)[normal], nan[normal])


@pytest.mark.parametrize("fmt", [BF16, FP16], ids=str)
def test_decode_and_encode_every_value(fmt: Format) -> None:
    bits = fmt.all_bits()
    finite = ~fmt.is_nan(bits)
    np.testing.assert_array_equal(fmt.encode(fmt.decode(bits))[finite], bits[finite])
    for b in range(0, 1 << 16, 97):
        wanted = oracles.signed(fmt.name, b)
        if not isinstance(wanted, str):
            assert float(wanted) == fmt.decode(b)
    assert np.all(fmt.encode(fmt.decode(bits))[~finite] == fmt.nan_bits)


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(ALL), st.integers(-(2**80), 2**80), st.integers(-230, 120))
def test_round_exact_agrees_with_the_oracle(fmt: Format, mantissa: int, exponent: int) -> None:
    wanted = oracles.pack(fmt.name, int(mantissa < 0), abs(mantissa), exponent) if mantissa else 0
    assert fmt.round_exact(mantissa, exponent) == wanted


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(ALL), st.floats(allow_nan=False))
def test_encode_is_the_nearest(fmt: Format, value: float) -> None:
    from fractions import Fraction

    if np.isinf(value):
        assert np.isinf(fmt.decode(fmt.encode(value)))
    elif value != 0:
        assert int(fmt.encode(value)) == oracles.pack_fraction(fmt.name, Fraction(value))


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(ALL), st.data())
def test_fma_is_commutative_and_odd(fmt: Format, data: st.DataObject) -> None:
    a, b, c = (np.array(data.draw(st.integers(0, fmt.all_ones)), dtype=fmt.dtype) for _ in range(3))
    assert fmt.fma(a, b, c) == fmt.fma(b, a, c)
    y, mirrored = fmt.fma(a, b, c), fmt.fma(fmt.neg(a), b, fmt.neg(c))
    if not fmt.is_nan(y) and fmt.decode(y) != 0:
        assert mirrored == fmt.neg(y)


def test_double_rounding_through_float64_is_avoided() -> None:
    """A product on a BF16 midpoint less 2^-100: plain float64 loses the addend and ties to even, upwards."""
    a = BF16.encode(1 + 2.0**-7)
    b = BF16.encode(1.5)
    c = BF16.encode(-(2.0**-100))
    assert BF16.fma(a, b, c) == oracles.fma("bf16", int(a), int(b), int(c))
    assert BF16.fma(a, b, c) != BF16.encode(BF16.decode(a) * BF16.decode(b) + BF16.decode(c))


@pytest.mark.parametrize("fmt", ALL, ids=str)
def test_constants_that_lose_their_meaning_are_refused(fmt: Format) -> None:
    assert fmt.constant(0.5) == int(fmt.encode(0.5))
    assert fmt.constant(0.0) == 0
    for value in (1e300, float("inf"), float("nan"), 1e-300):
        with pytest.raises(CoefficientError):
            fmt.constant(value)
    if fmt is FP16:
        with pytest.raises(CoefficientError, match="subnormal"):
            fmt.constant(3e-5)
    else:
        fmt.constant(3e-5)


def test_unknown_format() -> None:
    with pytest.raises(UnknownNameError, match="bf16, fp16, fp32"):
        get_format("fp8")
    with pytest.raises(UnknownNameError, match="16-bit"):
        FP32.all_bits()
