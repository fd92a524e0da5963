"""The search in the format: its machine, its objectives, and what it returns."""

from __future__ import annotations

import json
import math
import zlib

import numpy as np
import pytest

import polyfma as pf
from polyfma import FitError, UnknownNameError, catalog
from polyfma.certify import faults
from polyfma.fit import search
from polyfma.fit.lattice import fit_lattice
from polyfma.fit.objective import Distribution, Objective, expected_error
from polyfma.fit.request import Request, degree_within_budget, shapes
from polyfma.fit.vm import program_scores
from polyfma.formats import BF16, FP16
from polyfma.forms import FORMS

FUNCTION_OF = {"odd": ("tanh", "forward"), "centred": ("sigmoid", "forward"), "even": ("sigmoid", "backward"),
               "residual": ("gelu", "forward")}  # fmt: skip


@pytest.mark.parametrize("name", sorted(n for n, f in FORMS.items() if f.clamped and n != "coupled"))
def test_the_machine_scores_what_the_certificate_says(name: str) -> None:
    """Every form with random coefficients, both formats, all finite inputs: the same largest error, exactly."""
    form = FORMS[name]
    function, direction = FUNCTION_OF[form.kinds[-1]] if not form.slope else ("silu", "backward")
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    for fmt in (BF16, FP16):
        if form.inner == fmt.name:
            continue
        degree = max(4, form.least_degree)
        values = {n: float(rng.uniform(0.01, 0.5) * rng.choice([-1, 1])) for n in form.free_names(degree)}
        p = form.build("t", function, direction, fmt, degree, values | {"clamp": float(rng.uniform(2, 5))})
        bits = fmt.finite_bits()
        f = p.target.table(fmt).exact[bits]
        weight = 1 / np.maximum(1, np.abs(f) / 2)
        assert program_scores(p, fmt.decode(bits), weight, f) == pf.certify(p).max_weighted_error


@pytest.mark.parametrize(("function", "direction", "fmt", "degree", "error"), [
    ("sigmoid", "forward", "bf16", 3, 7.95e-3), ("tanh", "forward", "bf16", 3, 14.2e-3), ("gelu", "forward", "bf16", 4, 7.93e-3),
    ("sigmoid", "backward", "bf16", 3, 11.4e-3), ("tanh", "backward", "fp16", 2, 63.5e-3),
])  # fmt: skip
def test_a_quick_search_meets_the_reference(function: str, direction: str, fmt: str, degree: int, error: float) -> None:
    fit = fit_lattice(function, direction, fmt, degree, effort="quick")
    c = pf.certify(fit.program)
    assert fit.score == c.max_weighted_error <= error
    assert faults(c) == []
    assert c.fma <= degree + 1 and c.instructions <= degree + 6
    assert fit.program.name == f"{function}.{direction}.{fmt}.d{degree}" and fit.program.degree == degree


def test_the_same_seed_gives_the_same_program() -> None:
    programs = [fit_lattice("tanh", "forward", "bf16", 3, effort="quick", form="fused-odd", seed=s).program for s in (1, 1, 2)]
    assert programs[0] == programs[1]
    assert pf.certify(programs[2]).exact_tails


def test_free_drops_tails_and_range_only() -> None:
    free = fit_lattice("sigmoid", "forward", "bf16", 4, effort="quick", free=True, form="fused-odd")
    tails = fit_lattice("sigmoid", "forward", "bf16", 4, effort="quick", form="fused-odd-relu")
    assert free.score < tails.score and faults(pf.certify(free.program), free=True) == []
    assert free.program.name.endswith(".free")


def test_a_seed_program_is_never_lost() -> None:
    """Started from a catalogue program of its own form, a quick search returns nothing worse."""
    seed = pf.load("tanh.forward.bf16.fused-odd-d4.free")
    fit = fit_lattice("tanh", "forward", "bf16", 4, effort="quick", free=True, form="fused-odd", seeds=[seed])
    assert fit.score <= pf.certify(seed).max_weighted_error


def test_objectives_do_what_they_say() -> None:
    normal = Distribution.normal(1.0)
    weighted = fit_lattice("silu", "forward", "bf16", 4, form="times-sigmoid", effort="quick").program
    expected = fit_lattice("silu", "forward", "bf16", 4, form="times-sigmoid", effort="quick",
                           objective=Objective(distribution=normal)).program  # fmt: skip
    assert expected_error(expected, normal)[0] < expected_error(weighted, normal)[0]
    assert pf.certify(weighted).max_weighted_error < pf.certify(expected).max_weighted_error
    logit = fit_lattice("tanh", "forward", "fp16", 6, form="unit-odd", objective="logit", effort="quick")
    assert logit.score < 1.1  # 1 is the default budget of softcap attention
    assert catalog.record("tanh.forward.fp16.unit-odd-d6")["fit"]["score"] <= 1
    x = np.array([1e-3, 0.01, 0.1])
    y = logit.program.fmt.decode(pf.replay(logit.program, logit.program.fmt.encode(x)))
    np.testing.assert_allclose(y / np.tanh(x), 1, atol=2.0**-10)


