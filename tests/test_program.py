from __future__ import annotations

import copy
import hashlib
import json
import pickle

import pytest

from polyfma import Op, Program, ProgramError
from polyfma.forms import get_form


def sigmoid_d3() -> Program:
    values = {"c1": 0.28125, "c2": -0.053466796875, "c3": 0.003387451171875, "clamp": 6.0}
    return get_form("centred-odd").build("s", "sigmoid", "forward", "bf16", 3, values)


def test_json_round_trip_and_digest() -> None:
    p = sigmoid_d3()
    d = json.loads(p.to_json())
    assert Program.from_dict(d) == p and hash(Program.from_dict(d)) == hash(p)
    content = {k: v for k, v in d.items() if k != "digest"}
    canonical = json.dumps(content, sort_keys=True, separators=(",", ":")).encode()
    assert d["digest"] == hashlib.sha256(canonical).hexdigest()
    assert pickle.loads(pickle.dumps(p)) == p and copy.deepcopy(p) == p
    assert p.renamed("other").digest != p.digest
    assert set(d) == {"name", "function", "direction", "format", "degree", "form", "inputs", "consts", "ops", "outputs", "digest"}


def test_a_changed_bit_is_refused() -> None:
    for change in (lambda d: d["consts"].update(c2="bd5c"), lambda d: d.update(degree=4), lambda d: d["ops"].pop(),
                   lambda d: d.update(digest="0" * 64)):  # fmt: skip
        d = sigmoid_d3().to_dict()
        change(d)
        with pytest.raises(ProgramError, match=r"digest|not a result|not defined"):
            Program.from_dict(d)
    d = sigmoid_d3().to_dict()
    del d["digest"]
    assert Program.from_dict(d) == sigmoid_d3()


@pytest.mark.parametrize("text", ["", "not json", "[1, 2]", "{}", '{"name": 3}', '"text"', "null", '{"name":"x","ops":5}', "[" * 100_000])
def test_files_that_are_not_programs(tmp_path, text: str) -> None:
    path = tmp_path / "p.json"
    path.write_text(text)
    with pytest.raises(ProgramError):
        Program.read(path)
    with pytest.raises(ProgramError, match="cannot read"):
        Program.read(tmp_path / "absent.json")
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ProgramError):
        Program.read(path)


def test_a_program_keeps_no_list_that_others_can_change() -> None:
    ops = [Op("abs", "y", ("x",), "bf16")]
    p = Program("t", "tanh", "forward", "bf16", 1, "odd", ["x"], {}, ops, {"value": "y"})  # type: ignore[arg-type]
    ops.append(ops[0])
    assert isinstance(p.ops, tuple) and len(p.ops) == 1 and p.inputs == ("x",)


def test_inputs_must_be_a_list() -> None:
    with pytest.raises(ProgramError, match="expected a list"):
        Program.from_dict({k: v for k, v in sigmoid_d3().to_dict().items() if k != "digest"} | {"inputs": "x"})


