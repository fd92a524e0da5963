"""Makes the catalogue: every planned row is fitted, certified and written, whole or not at all.

A row that is already there keeps its program unless it is asked for anew, so an interrupted build goes on
where it stopped; its certificate is made again and replaced if it differs. A searched row is only ever
replaced by a better one: the program that is there is a candidate, as are the neighbouring degree, the row
with more requirements, and the controls.
"""

from __future__ import annotations

import ctypes
import json
import signal
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from polyfma.catalog import CERTIFICATES, PROGRAMS, REFUSED, read_entry, record, refused
from polyfma.certify import Certificate, certify
from polyfma.errors import PolyfmaError
from polyfma.files import write_text
from polyfma.fit import EXP2_METHODS, search
from polyfma.fit.common import Fit, program_name
from polyfma.fit.objective import Distribution, Objective
from polyfma.formats import get_format
from polyfma.forms import get_form, published_form
from polyfma.forms.hardware import HARDWARE
from polyfma.functions import DIRECTIONS, get_function
from polyfma.hardware import ARCHITECTURE
from polyfma.program import Program
from polyfma.published import published

if TYPE_CHECKING:
    from polyfma.fit.request import Request

FUNCTIONS = ("sigmoid", "tanh", "silu", "gelu", "gelu-tanh", "silu-1.702", "softcap-50")
FORMATS = ("bf16", "fp16")
CONTROL_DEGREES = (3, 4, 5, 6)
SEARCHED_DEGREES = (2, 3, 4, 5, 6)
CONTROLS = ("endpoint-ls", "sollya")
MOST_MOVES = 3
LAST_KICKS = 3000  # random steps of the last polish
_PR_SET_PDEATHSIG = 1  # prctl(2)


@dataclass(frozen=True)
class Row:
    """One program to make. ``after`` are rows that must be there before it; ``options`` go to the fit."""

    name: str
    function: str
    direction: str
    format: str
    degree: int
    method: str
    options: dict[str, Any] = field(default_factory=dict, hash=False)
    after: tuple[str, ...] = ()


def plan() -> list[Row]:
    """Every row of the catalogue, in an order in which each comes after those it needs."""
    return [*_controls(), *_attention(), *_hardware(), *_proved(), *_defaults(), *_named_forms()]


def _controls() -> Iterator[Row]:
    for function in FUNCTIONS:
        for direction in DIRECTIONS:
            form = published_form(get_function(function, direction))
            for fmt in FORMATS:
                for degree in CONTROL_DEGREES:
                    for method in CONTROLS:
                        name = program_name(form, get_function(function, direction), get_format(fmt), degree, method)
                        # The strongest control under the arithmetic that runs; the published search rounds split.
                        yield Row(name, function, direction, fmt, degree, method, {"mode": "fused"})


def _attention() -> Iterator[Row]:
    """What sigmoid attention and the exp2 ladder were published with."""
    clamp = published()["b3_deployed"]["clamp"]
    for function in ("sigmoid", "sigmoid-4096"):
        for form in ("two-row", "coupled"):
            yield Row(f"{function}.forward.bf16.{form}-d3.endpoint-ls", function, "forward", "bf16", 3, "endpoint-ls",
                      {"mode": "fused", "form": form, "clamp": clamp})  # fmt: skip
    ladder = (("d1", 1, ("least-squares",)), ("pwl2", 1, EXP2_METHODS[:2]), ("d2", 2, EXP2_METHODS[:2]), ("d3", 3, ("published",)))
    for fmt in FORMATS:
        for core, degree, methods in ladder:
            for method in methods:
                yield Row(f"exp2.forward.{fmt}.{core}.{method}", "exp2", "forward", fmt, degree, method, {"form": f"exp2-{core}"})


def _hardware() -> Iterator[Row]:
    """The GPU's own tanh and 2^x, as recorded: what a polynomial is measured against."""
    for form in HARDWARE:
        for function in (*FUNCTIONS, "exp2"):
            for direction in DIRECTIONS:
                if form.serves(get_function(function, direction)):
                    for fmt in FORMATS:
                        yield Row(f"{function}.{direction}.{fmt}.hardware", function, direction, fmt, 0, "hardware", {"form": form.name})


