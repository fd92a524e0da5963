"""``bench``: measurements on a GPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from polyfma.cli.shell import Json, app, check_picture, err, out, print_json, print_table, progress_bar
from polyfma.errors import MissingToolError, UnknownNameError
from polyfma.files import check_target

if TYPE_CHECKING:
    from polyfma.bench.result import Measurement

bench_app = typer.Typer(no_args_is_help=True, help="Measure operators on a CUDA GPU against the alternatives.")
app.add_typer(bench_app, name="bench")

ATTENTION_CASES = ("b2", "b3")
OutFile = Annotated[Path | None, typer.Option("--out", help="Write every round, device, versions and protocol to this JSON file.")]


def _names(what: str, text: str | None, default: tuple[str, ...]) -> tuple[str, ...]:
    """The names of a list with commas. Raises UnknownNameError for a list of none."""
    names = default if text is None else tuple(dict.fromkeys(n.strip() for n in text.split(",") if n.strip()))
    if not names:
        raise UnknownNameError(f"--{what} {text!r} names nothing; polyfma bench --help says what it takes")
    return names


@bench_app.command("isolated")
def isolated_command(
    function: Annotated[str | None, typer.Option(help="Functions, separated by commas; default: sigmoid,tanh,silu,gelu.")] = None,
    dtype: Annotated[str | None, typer.Option(help="bf16 or fp16; default: both, as bf16,fp16.")] = None,
    elements: Annotated[str | None, typer.Option(help="Sizes, separated by commas; default: 4194304 (L2) and 268435456 (HBM).")] = None,
    picture: Annotated[Path | None, typer.Option(help="Draw the roofline to this .png or .svg.")] = None,
    out_file: OutFile = None,
    as_json: Json = False,
) -> None:
    """One operator: copy, torch, torch.compile, exact arithmetic, the hardware's tanh and the default polynomial."""
    _need_torch()
    from polyfma.bench import isolated
    from polyfma.bench.arms import FUNCTIONS
    from polyfma.ops.dtypes import DTYPES

    functions, dtypes = _names("function", function, FUNCTIONS), _names("dtype", dtype, tuple(DTYPES))
    isolated.check_names(functions, dtypes)
    if picture is not None:
        check_picture(picture)
        check_target(picture)
    sizes = isolated.check_sizes(_names("elements", elements, tuple(map(str, (isolated.L2, isolated.HBM)))))
    measured = _measured("isolated", out_file, as_json, lambda progress: isolated.measure(functions, dtypes, sizes, progress))
    if picture is not None:
        from polyfma import plots
        from polyfma.bench.roofline import roofline

        plots.save(roofline(measured), picture)
        if not as_json:
            out.print(f"written: {picture}", markup=False)


@bench_app.command("component")
def component_command(
    case: Annotated[str, typer.Option(help="b1 (dense SiLU and SwiGLU), b4 (an expert's SwiGLU), separated by a comma; or b2 (softcapped"
                                           " attention), b3 (sigmoid attention).")] = "b1,b4",
    out_file: OutFile = None,
    as_json: Json = False,
) -> None:
    """A component of a model's block, forward and backward."""
    _need_torch()
    from polyfma.bench import component
    from polyfma.bench.result import check_cases

    cases = _names("case", case, ())
    attention = [c for c in cases if c in ATTENTION_CASES]
    if attention and len(attention) < len(cases):
        raise UnknownNameError(f"--case {case}: {', '.join(attention)} are attention, with results of their own; name them apart from the others")
    if attention:
        _attention(attention, None, out_file, as_json)
        return
    check_cases(cases, (*component.CASES, *ATTENTION_CASES))
    _measured("component", out_file, as_json, lambda progress: component.measure(cases, progress))


@bench_app.command("attention")
def attention_command(
    case: Annotated[str, typer.Option(help="b2 (softcap), b3 (sigmoid), exp2, separated by commas.")] = "b2,b3,exp2",
    tune: Annotated[bool, typer.Option("--tune", help="Make attention's defaults of this run (an H200, cases b2 and b3).")] = False,
    picture: Annotated[Path | None, typer.Option(help="Draw time against error to this .png or .svg.")] = None,
    out_file: OutFile = None,
    as_json: Json = False,
) -> None:
    """Softcapped, sigmoid and exp2 attention: every arm's time and its error against fp64."""
    _need_torch()
    cases = _names("case", case, ())
    if tune and not {"b2", "b3"} <= set(cases):
        raise UnknownNameError(f"--tune needs the cases b2 and b3, not {case}")
    if tune:
        import torch

        from polyfma.attention.choice import FILE
        from polyfma.bench import attention_defaults

        if torch.cuda.is_available():
            attention_defaults.check_device(torch.cuda.get_device_name())
    measured = _attention(cases, picture, out_file, as_json)
    if tune:
        attention_defaults.write(measured)
        err.print(f"written: {FILE}", markup=False)


