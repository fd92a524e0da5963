from __future__ import annotations

import json

import pytest

import polyfma as pf
from polyfma import ProgramError, UnknownNameError, catalog
from polyfma.catalog.build import build, plan

NAMES = pf.programs()


def test_every_planned_row_is_there_or_refused_with_a_reason() -> None:
    refused = catalog.refused()
    for row in plan():
        assert (row.name in NAMES) != (row.name in refused), row.name
    assert all("becomes" in reason or "not finite" in reason for reason in refused.values())
    assert set(NAMES) == {r.name for r in plan()} - set(refused)


@pytest.mark.parametrize("name", NAMES)
def test_every_stored_certificate_holds(name: str) -> None:
    program = pf.load(name)
    assert program.name == name
    stored = catalog.record(name)
    assert stored["certificate"]["digest"] == program.digest
    assert pf.certify(program).differences(stored["certificate"]) == []


def test_controls_cover_every_function_direction_degree_and_format() -> None:
    for function in ("sigmoid", "tanh", "silu", "gelu", "gelu-tanh"):
        for direction in ("forward", "backward"):
            for fmt in ("bf16", "fp16"):
                for degree in (3, 4, 5, 6):
                    for method in ("endpoint-ls", "sollya"):
                        assert f"{function}.{direction}.{fmt}.d{degree}.{method}" in NAMES


def test_sigmoid_controls_match_the_reference_figures() -> None:
    """Best Sollya control over Lc, published order, fused replay: the figures of the reference table."""
    for name, error in {"sigmoid.forward.bf16.d3.sollya": 8.18, "sigmoid.forward.bf16.d4.sollya": 6.90,
                        "tanh.forward.bf16.d4.sollya": 10.29, "sigmoid.forward.fp16.d4.sollya": 3.78,
                        "sigmoid.backward.bf16.d4.sollya": 4.72}.items():  # fmt: skip
        measured = 1e3 * catalog.record(name)["certificate"]["max_weighted_error"]
        assert measured <= error + 0.0051


def test_names_sort_as_people_read_them() -> None:
    assert NAMES.index("gelu.forward.bf16.d3.sollya") < NAMES.index("gelu.forward.bf16.d4.endpoint-ls")
    assert sorted(NAMES, key=catalog._reading_order) == NAMES


def test_load_by_name_and_path(tmp_path) -> None:
    p = pf.load(NAMES[0])
    path = tmp_path / "mine.json"
    path.write_text(p.to_json())
    assert pf.load(path) == pf.load(str(path)) == p
    data = p.to_dict()
    const = next(iter(data["consts"]))
    data["consts"][const] = f"{int(data['consts'][const], 16) ^ 1:04x}"
    path.write_text(json.dumps(data))
    with pytest.raises(ProgramError, match="digest"):
        pf.load(path)
    with pytest.raises(UnknownNameError, match=r"near: .*silu\.forward\.bf16\.d4"):
        pf.load("silu.forward.bf16.d44")
    with pytest.raises(ProgramError, match="no program file"):
        pf.load("nowhere/p.json")
    for strange in ("", ".", "..", "../x", "/", str(tmp_path), "a\x00b"):
        with pytest.raises(pf.PolyfmaError):
            pf.load(strange)


