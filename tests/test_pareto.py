from __future__ import annotations

import itertools
import json

import pytest

import polyfma as pf
from polyfma import PolyfmaError, UnknownNameError
from polyfma.pareto import candidates_for, entries, front, pipe_cost
from polyfma.report import write_fits


def test_fronts_hold_what_nothing_beats() -> None:
    for key in {(e.function, e.direction, e.format) for e in entries()}:
        here = [e for e in entries() if (e.function, e.direction, e.format) == key and e.default]
        best = front(here)
        assert [e.instructions for e in best] == sorted({e.instructions for e in best})
        assert all(a.error > b.error for a, b in itertools.pairwise(best))
        for e in here:
            assert any(b.instructions <= e.instructions and b.error <= e.error for b in best)


def test_best_by_instructions_and_by_error() -> None:
    for function in ("sigmoid", "tanh", "silu", "gelu"):
        for fmt in ("bf16", "fp16"):
            p = pf.best(function, format=fmt, max_instructions=7)
            e = pf.certify(p)
            assert e.instructions <= 7 and e.exact_tails
            assert all(c.error >= e.max_weighted_error for c in candidates_for(function, "forward", fmt, True) if c.instructions <= 7)
            cheap = pf.best(function, format=fmt, max_error=0.05)
            assert pf.certify(cheap).max_weighted_error <= 0.05
            assert cheap.counts.instructions <= pf.best(function, format=fmt, max_error=0.02).counts.instructions


def test_tails_are_asked_for_unless_waived() -> None:
    strict = pf.best("sigmoid", direction="backward", max_instructions=6)
    free = pf.best("sigmoid", direction="backward", max_instructions=6, tails=False)
    assert pf.certify(strict).exact_tails
    assert pf.certify(free).max_weighted_error <= pf.certify(strict).max_weighted_error


def test_tiers() -> None:
    for function in ("sigmoid", "tanh", "silu", "gelu"):
        fast, balanced, accurate = (pf.best(function, tier=t) for t in ("fast", "balanced", "accurate"))
        assert fast.counts.instructions <= balanced.counts.instructions
        c = pf.certify(accurate)
        assert c.max_ulp_quarter <= 1 and c.monotone_ulps_quarter <= 1 and c.exact_tails
        assert pf.best(function) == balanced
        half = pf.certify(pf.best(function, format="fp16", tier="accurate"))
        assert half.max_ulp_quarter == min(e.max_ulp_quarter for e in candidates_for(function, "forward", "fp16", True)) or half.max_ulp_quarter <= 1


@pytest.mark.parametrize(("arguments", "message"), [
    ({"function": "silu", "max_error": 1e-9}, "the least error is"), ({"function": "silu", "max_instructions": 1}, "fewest instructions"),
    ({"function": "silu", "max_ulp": 1e-9}, "least ulp"), ({"function": "silu", "tier": "free"}, "fast, balanced, accurate"),
    ({"function": "silu-2.5"}, "polyfma list"), ({"function": "relu"}, "unknown function"), ({"function": "silu", "format": "fp8"}, "unknown format"),
])  # fmt: skip
def test_nothing_fits(arguments: dict, message: str) -> None:
    with pytest.raises((PolyfmaError, UnknownNameError), match=message):
        pf.best(**arguments)


def test_pipe_cost() -> None:
    cost = pipe_cost(pf.load("sigmoid.forward.bf16.fused-odd-relu-d3").counts)  # 3 FMA, 2 ALU
    assert (cost.bound, cost.sum) == (4, 7)


def test_report_is_one_file_without_links(tmp_path) -> None:
    path = tmp_path / "fits.html"
    write_fits(path, lambda *_: None)
    text = path.read_text()
    assert len(text) < 12e6 and text.count("<svg") == len({(e.function, e.direction) for e in entries()}) and text.count("<img") > 50 and "silu forward" in text
    outside = text.replace("http://www.w3.org", "").replace("http://purl.org", "").replace("http://creativecommons.org", "")
    outside = outside.replace("https://matplotlib.org/", "")
    assert "http://" not in outside and "https://" not in outside and "<script" not in text


def test_entries_are_json() -> None:
    assert json.dumps([e.to_dict() for e in entries()])


def test_a_tier_keeps_the_limits_given_with_it() -> None:
    assert pf.certify(pf.best("gelu", tier="fast", max_error=0.01)).max_weighted_error <= 0.01
    assert pf.best("gelu", tier="balanced", max_instructions=7).counts.instructions <= 7
    with pytest.raises(PolyfmaError, match=r"no gelu forward program in bf16 fits"):
        pf.best("gelu", tier="fast", max_error=1e-3)


def test_best_checks_its_arguments() -> None:
    for arguments in ({"max_error": "0.1"}, {"max_instructions": [8]}, {"max_ulp": float("nan")}, {"max_error": True}):
        with pytest.raises(PolyfmaError, match=r"must be a number from 0 up"):
            pf.best("gelu", **arguments)
    with pytest.raises(UnknownNameError, match=r"exp2 programs are cores for \[0, 1\] and are not ranked"):
        pf.best("exp2")
    assert pf.best("gelu", format=pf.BF16) == pf.best("gelu", format="bf16")


def test_hardware_programs_are_chosen_only_when_asked_for() -> None:
    """Their certificates are of one architecture's tables, and an instruction of theirs is two of a slow unit."""
    for fmt in ("bf16", "fp16"):
        assert not pf.best("tanh", format=fmt, tier="fast").counts.mufu
        assert pf.best("tanh", format=fmt, max_instructions=1, hardware=True).name == f"tanh.forward.{fmt}.hardware"
    assert all(e.default is False for e in entries() if e.hardware) and any(e.hardware for e in entries())
    assert not [e for e in candidates_for("tanh", "forward", "bf16", False) if e.hardware]