def _defaults() -> Iterator[Row]:
    """The best programs in the format: D2 to D6, with the default requirements and free of them."""
    for function in FUNCTIONS:
        for direction in DIRECTIONS:
            for fmt in FORMATS:
                if function == "softcap-50" and fmt == "fp16":
                    continue  # coefficients over 50^k are subnormal: use tanh programs on x/cap
                for degree in SEARCHED_DEGREES:
                    stem = f"{function}.{direction}.{fmt}.d{degree}"
                    below = f"{function}.{direction}.{fmt}.d{degree - 1}"
                    lower = (below,) if degree > SEARCHED_DEGREES[0] else ()
                    yield Row(stem, function, direction, fmt, degree, "lattice", {}, lower)
                    yield Row(f"{stem}.free", function, direction, fmt, degree, "lattice", {"free": True},
                              (stem, *(f"{b}.free" for b in lower)))  # fmt: skip


# (function, direction, form, degree, whether free of tails and range): BF16 programs that are proved the best of their form.
PROVED = (
    ("sigmoid", "forward", "fused-odd-relu", 3, False),
    ("sigmoid", "forward", "fused-odd", 3, True),
    ("sigmoid", "forward", "fused-odd-relu", 4, False),
    ("sigmoid", "forward", "fused-odd", 4, True),
    ("tanh", "forward", "fused-odd", 3, False),
    ("tanh", "forward", "fused-odd", 3, True),
    ("tanh", "forward", "fused-odd", 4, False),
    ("tanh", "forward", "fused-odd", 4, True),
    ("silu", "backward", "rounded-odd", 3, False),
    ("silu", "backward", "fused-odd", 3, True),
    ("gelu", "backward", "rounded-odd", 3, False),
    ("gelu", "backward", "fused-odd", 3, True),
    ("sigmoid", "backward", "fused-even", 2, True),
    ("sigmoid", "backward", "fused-even", 3, True),
    ("tanh", "backward", "fused-even", 2, True),
)


def _proved() -> Iterator[Row]:
    for function, direction, form, degree, free in PROVED:
        name = f"{function}.{direction}.bf16.{form}-d{degree}" + (".free" if free else "")
        yield Row(name, function, direction, "bf16", degree, "proved", {"form": form, "free": free})


def _named_forms() -> Iterator[Row]:
    """Programs that carry their form: a fixed shape, or another objective."""
    gating = Objective(distribution=Distribution.normal(1.0), bias_weight=1.0)
    for fmt in FORMATS:
        for function in ("silu", "gelu", "gelu-tanh", "silu-1.702"):
            for form, degree in (("w", 3), ("wsq", 3)):
                yield Row(f"{function}.forward.{fmt}.{form}-d{degree}", function, "forward", fmt, degree, "lattice", {"form": form})
            yield Row(f"{function}.forward.{fmt}.times-sigmoid-d4", function, "forward", fmt, 4, "lattice",
                      {"form": "times-sigmoid", "objective": gating})  # fmt: skip
        for function in FAITHFUL if fmt == "bf16" else ():
            yield Row(f"{function}.forward.{fmt}.fp32-times-sigmoid-limited-d7", function, "forward", fmt, 7, "lattice",
                      {"form": "fp32-times-sigmoid-limited", "objective": gating})  # fmt: skip
        for form, degree in (("unit-odd", 4), ("unit-odd", 5), ("unit-odd", 6)):
            yield Row(f"tanh.forward.{fmt}.{form}-d{degree}", "tanh", "forward", fmt, degree, "lattice",
                      {"form": form, "objective": "logit"})  # fmt: skip
    yield Row("tanh.forward.fp16.fp32-unit-gap-d7", "tanh", "forward", "fp16", 7, "logit", {})
    # Weights of sigmoid attention: least expected error under normal scores, in the fewest instructions.
    for form, degree, sigma in (("odd-square-relu", 3, 1.0), ("fused-odd-relu", 4, 1.5)):
        objective = Objective(distribution=Distribution.normal(sigma), bias_weight=1.0)
        yield Row(f"sigmoid.forward.bf16.{form}-d{degree}.normal", "sigmoid", "forward", "bf16", degree, "lattice",
                  {"form": form, "objective": objective})  # fmt: skip
    for function, ulps in (("sigmoid", 2), ("tanh", 1), ("silu", 2), ("gelu", 1)):
        yield Row(f"{function}.forward.bf16.d4.monotone-{ulps}", function, "forward", "bf16", 4, "lattice", {"monotone": float(ulps)},
                  (f"{function}.forward.bf16.d4",))  # fmt: skip
    for function, fmt, form, degree in ACCURATE:
        yield Row(f"{function}.forward.{fmt}.{form}-d{degree}", function, "forward", fmt, degree, "lattice",
                  {"form": form, "objective": "ulp-quarter"})  # fmt: skip


