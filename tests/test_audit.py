"""What ptxas makes of the programs, on machines that need no GPU."""

from __future__ import annotations

import pytest

import polyfma as pf
from polyfma.audit import audit
from polyfma.emit.tools import find_tool
from polyfma.hardware.rates import RATES, UNITS

NAMES = pf.programs()
# A program of each form, in each format where there is one.
FORMS = list({(pf.load(n).form, pf.load(n).format): n for n in reversed(NAMES)}.values())


@pytest.fixture(autouse=True)
def tools() -> None:
    for tool in ("ptxas", "cuobjdump"):
        find_tool(tool)


@pytest.mark.parametrize("arch", ["sm_90", "sm_100"])
@pytest.mark.parametrize("name", FORMS)
def test_machine_code_is_what_the_program_says(name: str, arch: str) -> None:
    """No special function, no byte shuffle, no double precision, no local memory; packed; no more than the claimed count."""
    program = pf.load(name)
    a = audit(program, arch)
    counts = program.counts
    assert a.pipes["other"] == 0, a.opcodes
    assert not a.local_memory and not any(o.startswith(("DADD", "DMUL", "DFMA", "F2F.F64")) for o in a.opcodes)
    assert a.pipes["mufu"] == 2 * counts.mufu  # a packed one is two
    # A packed hardware function joins its two results; else no bytes are moved, constants apart (in the setup).
    assert a.opcodes.get("PRMT", 0) == counts.mufu, a.opcodes
    # fma, alu and conversions are never more than claimed; an abs or neg may be free, or on the other pipe.
    joins = 2 * counts.mufu
    arithmetic = a.pipes["fma"] + a.pipes["alu"] + a.pipes["cvt"]
    assert arithmetic <= counts.fma + counts.alu + counts.cvt + joins, (a.opcodes, counts)
    signs = sum(op.op in ("abs", "neg") for op in program.ops)
    assert counts.fma <= a.pipes["fma"] <= counts.fma + signs
    if all(op.format != "fp32" for op in program.ops):
        scalar = [o for o in a.opcodes if o.startswith(("FFMA", "FMUL", "FADD"))]
        assert not scalar, "16-bit arithmetic must stay packed"


def test_figures_of_known_programs() -> None:
    """BF16 SiLU D4 by hand: six on the FMA pipe, one of them the abs at half rate, two minima: 7 units of 32/128 clocks."""
    a = audit(pf.load("silu.forward.bf16.d4"))
    assert (a.pipes["fma"], a.pipes["alu"], a.instructions) == (6, 2, 8)
    assert a.cost == 7 * 32 / 128 and a.claimed == {"fma": 5, "alu": 3, "cvt": 0, "mufu": 0}
    assert a.opcodes["HFMA2.BF16_V2 (abs)"] == 1
    hardware = audit(pf.load("tanh.forward.bf16.hardware"))
    assert hardware.opcodes["MUFU.TANH.BF16"] == 2 and hardware.cost == 2 * 32 / 16


def test_unknown_rates_say_so() -> None:
    a = audit(pf.load("tanh.forward.fp16.d3"), "sm_120")
    assert a.cost is None and a.rates == "unknown for this architecture" and 120 not in RATES
    assert audit(pf.load("tanh.forward.fp16.d3"), "sm_90").rates.startswith("NVIDIA")


def test_layouts_add_their_conversions() -> None:
    p = pf.load("tanh.forward.fp16.d3")
    packed, mixed, wide = (audit(p, layout=layout) for layout in ("packed", "f32-packed", "f32"))
    assert mixed.pipes["cvt"] == packed.pipes["cvt"] + 1 and wide.pipes["cvt"] == mixed.pipes["cvt"] + 2
    assert packed.pipes["fma"] == mixed.pipes["fma"] == wide.pipes["fma"]


def test_units_are_those_of_the_rates() -> None:
    assert UNITS == {"fma": 1, "alu": 2, "cvt": 2, "mufu": 16}


def test_refusals() -> None:
    with pytest.raises(pf.ProgramError, match=r"audit takes a Program, not str"):
        audit("tanh.forward.fp16.d3")
    with pytest.raises(pf.UnknownNameError, match=r"unknown architecture 'sm_42'"):
        audit(pf.load("tanh.forward.fp16.d3"), "sm_42")
    with pytest.raises(pf.ProgramError, match=r"begins with sm_90"):
        audit(pf.load("tanh.forward.bf16.hardware"), "sm_89")


def test_a_missing_tool_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    from polyfma.emit import tools as searched

    monkeypatch.setattr(searched.shutil, "which", lambda name: None)
    monkeypatch.setattr(searched.importlib.util, "find_spec", lambda name: None)
    find_tool.cache_clear()
    try:
        with pytest.raises(pf.MissingToolError, match=r"ptxas is not installed: pip install triton, or install a CUDA toolkit"):
            audit(pf.load("tanh.forward.fp16.d3"))
    finally:
        find_tool.cache_clear()