def test_expected_error_is_an_integral() -> None:
    """Against quadrature over the rounding intervals, for a program and a histogram."""
    p = pf.load("tanh.forward.bf16.d3.sollya")
    histogram = Distribution.histogram((-2.0, 0.0, 1.0), (1.0, 3.0))
    rms, mean = expected_error(p, histogram)
    rng = np.random.default_rng(0)
    x = np.where(rng.random(400_000) < 0.25, rng.uniform(-2, 0, 400_000), rng.uniform(0, 1, 400_000))
    bits = p.fmt.encode(x)
    error = p.fmt.decode(pf.replay(p, bits)) - p.target.table(p.fmt).exact[bits]
    assert rms == pytest.approx(np.sqrt(np.mean(error**2)), rel=0.01) and mean == pytest.approx(np.mean(error), abs=3e-5)


def test_a_form_that_is_not_linear_is_searched_too() -> None:
    fit = fit_lattice("tanh", "forward", "bf16", 4, form="factored-odd", effort="quick")
    assert fit.score < 16e-3 and fit.program.form == "factored-odd"


def test_two_pieces_make_the_tails_of_a_derivative_exact() -> None:
    """SiLU' passes its limit: its D3 with exact tails is below half the error of any single polynomial."""
    fit = fit_lattice("silu", "backward", "bf16", 3, form="peak-odd", effort="quick")
    c = pf.certify(fit.program)
    assert faults(c) == [] and fit.score < 13e-3 and (c.fma, c.instructions) == (4, 9)
    assert not FORMS["peak-odd"].serves(pf.get_function("sigmoid", "backward"))


def test_a_search_without_gain_says_so() -> None:
    seed = pf.load("tanh.forward.bf16.d2")
    assert "nothing better" in fit_lattice("tanh", "forward", "bf16", 2, effort="quick", seeds=[seed]).note


def test_monotone_is_kept_or_refused() -> None:
    fit = fit_lattice("gelu", "forward", "bf16", 3, effort="quick", form="w", monotone=1.0)
    assert pf.certify(fit.program).monotone_ulps_quarter <= 1
    with pytest.raises(FitError, match="monotone within"):
        fit_lattice("sigmoid", "forward", "bf16", 3, effort="quick", form="fused-odd-relu", monotone=0.0)


def test_budgets() -> None:
    for name in ("silu", "sigmoid", "tanh", "gelu"):
        for direction in ("forward", "backward"):
            for degree in range(2, 7):
                request = Request(name, direction, BF16, degree)
                for shape in shapes(request):
                    values = dict.fromkeys(shape.form.free_names(shape.degree), 0.25) | {"clamp": 4.0}
                    counts = shape.program(values).counts
                    assert counts.fma <= degree + 1 and counts.instructions <= degree + 6
    assert degree_within_budget(FORMS["wsq"], Request("silu", "forward", BF16, 5)) == 3  # as the name wsq-d3 says


def test_impossible_requirements_name_the_constraint() -> None:
    with pytest.raises(FitError, match="begins at degree 3"):
        fit_lattice("silu", "backward", "bf16", 2, form="peak-odd")
    with pytest.raises(FitError, match="does not serve"):
        fit_lattice("silu", "forward", "bf16", 3, form="fused-odd")
    with pytest.raises(FitError, match="tail"):
        fit_lattice("sigmoid", "forward", "bf16", 3, form="fused-odd", clamp=5.0, effort="quick")


@pytest.mark.parametrize("content", ["", "{}", "[]", '{"edges": [], "counts": []}', '{"edges": [0, 1], "counts": ["a"]}',
                                     '{"edges": [0, 1], "counts": [0]}', '{"edges": [1, 0], "counts": [1]}', '{"edges": [0, 1], "counts": [-1]}',
                                     '{"edges": [0, NaN], "counts": [1]}', '{"edges": [0, 1, 2], "counts": [1]}'])  # fmt: skip
def test_bad_distributions_are_refused(content: str, tmp_path) -> None:
    path = tmp_path / "h.json"
    path.write_text(content)
    with pytest.raises(FitError, match="distribution"):
        Distribution.read(path)