# Functions of a model's gates: the factor of x in fp32, fitted where gates lie, so that nearly every result is correctly rounded.
FAITHFUL = ("silu", "gelu", "gelu-tanh", "silu-1.702")

# Programs that compute in a wider format: for BF16 the cheapest form and degree, of those looked at, within an
# ulp of max(|f|, 1/4) and monotone to an ulp of that; for FP16 as near as the search comes.
ACCURATE = (
    ("sigmoid", "bf16", "fp16-fused-odd-limited", 6),
    ("sigmoid", "bf16", "fp32-fused-odd-limited", 6),
    ("tanh", "bf16", "fp16-fused-odd-limited", 6),
    ("tanh", "bf16", "fp32-fused-odd-limited", 6),
    ("softcap-50", "bf16", "fp32-fused-odd-limited", 7),
    ("silu", "bf16", "fp32-wsq", 6),
    ("silu-1.702", "bf16", "fp32-wsq", 6),
    ("gelu", "bf16", "fp32-wsq", 4),
    ("gelu-tanh", "bf16", "fp32-wsq", 4),
    ("sigmoid", "fp16", "fp32-fused-odd-limited", 8),
    ("tanh", "fp16", "fp32-fused-odd-limited", 8),
    ("silu", "fp16", "fp32-wsq", 8),
    ("silu-1.702", "fp16", "fp32-wsq", 8),
    ("gelu", "fp16", "fp32-wsq", 8),
    ("gelu-tanh", "fp16", "fp32-wsq", 8),
)


def build(rows: list[Row], *, workers: int = 2, force: bool = False, effort: str = "normal",
          progress: Callable[[int, int, str], None] | None = None) -> dict[str, str]:  # fmt: skip
    """Make the rows that are missing (all, with ``force``). Returns the refused ones with their reasons.

    ``effort`` is that of the search in the format. ``progress(done, total, name)`` is called after each row.
    """
    for folder in (PROGRAMS, CERTIFICATES):  # what a killed worker left half written
        for leftover in folder.glob(".*.json"):
            leftover.unlink()
    from polyfma.fit.lattice import check_effort

    check_effort(effort)
    known = refused()
    todo = {r.name: r for r in rows if force or r.name not in known}
    # Tables first and in this process, or every worker would make the same ones.
    for function, direction, fmt in dict.fromkeys((r.function, r.direction, r.format) for r in todo.values()):
        get_function(function, direction).table(fmt)
    pool = ProcessPoolExecutor(max_workers=workers, initializer=_start_worker)
    try:
        _schedule(pool, todo, known, force, effort, progress)
    except BaseException:  # an interrupt: rows in work are lost whole, what is written stays
        processes = list((getattr(pool, "_processes", None) or {}).values())
        pool.shutdown(wait=False, cancel_futures=True)
        for process in processes:
            process.terminate()
        raise
    pool.shutdown()
    _settle(rows)
    return {r.name: known[r.name] for r in rows if r.name in known}


def _settle(rows: list[Row]) -> None:
    """A row may use what was found for a later one: a default row its free twin, where that has no fault."""
    for row in rows:
        if row.method == "lattice" and (PROGRAMS / f"{row.name}.json").is_file():
            _write_better(row, None, last_step=False)


