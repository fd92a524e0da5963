from __future__ import annotations

import numpy as np
import pytest

import oracles
import polyfma as pf
from polyfma import Op, Program, ProgramError, UnknownNameError
from polyfma.forms import FORMS, get_form

# The hardware's own functions are tables of what a GPU gave; no oracle has them, benchmarks/emitted_on_gpu.py holds them against one.
REPRESENTATIVES = {pf.load(name).form: name for name in pf.programs()}


def sample(fmt: str, count: int, seed: int) -> list[int]:
    """Inputs of every kind: random patterns, the interesting range, specials."""
    rng = np.random.default_rng(seed)
    top = 0x4110 if fmt == "bf16" else 0x4880  # 9.0
    ordinary = rng.integers(0, top, count)
    return [0, 0x8000, 1, 0x8001, 0x7F80, 0xFF80, 0x7C00, 0xFC00, 0x7FFF, 0xFFFF, 0x7F7F, 0xFF7F, 0x7BFF, 0xFBFF,
            *ordinary.tolist(), *(ordinary | 0x8000).tolist(), *rng.integers(0, 1 << 16, count).tolist()]  # fmt: skip


def check(program: Program, inputs: list[int], mode: str = "fused") -> None:
    got = pf.replay(program, np.array(inputs, dtype=np.uint16), mode=mode)
    by_name = got if isinstance(got, dict) else {next(iter(program.outputs)): got}
    text = program.to_json()
    for i, x in enumerate(inputs):
        wanted = oracles.interpret(text, x, split=mode == "split")
        for name, y in by_name.items():
            assert int(y[i]) == wanted[name], (program.name, mode, hex(x), hex(int(y[i])), hex(wanted[name]))


@pytest.mark.parametrize("name", [n for n in pf.programs() if not pf.load(n).counts.mufu])
def test_every_catalogue_program_agrees_with_exact_integers(name: str) -> None:
    program = pf.load(name)
    check(program, sample(program.format, 40, 1))
    check(program, sample(program.format, 10, 2), mode="split")


@pytest.mark.parametrize("form", sorted(f for f in REPRESENTATIVES if not FORMS[f].hardware))
def test_one_program_of_each_form_on_every_fifth_input(form: str) -> None:
    check(pf.load(REPRESENTATIVES[form]), list(range(0, 1 << 16, 5)))


def test_every_operation_in_one_program() -> None:
    """Operations that no form uses still replay as documented."""
    for fmt in ("bf16", "fp16"):
        unary = [Op("neg", "n", ("x",), fmt), Op("abs", "a", ("x",), fmt)]
        binary = [Op(op, f"b{i}", ("n", "c"), fmt) for i, op in enumerate(
            ("mul", "add", "sub", "min", "max", "min.nan", "max.nan", "min.xorsign.abs", "min.nan.xorsign.abs", "copysign"))]  # fmt: skip
        fused = [Op("fma", "f0", ("n", "c", "a"), fmt), Op("fma.relu", "f1", ("n", "c", "a"), fmt)]
        if fmt == "fp16":
            fused.append(Op("fma.sat", "f2", ("n", "c", "a"), fmt))
        masks = [Op("set.ge", "m0", ("x", "c"), fmt), Op("set.gt", "m1", ("x", "c"), fmt),
                 Op("select", "s0", ("m0", "x", "n"), fmt), Op("select", "s1", ("m1", "x", "n"), fmt)]  # fmt: skip
        wide = [Op("cvt", "w", ("x",), "fp32"), Op("fma", "w1", ("w", "k", "w"), "fp32"), Op("cvt", "w2", ("w1",), fmt)]
        ops = (*unary, *binary, *fused, *masks, *wide)
        outputs = {op.dst: op.dst for op in ops if op.format == fmt and not op.op.startswith("set.")}
        consts = {"c": {"bf16": "3fc0", "fp16": "3e00"}[fmt], "k": "3dcccccd"}
        check(Program("all", "tanh", "forward", fmt, 1, "odd", ("x",), consts, ops, outputs), sample(fmt, 250, 4))


def test_real_mode_is_the_polynomial_itself() -> None:
    p = pf.load("sigmoid.forward.bf16.d4.endpoint-ls")
    x = np.linspace(-8, 8, 999)
    c = [p.const_value(f"c{k}") for k in range(1, 5)]
    t = np.minimum(np.abs(p.fmt.decode(p.fmt.encode(x))), p.clamp)
    wanted = 0.5 + np.sign(x) * sum(a * t ** (k + 1) for k, a in enumerate(c))
    np.testing.assert_allclose(pf.replay(p, p.fmt.encode(x), mode="real"), wanted, atol=1e-15)