@bench_app.command("exp2")
def exp2_command(out_file: OutFile = None, as_json: Json = False) -> None:
    """exp2 by itself: the fractional core and the full 2^x, in registers and over memory."""
    _need_torch()
    from polyfma.bench import exp2

    _measured("exp2", out_file, as_json, exp2.measure)


@bench_app.command("models")
def models_command(
    case: Annotated[str, typer.Option(help="mlp (a training step of a Llama MLP), prefill (every tested family), separated by commas.")] = "mlp,prefill",
    out_file: OutFile = None,
    as_json: Json = False,
) -> None:
    """Whole models on a GPU: patched against native, torch.compile and Liger."""
    _need_torch()
    from polyfma.bench import models
    from polyfma.bench.result import check_cases

    cases = check_cases(_names("case", case, ()), models.CASES)
    _measured("models", out_file, as_json, lambda progress: models.measure(cases, progress))


def _attention(cases: Sequence[str], picture: Path | None, out_file: Path | None, as_json: bool) -> Measurement:
    _need_fa4()
    from polyfma.bench import attention
    from polyfma.bench.result import check_cases
    from polyfma.bench.timing import need_gpu

    check_cases(cases, attention.CASES)
    if picture is not None:
        check_picture(picture)
        check_target(picture)
        if out_file is not None and picture.resolve() == out_file.resolve():
            raise UnknownNameError(f"--picture and --out are one file, {picture}; the measurement and its picture need two")
    need_gpu()
    measured = _measured("attention", out_file, as_json, lambda progress: attention.measure(cases, progress=progress))
    if picture is not None:
        from polyfma import plots
        from polyfma.bench.attention_picture import time_against_error

        plots.save(time_against_error(measured), picture)
        if not as_json:
            out.print(f"written: {picture}", markup=False)
    return measured


def _need_fa4() -> None:
    from polyfma.attention.fa4 import versions

    versions.check()


@bench_app.command("host")
def host_command(out_file: OutFile = None, as_json: Json = False) -> None:
    """What an eager call costs on the host."""
    _need_torch()
    from polyfma.bench import host

    _measured("host", out_file, as_json, host.measure)


@bench_app.command("programs")
def programs_command(
    write: Annotated[bool, typer.Option(help="Make the operators' defaults of this run.")] = False,
    out_file: OutFile = None,
    as_json: Json = False,
) -> None:
    """The programs that may be defaults, against a copy; the rule then says which are."""
    _need_torch()
    from polyfma.bench import defaults

    measured = _measured("programs", out_file, as_json, defaults.measure)
    if write:
        defaults.write(measured.timings)
        err.print(f"written: {defaults.FILE}", markup=False)


def _need_torch() -> None:
    try:
        import torch  # noqa: F401
    except ImportError as error:
        raise MissingToolError("polyfma bench needs torch, which is not installed; pip install 'polyfma[torch]'") from error


def _measured(label: str, out_file: Path | None, as_json: bool, measure: Callable[[Callable[..., None]], Measurement]) -> Measurement:
    from polyfma.bench.timing import need_gpu

    need_gpu()
    if out_file is not None:
        check_target(out_file)  # before the minutes of measuring
    with progress_bar(label) as progress:
        measured = measure(progress)
    if out_file is not None:
        measured.write(out_file)
    if as_json:
        print_json(measured.to_dict())
    else:
        print_table(_table(measured))
        for name, value in measured.facts.items():
            out.print(f"{name}: {value}", markup=False)
    return measured


def _table(measured: Measurement) -> Table:
    """One line an arm: time with spread, and how often it fits into its torch arm and its copy."""
    from polyfma.bench.result import comparisons

    table = Table(title=f"{measured.bench}: median of the rounds, microseconds a call", title_justify="left")
    for heading in ("case", "elements", "timed", "arm", "median", "lowest", "highest", "over the copy", "speed against torch"):
        table.add_column(heading, justify="left" if heading in ("case", "timed", "arm") else "right", no_wrap=True)
    previous: Any = None
    for t, over_copy, speed in comparisons(measured.timings):
        case = (t.case, t.function, t.direction, t.dtype, t.elements, t.where)
        if previous not in (None, case):
            table.add_section()
        previous = case
        name = f"{t.function} {t.direction} {t.dtype}" if t.case in ("isolated", "programs") else f"{t.case} {t.function} {t.direction}"
        ratios = ["" if r is None else f"{r:.3f}" for r in (over_copy, speed)]
        table.add_row(name, f"{t.elements:,}", t.where, t.arm, f"{t.median_us:.3f}", f"{min(t.rounds_us):.3f}", f"{max(t.rounds_us):.3f}", *ratios)
    return table
