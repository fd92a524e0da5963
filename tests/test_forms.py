from __future__ import annotations

import pytest

from polyfma.errors import CoefficientError, PolyfmaError, UnknownNameError
from polyfma.forms import FORMS, Form, forms_for, get_form, published_form
from polyfma.functions import get_function

SIGMOID = {"c1": 0.28125, "c2": -0.053466796875, "c3": 0.003387451171875, "clamp": 6.0}


def test_published_forms_have_the_published_operation_counts() -> None:
    """The published order takes D + 4 instructions for centred odd rows, D + 3 odd, D + 2 even."""
    for degree in (1, 3, 4, 6, 8):
        values = {f"c{k}": 0.5 for k in range(degree + 1)} | {"clamp": 3.0}
        for form, function, direction, extra, fma in (
            ("centred-odd", "sigmoid", "forward", 4, 1), ("odd", "tanh", "forward", 3, 0), ("even", "tanh", "backward", 2, 0),
            ("residual-tp", "gelu", "forward", 7, 2), ("residual-even", "silu", "forward", 6, 1),
            ("sigmoid-product", "silu", "forward", 5, 2),
        ):  # fmt: skip
            p = get_form(form).build("t", function, direction, "fp16", degree, values)
            assert (p.counts.instructions, p.counts.fma) == (degree + extra, degree + fma), form


def test_the_coupled_block_costs_five_more_than_the_value_alone() -> None:
    """As published: 17 and 22 instructions with their conversions; the difference is the derivative's."""
    values = dict.fromkeys(["a1", "a2", "a3", "b0", "b1", "b2", "b3", "d0", "d1", "d2", "d3", "d4"], 0.25) | {"clamp": 6.0}
    counts = [get_form(f).build("t", "sigmoid", "forward", "bf16", 3, values).counts.instructions for f in ("two-row", "coupled")]
    assert counts == [13, 18]


def test_the_three_silu_forms_are_three() -> None:
    assert {"residual-tp", "residual-even", "sigmoid-product"} <= set(forms_for(get_function("silu")))
    assert published_form(get_function("silu")).name == "residual-tp"


def served(form: Form) -> tuple[str, str]:
    """A function and direction that the form serves."""
    every = [(f, d) for f in ("tanh", "sigmoid", "silu", "gelu-tanh", "softcap-50", "exp2") for d in ("forward", "backward")]
    return next(pair for pair in every if form.serves(get_function(*pair)))


def test_constants_rebuild_the_program() -> None:
    """A form builds the same program again from the values of its constants."""
    for name, form in FORMS.items():
        degree = max(4, form.least_degree)
        values = dict.fromkeys(form.free_names(degree), 0.25) | {"clamp": 2.0}
        function, direction = served(form)
        p = form.build("t", function, direction, "bf16", degree, values)
        again = {n: p.const_value(n) for n in p.consts}
        assert form.build("t", function, direction, "bf16", degree, again) == p, name


def test_every_form_propagates_nan_and_counts_what_it_says() -> None:
    """A NaN in gives a NaN out in every form, at no instruction of its own."""
    import numpy as np

    import polyfma as pf

    for name, form in FORMS.items():
        function, direction = served(form)
        degree = max(4, form.least_degree)
        values = dict.fromkeys(form.free_names(degree), 0.25) | {"clamp": 2.0}
        p = form.build("t", function, direction, "bf16", degree, values)
        y = pf.replay(p, np.array([0x7FFF, 0xFFC0, 0x7F81], dtype=np.uint16))
        for bits in y.values() if isinstance(y, dict) else (y,):
            assert np.all(p.fmt.is_nan(bits)), name


def test_refusals() -> None:
    with pytest.raises(PolyfmaError, match="fp32-unit-gap begins at degree 6, not 5"):
        get_form("fp32-unit-gap").build("t", "tanh", "forward", "fp16", 5, {})
    form = get_form("centred-odd")
    with pytest.raises(PolyfmaError, match=r"missing: c3"):
        form.build("t", "sigmoid", "forward", "bf16", 3, {"c1": 1, "c2": 1, "clamp": 1})
    with pytest.raises(PolyfmaError, match=r"serves centred functions; tanh forward is odd"):
        form.build("t", "tanh", "forward", "bf16", 3, SIGMOID)
    for bad, what in (({"c2": 1e-6}, "subnormal"), ({"c3": 1e6}, "not finite"), ({"c1": float("nan")}, "not finite"),
                      ({"clamp": 0.0}, "positive"), ({"clamp": -2.0}, "positive")):  # fmt: skip
        with pytest.raises(CoefficientError, match=what):
            form.build("t", "sigmoid", "forward", "fp16", 3, SIGMOID | bad)
    with pytest.raises(UnknownNameError, match="centred-odd"):
        get_form("spline")
    with pytest.raises(PolyfmaError, match="exp2-d2"):
        published_form(get_function("exp2"))
