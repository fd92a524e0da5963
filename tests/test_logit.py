"""Softcap programs by a linear programme: within their budget, the best of their shape, and refused where they cannot be."""

from __future__ import annotations

import numpy as np
import pytest

import polyfma as pf
from polyfma.errors import FitError
from polyfma.fit.logit import NEAR, RELATIVE, fit_logit, unit
from polyfma.fit.objective import MIDDLE, OUTER

NAME = "tanh.forward.fp16.fp32-unit-gap-d7"
POWERS = (3, 5, 6, 7)


def value(coefficients: np.ndarray, clamp: float, u: np.ndarray) -> np.ndarray:
    t = np.minimum(u, clamp)
    return t + sum(c * t**k for c, k in zip(coefficients, POWERS, strict=True))


def score(coefficients: np.ndarray, clamp: float, u: np.ndarray) -> float:
    error = np.abs(value(coefficients, clamp, u) - np.tanh(u))
    budget = np.where(u <= 0.5, MIDDLE, OUTER)
    return float(np.max(error / unit(u))) if np.all(error <= budget) else np.inf


def test_the_catalogue_has_what_the_fit_finds() -> None:
    found = fit_logit("tanh", "forward", "fp16", 7)
    stored = pf.load(NAME)
    assert found.program.consts == stored.consts and found.program.ops == stored.ops
    assert found.clamp == stored.const_value("clamp") and found.mode == "real"


def test_no_small_change_is_better() -> None:
    """On a grid of the test's own: steps of the coefficients in random directions raise the score, as at a vertex of a programme."""
    program = pf.load(NAME)
    clamp = program.const_value("clamp")
    best = np.array([program.const_value(f"c{k}") for k in POWERS])
    u = np.concatenate([np.linspace(1e-3, clamp, 4001), [clamp, 4.0, 20.0]])
    least = score(best, clamp, u)
    assert least == pytest.approx(fit_logit("tanh", "forward", "fp16", 7, clamp=clamp).score, rel=2e-2)
    rng = np.random.default_rng()
    for size in (1e-3, 1e-4, 1e-5):
        for _ in range(200):
            step = rng.normal(size=4)
            assert score(best + size * step / np.linalg.norm(step), clamp, u) >= least * (1 - 2e-2)


def test_the_unit_is_relative_near_zero_and_the_budget_far_away() -> None:
    assert unit(np.array([NEAR / 2]))[0] == RELATIVE * NEAR / 2
    assert unit(np.array([5.0]))[0] == pytest.approx(OUTER)
    assert np.all(np.diff(unit(np.linspace(1e-3, 4, 1000))) >= 0)


@pytest.mark.parametrize(("arguments", "options", "message"), [
    (("sigmoid", "forward", "fp16", 7), {}, "fits tanh forward"),
    (("tanh", "backward", "fp16", 7), {}, "fits tanh forward"),
    (("tanh", "forward", "fp16", 5), {}, "begins at degree 6, not 5"),
    (("tanh", "forward", "fp16", 7), {"form": "unit-odd"}, "computes in fp32"),
    (("tanh", "forward", "fp16", 7), {"form": "fp32-fused-odd"}, "slope 1"),
    (("tanh", "forward", "fp16", 7), {"clamp": 1.0}, "refused by the budget at every clamp of 1 to 1"),
    (("tanh", "forward", "fp16", 7), {"clamp": -2.0}, "must be a positive number"),
])  # fmt: skip
def test_refusals(arguments: tuple, options: dict, message: str) -> None:
    with pytest.raises(FitError, match=message):
        fit_logit(*arguments, **options)


def test_the_default_degree_is_one_that_it_takes() -> None:
    assert pf.fit("tanh", format="fp16", method="logit").ops == pf.load(NAME).ops
    with pytest.raises(FitError, match=r"refused by the budget at every clamp of .* degree 7 keeps it"):
        pf.fit("tanh", format="fp16", degree=6, method="logit")
    with pytest.raises(FitError, match=r"takes no sigma; it takes form, clamp$"):
        pf.fit("tanh", format="fp16", method="logit", sigma=1.0)
