from __future__ import annotations

import numpy as np
import pytest

import polyfma as pf
from polyfma import FitError, catalog
from polyfma.fit import proof
from polyfma.fit.proof import prove
from polyfma.formats import BF16
from polyfma.forms import get_form

# Proved by an independent prototype: largest errors x 1e-3 of the fused form.
KNOWN = {
    "sigmoid.forward.bf16.fused-odd-relu-d3": 7.9532, "sigmoid.forward.bf16.fused-odd-d3.free": 7.8125,
    "tanh.forward.bf16.fused-odd-d3": 14.226, "tanh.forward.bf16.fused-odd-d3.free": 13.293,
    "sigmoid.forward.bf16.fused-odd-relu-d4": 5.6114, "sigmoid.forward.bf16.fused-odd-d4.free": 5.0419,
    "tanh.forward.bf16.fused-odd-d4": 10.163, "tanh.forward.bf16.fused-odd-d4.free": 8.1055,
}  # fmt: skip


@pytest.mark.parametrize(("name", "error"), KNOWN.items())
def test_stored_proofs_are_of_the_known_optima(name: str, error: float) -> None:
    record = catalog.record(name)
    stored = record["fit"]["proof"]
    assert stored["holds"] and stored["digest"] == pf.load(name).digest and stored["visited"] > 1000
    assert stored["error"] == record["certificate"]["max_abs_error"]
    assert f"{1e3 * stored['error']:.5g}" == f"{error:.5g}"


def test_a_proof_runs_again() -> None:
    again = prove(pf.load("tanh.forward.bf16.fused-odd-d3"))
    stored = catalog.record("tanh.forward.bf16.fused-odd-d3")["fit"]["proof"]
    # How many tuples a proposal of the solver leaves to visit may differ between machines, the claim may not.
    assert again.holds and again.error == stored["error"] and again.clamps == stored["clamps"] and again.visited > 1000
    assert again.assumptions and stored["assumptions"]


def test_a_planted_better_program_is_found() -> None:
    """From a worse program of the form the enumeration must come upon a better one: nothing is pruned wrongly."""
    worse = get_form("fused-odd").build("w", "tanh", "forward", "bf16", 3, {"c1": 1.0703125, "c2": -0.318359375, "c3": 0.02978515625, "clamp": 2.8125})
    best = pf.load("tanh.forward.bf16.fused-odd-d3.free")
    error = pf.certify(worse).max_abs_error
    assert error > pf.certify(best).max_abs_error
    found = prove(worse)
    assert not found.holds
    better = worse.with_consts(found.better_constants())
    assert pf.certify(better).max_abs_error < error


@pytest.mark.parametrize("scale", [1.0001, 1.01])
def test_the_optimum_itself_is_not_pruned(scale: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a bound just above the optimum's error, the optimum (or its like) is found again."""
    best = pf.load("tanh.forward.bf16.fused-odd-d3")
    real = proof.Case.__init__

    def looser(self, program) -> None:
        real(self, program)
        self.bound = self.error * scale
        self.low, self.high = self._intervals()

    monkeypatch.setattr(proof.Case, "__init__", looser)
    found = prove(best)
    assert not found.holds and found.better["error"] <= pf.certify(best).max_abs_error * scale


def test_linear_bounds_hold_for_programs_that_satisfy_the_constraints() -> None:
    """The optimum's coefficients satisfy every row at its clamp, and every bound from the duals."""
    best = pf.load("sigmoid.forward.bf16.fused-odd-relu-d3")
    case = proof.Case(best)
    case.bound = case.error * 1.000001
    case.low, case.high = case._intervals()
    clamp = int(np.flatnonzero(case.t == best.clamp)[0])
    c = np.array([best.const_value(f"c{k}") for k in (1, 2, 3)])
    linear = proof.Linear(case, case.low[: clamp + 1], case.high[: clamp + 1], tuple(np.sign(c).astype(int)))
    assert linear.feasible and np.all(linear.a @ c <= linear.b + 1e-12) and np.sum(np.abs(c)) <= linear.size
    for index in range(3):
        low, high = proof._plain_range(linear, index)
        assert low <= c[index] <= high
    for side in (1, -1):
        bound = linear.bound(1, side, {2: float(c[2])})
        assert side * c[1] <= bound[0] + bound[3] * c[2] + 1e-12
    values = proof.lattice(*proof._plain_range(linear, 2), int(np.sign(c[2])), 1e-6)
    assert any(a <= c[2] <= b for a, b in values) and np.all(values[:-1, 1] <= values[1:, 0])


def test_intervals_against_brute_force() -> None:
    """[A, B] holds exactly the s whose result keeps the error bound, tried over every value of the format."""
    case = proof.Case(pf.load("sigmoid.forward.bf16.fused-odd-relu-d3"))
    every = BF16.finite_bits()
    for i in range(0, case.t.size, 97):
        t = np.broadcast_to(case.t_bits[i], every.shape)
        good = np.ones(every.shape, dtype=bool)
        for negative in (False, True):
            y = BF16.decode(case.finish(every, t, negative))
            f = case.exact[int(case.t_bits[i]) | (0x8000 if negative else 0)]
            good &= np.abs(y - f) <= case.bound
        s = BF16.decode(every)
        inside = (s >= case.low[i]) & (s <= case.high[i])
        assert np.array_equal(inside, good), float(case.t[i])


@pytest.mark.parametrize("name", ["silu.forward.bf16.d4.endpoint-ls", "sigmoid.forward.fp16.d3.sollya"])
def test_forms_out_of_reach_are_refused(name: str) -> None:
    with pytest.raises(FitError, match="proofs exist for BF16 programs"):
        prove(pf.load(name))


def test_degrees_out_of_reach_are_refused() -> None:
    p = get_form("fused-odd").build("t", "tanh", "forward", "bf16", 6, {f"c{k}": 0.5 for k in range(1, 7)} | {"clamp": 2.0})
    with pytest.raises(FitError, match="two or three high coefficients"):
        prove(p)


def test_clamps_scale_with_the_function() -> None:
    """A softcap's clamp lies in the hundreds: it is enumerated too, and a better neighbour is found."""
    best = pf.fit("softcap-50", degree=3, form="fused-odd", free=True, objective="absolute", effort="quick")
    assert best.clamp > 64
    worse = best.with_consts({"c1": int(best.consts["c1"], 16) + 1})
    case = proof.Case(worse)
    assert case.t[0] <= worse.clamp <= case.t[-1] and "clamps from 1.5625 to 3200" in case.assumptions
    assert proof._clamps(case)[0].size > 0
    beyond = best.with_consts({"clamp": int(BF16.encode(4000.0))})
    with pytest.raises(FitError, match=r"its clamp 4000 is not among those enumerated, 1.5625 to 3200"):
        prove(beyond)


def test_operations_must_be_those_of_the_named_form() -> None:
    p = pf.load("tanh.forward.bf16.fused-odd-d3")
    with pytest.raises(FitError, match=r"its operations are not those of form fused-odd-limited"):
        prove(pf.Program.from_dict({k: v for k, v in p.to_dict().items() if k != "digest"} | {"form": "fused-odd-limited"}))