def test_real_mode_agrees_with_every_forms_model() -> None:
    """The linear model that fits solve is the computation that the program does."""
    for name in REPRESENTATIVES.values():
        p = pf.load(name)
        form = get_form(p.form)
        if form.hardware or form.parts or form.own_coefficients is not None or form.slope or "slope" in p.consts:
            continue  # fitted in parts, not linear, joined by min and max, or with -1/Lc rounded to a constant
        # A default name's degree is its budget; the form's own is that of its coefficients.
        degree = next(d for d in (p.degree, *range(1, 10)) if set(form.free_names(d)) == set(p.consts) & set(form.free_names(9)) or not form.clamped)
        # Searched forms may end with a limit, which the model leaves out: it acts near the clamp and beyond.
        reach = 1.3 if form.published else 0.6
        x = np.linspace(0.0, 1.0 if p.target.domain else reach * (p.clamp or 1.0), 301)
        bits = p.fmt.encode(x)
        values = np.array([p.const_value(n) for n in form.free_names(degree)])
        offset, multiplier, matrix = form.model(p.target, p.fmt.decode(bits), degree, p.clamp or np.inf)
        y = offset + multiplier * (matrix @ values if values.size else matrix.sum(axis=1))
        got = pf.replay(p, bits, mode="real")
        np.testing.assert_allclose(got, y, rtol=1e-12, atol=1e-12, err_msg=p.name)
    assert set(REPRESENTATIVES) <= set(FORMS)


def test_shapes_and_dtypes() -> None:
    p = pf.load("tanh.forward.fp16.d3.sollya")
    x = np.arange(24, dtype=np.uint16).reshape(2, 3, 4)
    assert pf.replay(p, x).shape == (2, 3, 4) and pf.replay(p, x).dtype == np.uint16
    assert pf.replay(p, np.uint16(0x3C00)).shape == ()
    assert pf.replay(p, np.zeros((0, 5), dtype=np.uint16)).shape == (0, 5)
    np.testing.assert_array_equal(pf.replay(p, [1, 2, 0x3C00]), pf.replay(p, np.array([1, 2, 0x3C00], dtype=np.uint16)))
    np.testing.assert_array_equal(pf.replay(p, x.T), pf.replay(p, x).T)
    for bad in (np.array([0.5]), np.array([-1]), np.array([70000]), np.array(["a"])):
        with pytest.raises(ProgramError, match="bit patterns"):
            pf.replay(p, bad)
    with pytest.raises(UnknownNameError, match="fused, split, real"):
        pf.replay(p, x, mode="exact")


def test_two_outputs_come_as_a_dict() -> None:
    y = pf.replay(pf.load("sigmoid.forward.bf16.coupled-d3.endpoint-ls"), np.array([0, 0x3F80], dtype=np.uint16))
    assert isinstance(y, dict) and set(y) == {"value", "derivative"}


@pytest.mark.parametrize(("fmt", "error"), [("bf16", 3.907e-3), ("fp16", 4.926e-4)])
def test_hardware_tanh_replays_from_its_recorded_table(fmt: str, error: float) -> None:
    """The error over all inputs that was measured on H200 apart from this table."""
    p = Program("h", "tanh", "forward", fmt, 0, "hardware", ("x",), {}, (Op("tanh.approx", "y", ("x",), fmt),), {"value": "y"})
    c = pf.certify(p)
    assert c.max_abs_error == pytest.approx(error, rel=2e-4) and c.nan == "propagates" and c.exact_tails
    wide = Program("h", "tanh", "forward", "fp32", 0, "hardware", ("x",), {}, (Op("tanh.approx", "y", ("x",), "fp32"),), {"value": "y"})
    with pytest.raises(ProgramError, match="only 16-bit"):
        pf.replay(wide, np.array([0], dtype=np.uint32))


def test_hardware_exp2_replays() -> None:
    p = Program("h", "exp2", "forward", "fp16", 0, "hardware", ("x",), {}, (Op("ex2.approx", "y", ("x",), "fp16"),), {"value": "y"})
    assert pf.certify(p).max_ulp < 1.1