def test_a_good_distribution_file(tmp_path) -> None:
    path = tmp_path / "h.json"
    path.write_text(json.dumps({"edges": [-1, 0, 1], "counts": [1, 1]}))
    d = Distribution.read(path)
    assert d.cumulative(np.array([-2.0, 0.0, 0.5, 3.0])).tolist() == [0, 0.5, 0.75, 1]
    for bad in (0.0, -1.0, math.nan, math.inf):
        with pytest.raises(FitError, match="sigma"):
            Distribution.normal(bad)
    with pytest.raises(FitError, match="limit"):
        Objective("relative", limit=-1.0)
    with pytest.raises(UnknownNameError, match="unknown objective"):
        Objective("nice")


def test_progress_is_reported() -> None:
    seen: list[tuple[int, int]] = []
    search("tanh", "forward", "bf16", 2, "lattice", effort="quick", progress=lambda a, b: seen.append((a, b)))
    assert seen and all(a <= b for a, b in seen)


def test_a_given_clamp_is_kept_whatever_the_seeds() -> None:
    seed = pf.load("silu.forward.bf16.d3")
    assert seed.clamp != 3.0
    assert pf.fit("silu", degree=3, clamp=3.0, effort="quick", seeds=[seed]).clamp == 3.0
    fit = fit_lattice("silu", degree=3, clamp=3.001, effort="quick")
    assert fit.program.clamp == 3.0 and "clamp 3.001 is 3 in bf16" in fit.note


@pytest.mark.parametrize(("options", "message"), [
    ({"effort": ["quick"]}, r"unknown effort \['quick'\]; known: scout, quick, normal, thorough"),
    ({"monotone": float("nan")}, "monotone nan must be a number of ulps from 0 up"), ({"monotone": -1}, "monotone -1 must be"),
    ({"monotone": "x"}, "monotone 'x' must be"), ({"seed": 2**31}, "seed 2147483648 must be a whole number from 0 below 2\\^31"),
    ({"seed": 1.5}, "seed 1.5"), ({"seed": "a"}, "seed 'a'"), ({"free": "no"}, "free 'no' must be True or False"),
    ({"objective": 3}, "objective 3 must be an Objective or one of weighted"), ({"seeds": [3]}, "seeds must be Programs, not int"),
    ({"fit_interval": 3.0}, "method lattice takes no fit_interval; it takes form, clamp, free"),
    ({"form": "peak-odd"}, "form peak-odd does not serve tanh forward, which is odd; it serves centred derivatives"),
    ({"form": "hardware-tanh"}, "form hardware-tanh is not searched in the format"),
])  # fmt: skip
def test_options_are_checked_before_the_search(options: dict, message: str) -> None:
    with pytest.raises(pf.PolyfmaError, match=message):
        pf.fit("tanh", degree=2, **options)
    with pytest.raises(pf.FitError, match=r"no form can be built: coefficient centre = 5e-09 becomes zero in fp16"):
        pf.fit("sigmoid-100000000", format="fp16", degree=2)


def test_distributions_that_overflow_or_nest_are_refused(tmp_path) -> None:
    from polyfma.fit.objective import Distribution

    path = tmp_path / "d.json"
    for content in ("[" * 100000, '{"edges": [0, 1, 2], "counts": [1e308, 1e308]}', '{"edges": [0, 1, 2], "counts": "12"}',
                    '{"edges": [0, %s], "counts": [1]}' % ("9" * 400)):  # fmt: skip
        path.write_text(content)
        with pytest.raises(pf.FitError, match=r"distribution"):
            Distribution.read(path)


def test_walk_and_polish_only_improve() -> None:
    """From a program moved off its optimum, and from the catalogue's own; the same every time."""
    from polyfma.fit.lattice import judged, walk
    from polyfma.fit.polish import polish

    for name, degree in (("silu.forward.bf16.d3", 3), ("tanh.backward.bf16.d3", 3), ("sigmoid.forward.bf16.d3", 3)):
        p = pf.load(name)
        request = Request(p.function, p.direction, p.fmt, degree)
        moved = p.with_consts({"clamp": int(p.consts["clamp"], 16) + 3})
        for step in (walk, polish):
            found = step(moved, request)
            before, after = pf.certify(moved), pf.certify(found)
            assert request.accepts(before) or judged(found, after, request) <= judged(moved, before, request), (name, step)
            assert step is walk or not request.accepts(after), (name, step)  # from inexact tails to exact ones, if need be
            assert step(moved, request) == found
        assert polish(p, request, keep_clamp=True).clamp == p.clamp