def build(ops: list[Op], consts: dict[str, str] | None = None, outputs: dict[str, str] | None = None, **fields: object) -> Program:
    base: dict[str, object] = {"name": "t", "function": "tanh", "direction": "forward", "format": "bf16", "degree": 1,
                               "form": "odd", "inputs": ("x",)}  # fmt: skip
    return Program(**{**base, **fields}, consts=consts or {}, ops=tuple(ops), outputs=outputs or {"value": ops[-1].dst})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("problem", "ops", "extra"),
    [
        ("unknown operation", [Op("sin", "y", ("x",), "bf16")], {}),
        ("takes 3 operands", [Op("fma", "y", ("x", "x"), "bf16")], {}),
        ("not defined before", [Op("abs", "y", ("z",), "bf16")], {}),
        ("not defined before", [Op("abs", "y", ("y",), "bf16")], {}),
        ("defined twice", [Op("abs", "x", ("x",), "bf16")], {}),
        ("is bf16, not fp16", [Op("abs", "y", ("x",), "fp16")], {}),
        ("unknown format", [Op("abs", "y", ("x",), "fp8")], {}),
        ("not mask:bf16", [Op("select", "y", ("x", "x", "x"), "bf16")], {}),
        ("not bf16", [Op("set.ge", "m", ("x", "x"), "bf16"), Op("abs", "y", ("m",), "bf16")], {}),
        ("is a mask", [Op("set.ge", "m", ("x", "x"), "bf16"), Op("cvt", "y", ("m",), "fp32")], {}),
        ("not a result of format", [Op("set.ge", "m", ("x", "x"), "bf16")], {}),
        ("not a result of format", [Op("cvt", "y", ("x",), "fp32")], {}),
        ("does not exist in bf16", [Op("fma.sat", "y", ("x", "x", "x"), "bf16")], {}),
        ("hex digits", [Op("add", "y", ("x", "c"), "bf16")], {"consts": {"c": "3f800000"}}),
        ("lower-case hexadecimal", [Op("add", "y", ("x", "c"), "bf16")], {"consts": {"c": "3F80"}}),
        ("named twice", [Op("add", "y", ("x", "x"), "bf16")], {"consts": {"x": "3f80"}}),
        ("identifier", [Op("abs", "a b", ("x",), "bf16")], {}),
        ("unknown function", [Op("abs", "y", ("x",), "bf16")], {"function": "relu"}),
        ("degree", [Op("abs", "y", ("x",), "bf16")], {"degree": -1}),
        ("degree", [Op("abs", "y", ("x",), "bf16")], {"degree": True}),
        ("direction", [Op("abs", "y", ("x",), "bf16")], {"direction": "up"}),
        ("unknown format", [Op("abs", "y", ("x",), "bf16")], {"format": "int8"}),
        ("must be letters", [Op("abs", "y", ("x",), "bf16")], {"name": "../x"}),
        ("0 inputs", [Op("abs", "y", ("c",), "bf16")], {"inputs": (), "consts": {"c": "3f80"}}),
        ("2 inputs", [Op("add", "y", ("x", "z"), "bf16")], {"inputs": ("x", "z")}),
        ("hex digits", [Op("abs", "y", ("x",), "bf16")], {"consts": {"unused": "3f800000"}}),
        ("form", [Op("abs", "y", ("x",), "bf16")], {"form": "[/red]"}),
        ("form", [Op("abs", "y", ("x",), "bf16")], {"form": ["odd"]}),
        ("not an identifier", [Op("abs", "y", ("x",), "bf16")], {"outputs": {"[/x]": "y"}}),
        ("does not exist in fp32", [Op("cvt", "w", ("x",), "fp32"), Op("fma.relu", "y", ("w", "w", "w"), "fp32")], {}),
        ("used in bf16 and fp16", [Op("add", "a", ("x", "c"), "bf16"), Op("cvt", "h", ("a",), "fp16"),
                                   Op("add", "y", ("h", "c"), "fp16")], {"consts": {"c": "3f80"}}),
        ("cannot be operand", [Op("select", "y", ("c", "x", "x"), "bf16")], {"consts": {"c": "ffff"}}),
    ],
)  # fmt: skip
def test_malformed_programs_are_refused(problem: str, ops: list[Op], extra: dict[str, object]) -> None:
    with pytest.raises(ProgramError, match=problem):
        build(ops, **extra)


def test_counts_are_those_of_a_lane_pair() -> None:
    assert (sigmoid_d3().counts.instructions, sigmoid_d3().counts.fma) == (7, 4)
    wide = build(
        [Op("cvt", "w", ("x",), "fp32"), Op("mul", "v", ("w", "c"), "fp32"), Op("cvt", "y", ("v",), "bf16")],
        consts={"c": "3f800000"},
    )
    # Two conversions up, two fp32 products, one packing conversion down.
    assert (wide.counts.instructions, wide.counts.fma, wide.counts.cvt) == (5, 2, 3)
    across = build([Op("cvt", "w", ("x",), "fp16"), Op("cvt", "y", ("w",), "bf16")])
    assert across.counts.cvt == 6  # 16 bits to 16 bits go through fp32


def test_views() -> None:
    p = sigmoid_d3()
    assert p.clamp == 6.0 and p.coefficients["c1"] == 0.28125 and "clamp" not in p.coefficients
    assert p.listing()[0] == "r0 = abs(x)" and p.listing()[-1] == "value: y"
    assert p.with_consts({"c1": 0x3E91}).const_value("c1") == 0.283203125
    with pytest.raises(ProgramError, match="no constant c9"):
        p.with_consts({"c9": 0})
    for bad in (1.5, -1, 1 << 16, True, "3e90"):
        with pytest.raises(ProgramError, match="not a bit pattern"):
            p.with_consts({"c1": bad})  # type: ignore[dict-item]
    with pytest.raises(TypeError):
        p.consts["c1"] = "0000"  # type: ignore[index]