def _schedule(pool: ProcessPoolExecutor, todo: dict[str, Row], known: dict[str, str], force: bool, effort: str,
              progress: Callable[[int, int, str], None] | None) -> None:  # fmt: skip
    """Submit each row once those that it comes after are done."""
    waiting, done, total = dict(todo), 0, len(todo)
    running: dict[Future[str], Row] = {}
    while waiting or running:
        ready = [r for r in waiting.values() if not any(a in waiting or a in {x.name for x in running.values()} for a in r.after)]
        for row in ready:
            del waiting[row.name]
            running[pool.submit(make_row, row, force, effort)] = row
        future = next(as_completed(running))
        row = running.pop(future)
        reason = future.result()
        done += 1
        if reason or row.name in known:
            known.pop(row.name, None)
            if reason:
                known[row.name] = reason
            write_text(REFUSED, json.dumps(dict(sorted(known.items())), indent=1) + "\n")
        if progress:
            progress(done, total, row.name)


def _start_worker() -> None:
    """A worker uses one core, leaves an interrupt to the process that started it, and dies with it."""
    import numba

    numba.set_num_threads(1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def make_row(row: Row, force: bool = False, effort: str = "normal") -> str:
    """Fit (unless the program is there), certify and write one row; the reason if it is refused."""
    path = PROGRAMS / f"{row.name}.json"
    if not force and path.is_file() and _still_holds(row):
        return ""
    options = dict(row.options)
    if row.method == "proved":
        return _make_proved(row)
    if row.method == "hardware":
        return _make_hardware(row)
    if row.method == "lattice":
        options |= {"effort": effort, "seeds": _relatives(row)}
    try:
        fit = search(row.function, row.direction, row.format, row.degree, row.method, **options)
    except PolyfmaError as error:
        if not path.is_file() and not (row.method == "lattice" and _relatives(row)):
            return str(error)
        fit = None
    if row.method == "lattice":
        return _write_better(row, fit)
    if fit is not None:
        write_entry(Fit(**{**vars(fit), "program": fit.program.renamed(row.name)}))
    return ""


def _make_hardware(row: Row) -> str:
    """Nothing to fit; the record names the architecture whose recorded tables the certificate holds for."""
    form = get_form(row.options["form"])
    try:
        program = form.build(row.name, row.function, row.direction, row.format, row.degree, {})
    except PolyfmaError as error:
        return str(error)
    _write_certificate(row.name, certify(program), {"method": "hardware", "form": form.name, "architecture": ARCHITECTURE})
    write_text(PROGRAMS / f"{row.name}.json", program.to_json())
    return ""


def _make_proved(row: Row) -> str:
    """Search, then prove; what the proof finds better is the next program, until it finds nothing."""
    from polyfma.fit.lattice import fit_lattice
    from polyfma.fit.proof import prove

    fit = fit_lattice(row.function, row.direction, row.format, row.degree, effort="thorough", **row.options)
    program = fit.program.renamed(row.name)
    try:
        while not (proof := prove(program)).holds:
            program = program.with_consts(proof.better_constants())
    except PolyfmaError as error:
        return str(error)
    fit_record = {"method": "proved", "form": program.form, "clamp": program.clamp, "score": proof.error, "score_mode": "fused"}
    _write_certificate(row.name, certify(program), fit_record | {"proof": proof.to_dict()})
    write_text(PROGRAMS / f"{row.name}.json", program.to_json())
    return ""


def _relatives(row: Row) -> list[Program]:
    """Programs that may serve the row as they are: its own, those it comes after, its controls."""
    stem = row.name.removesuffix(".free")
    proved = [p.name for p in _proved() if (p.function, p.direction, p.format, p.degree) == (row.function, row.direction, row.format, row.degree)]
    twin = [f"{stem}.free"] if stem == row.name else []
    names = [row.name, *row.after, *twin, *proved, *(f"{stem}.{control}" for control in CONTROLS)]
    found = []
    for name in names:
        try:
            found.append(read_entry(name))
        except PolyfmaError:  # not there yet, or damaged: its own row makes it
            continue
    return found


def _write_better(row: Row, fit: Fit | None, *, last_step: bool = True) -> str:
    """Write the best of what was found and the relatives, under the row's name, after a last polish.

    Returns why nothing was written; empty if something was.
    """
    from polyfma.fit.lattice import METHOD, judged

    request = _request(row)
    found = [] if fit is None else [fit.program]
    for relative in _relatives(row):
        counts, masked = relative.counts, any(op.op == "select" for op in relative.ops)
        within = counts.fma <= row.degree + 1 and counts.instructions <= row.degree + 6 and not masked
        if relative.name == row.name or (row.options.get("form") is None and within):
            found.append(relative)
    judged_programs: list[tuple[float, int, int, Program]] = []
    for program in found:
        certificate = certify(program)
        if not request.accepts(certificate):
            judged_programs.append((judged(program, certificate, request), program.counts.instructions, len(judged_programs), program))
    if not judged_programs:
        return "no program meets the requirements"
    score, _, _, program = min(judged_programs)
    if last_step:
        score, program = _moved(program, score, request)
    named = Program.from_dict({k: v for k, v in program.to_dict().items() if k != "digest"} | {"name": row.name, "degree": row.degree})
    candidates = 0 if fit is None else len(fit.candidates)
    fit_record = {"method": METHOD, "form": named.form, "clamp": named.clamp, "objective": request.objective.name,
                  "distribution": f"N(0, {law.sigma:g})" if (law := request.objective.distribution) else None, "score": score,
                  "score_mode": "fused", "candidates": candidates}  # fmt: skip
    path = PROGRAMS / f"{row.name}.json"
    if path.is_file() and Program.read(path).digest == named.digest and (CERTIFICATES / path.name).is_file():
        _certify_again(row.name)
        return ""
    _write_certificate(row.name, certify(named), fit_record)
    write_text(path, named.to_json())
    return ""


def _moved(program: Program, score: float, request: Request) -> tuple[float, Program]:
    """Walk and polish in turn for as long as a better program that meets the requirements comes of it."""
    from polyfma.fit.lattice import judged, walk
    from polyfma.fit.polish import polish

    improved, rounds = True, 0
    while improved and rounds < MOST_MOVES:  # a wider inner format has steps so small that there is always another
        improved, rounds = False, rounds + 1
        for moved in (walk(program, request), polish(program, request, kicks=LAST_KICKS)):
            certificate = certify(moved)
            better = judged(moved, certificate, request)
            if better < score and not request.accepts(certificate):
                score, program, improved = better, moved, True
    return score, program


def _still_holds(row: Row) -> bool:
    """Certify a row that is there again; False where it must be made anew: no certificate, or one that it does not earn."""
    try:
        _certify_again(row.name)
    except PolyfmaError:
        return False
    return row.method != "lattice" or not _request(row).accepts(certify(read_entry(row.name)))


def _request(row: Row) -> Request:
    from polyfma.fit.request import Request

    objective = row.options.get("objective", Objective())
    return Request(row.function, row.direction, get_format(row.format), row.degree, row.options.get("free", False),
                   Objective(objective) if isinstance(objective, str) else objective, row.options.get("monotone"))  # fmt: skip


def _certify_again(name: str) -> None:
    stored = record(name)
    certificate = certify(read_entry(name))
    if certificate.differences(stored["certificate"]):
        _write_certificate(name, certificate, stored["fit"])


def write_entry(fit: Fit) -> None:
    """The certificate first: a program in the catalogue always has one."""
    _write_certificate(fit.program.name, certify(fit.program), fit.record())
    write_text(PROGRAMS / f"{fit.program.name}.json", fit.program.to_json())


def _write_certificate(name: str, certificate: Certificate, fit: dict[str, Any]) -> None:
    write_text(CERTIFICATES / f"{name}.json", json.dumps({"certificate": certificate.to_dict(), "fit": fit}, indent=1) + "\n")