def test_an_interrupted_build_goes_on(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stop after the first row leaves that row whole; the next build makes only the rest."""
    for module in ("polyfma.catalog", "polyfma.catalog.build"):
        for name in ("PROGRAMS", "CERTIFICATES"):
            monkeypatch.setattr(f"{module}.{name}", tmp_path / name.lower())
        monkeypatch.setattr(f"{module}.REFUSED", tmp_path / "refused.json")
    rows = [r for r in plan() if r.function == "exp2" and r.format == "fp16"]

    class Stop(Exception):
        pass

    def stop(done: int, total: int, name: str) -> None:
        raise Stop

    with pytest.raises(Stop):
        build(rows, workers=1, progress=stop)
    made = sorted((tmp_path / "programs").glob("*.json"))
    assert made and all(pf.Program.read(p) for p in made)
    assert all((tmp_path / "certificates" / p.name).is_file() for p in made)
    first = made[0].stat().st_mtime_ns
    assert build(rows, workers=1) == {}
    assert len(list((tmp_path / "programs").glob("*.json"))) == len(rows) and made[0].stat().st_mtime_ns == first
    assert not [p for p in tmp_path.rglob("*") if p.name.startswith(".")]  # no temporary file stays


def test_a_folder_of_a_programs_name_does_not_hide_the_program(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "silu.forward.bf16.d4").mkdir()
    assert pf.load("silu.forward.bf16.d4").name == "silu.forward.bf16.d4"


@pytest.fixture
def copied(tmp_path, monkeypatch: pytest.MonkeyPatch):
    """The catalogue in a folder of its own, so that a test may damage it."""
    import shutil

    from polyfma.catalog import build as building

    folders = {"PROGRAMS": tmp_path / "programs", "CERTIFICATES": tmp_path / "certificates", "REFUSED": tmp_path / "refused.json"}
    shutil.copytree(catalog.PROGRAMS, folders["PROGRAMS"])
    shutil.copytree(catalog.CERTIFICATES, folders["CERTIFICATES"])
    shutil.copy(catalog.REFUSED, folders["REFUSED"])
    for module in (catalog, building):
        for name, path in folders.items():
            monkeypatch.setattr(module, name, path)
    catalog._remembered.cache_clear()
    yield tmp_path
    catalog._remembered.cache_clear()


def rows_named(*names: str):
    return [r for r in plan() if r.name in names]


def test_a_program_without_a_digest_is_refused_and_made_again(copied) -> None:
    name = "tanh.forward.bf16.d2"
    path = copied / "programs" / f"{name}.json"
    data = json.loads(path.read_text())
    good = data.pop("digest")
    data["consts"]["c2"] = f"{int(data['consts']['c2'], 16) + 1:04x}"
    path.write_text(json.dumps(data))
    with pytest.raises(ProgramError, match=r"has no digest; make it again: polyfma catalog build --only tanh.forward.bf16.d2 --force"):
        pf.load(name)
    from polyfma.catalog import build as building

    assert building.make_row(*rows_named(name), effort="quick") == ""
    assert pf.load(name).digest == good


def test_damaged_certificates_say_how_to_mend_them(copied) -> None:
    path = copied / "certificates" / "tanh.forward.bf16.d2.json"
    for content in ("{", "[]", '{"certificate": {}}'):
        path.write_text(content)
        with pytest.raises(ProgramError, match=r"certificate of tanh.forward.bf16.d2 is .*; make it again: polyfma catalog build"):
            catalog.record("tanh.forward.bf16.d2")
    (copied / "refused.json").write_text("[")
    with pytest.raises(ProgramError, match=r"refused.json is not JSON"):
        catalog.refused()


def test_an_unknown_effort_is_refused_before_anything_is_written(copied) -> None:
    (copied / "programs" / "silu.forward.bf16.w-d3.json").unlink()
    with pytest.raises(pf.FitError, match=r"unknown effort 'foo'"):
        build(rows_named("silu.forward.bf16.w-d3"), workers=1, effort="foo")
    assert "silu.forward.bf16.w-d3" not in catalog.refused()


def test_a_default_row_takes_a_free_twin_that_meets_its_requirements() -> None:
    """No default program is worse than a .free one that has no fault and fits the same budget."""
    from polyfma.certify import faults_of

    for row in plan():
        twin = f"{row.name}.free"
        if row.method == "lattice" and twin in NAMES:
            own, free = (catalog.record(n)["certificate"] for n in (row.name, twin))
            if not faults_of(free):
                assert own["max_weighted_error"] <= free["max_weighted_error"], row.name
