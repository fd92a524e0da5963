"""``profile`` and ``evaluate``: what programs cost a whole model in quality."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from polyfma.cli.shell import Json, app, err, out, print_json, print_table, progress_bar
from polyfma.errors import MissingToolError, UnknownNameError
from polyfma.files import check_target, check_writable, replacing_all, write_text

Text = Annotated[Path | None, typer.Option(help="A UTF-8 text; without it, the reference topics that Python carries.")]
Tokens = Annotated[int, typer.Option(help="At most so many tokens of the text.")]
Length = Annotated[int, typer.Option(help="Tokens of a chunk, which is one forward pass.")]
Device = Annotated[str | None, typer.Option(help="cpu or cuda; default: cuda where there is one.")]
Dtype = Annotated[str, typer.Option(help="bf16 or fp16.")]
Products = Annotated[str | None, typer.Option(help="fp32: matrix products in fp32, rounded (default on a CPU); native: torch's (default on CUDA).")]


@app.command("profile")
def profile_command(
    model: Annotated[str, typer.Argument(help="smollm2, minilm, or a folder in transformers' layout.")],
    text: Text = None,
    tokens: Tokens = 4096,
    length: Length = 1024,
    candidates: Annotated[str, typer.Option(help="Programs to choose among, the preferred first: catalogue names, tiers, exact.")] = "faithful,exact",
    kl: Annotated[float, typer.Option(help="Budget: largest mean KL divergence, nats.")] = 1e-3,
    perplexity: Annotated[float, typer.Option(help="Budget: largest relative change of perplexity.")] = 1e-3,
    device: Device = None,
    dtype: Dtype = "bf16",
    products: Products = None,
    out_file: Annotated[Path | None, typer.Option("--out", help="Write the profile as JSON; Config.read takes its choice.")] = None,
    histograms: Annotated[Path | None, typer.Option(help="Write each layer's inputs as PATH/LAYER.json, for polyfma fit --distribution.")] = None,
    as_json: Json = False,
) -> None:
    """Record what each layer sees, predict each program's error there, and propose a choice within a budget. Exits with 1 where none is."""
    where, products = _placed(device, products)
    names = [c.strip() for c in candidates.split(",") if c.strip()]
    if not names:
        raise UnknownNameError(f"--candidates {candidates!r} names nothing; faithful,exact is the default")
    from polyfma.bench.evaluate import Wanted, prepare_of
    from polyfma.models.loading import chunks, load_model, read_text
    from polyfma.models.profiling import check_candidates, profile
    from polyfma.models.quality import Budget

    check_candidates(names)
    wanted = Wanted(model, text, tokens, length, where, dtype, products)
    budget = Budget(kl=kl, perplexity=perplexity)
    if out_file is not None:
        check_target(out_file)
    if histograms is not None:
        check_writable(histograms)
    content = read_text(text)[1]
    loaded = load_model(model, where, dtype)
    with progress_bar(f"profiling {model}") as progress:
        found = profile(loaded.model, chunks(loaded.tokenizer, content, tokens, length), names, budget, progress, prepare_of(wanted))
    data = {"model": model, **found.to_dict()}
    if out_file is not None:
        write_text(out_file, json.dumps(data, indent=1) + "\n")
    if histograms is not None:
        _write_histograms(histograms, {name: layer.histogram.bins(layer.histogram.edges()) for name, layer in found.layers.items()})
    if as_json:
        print_json(data)
    else:
        _print_profile(found, out_file)
    if not found.within:
        advice = "the text is too short to tell: give more --tokens" if found.undecided else "leave layers native, or widen --kl and --perplexity"
        err.print(f"polyfma: no choice is within the budget: {'; '.join(found.faults())}; {advice}", markup=False, soft_wrap=True)
        raise typer.Exit(1)


@app.command("evaluate")
def evaluate_command(
    model: Annotated[str, typer.Option(help="smollm2, minilm, or a folder in transformers' layout.")] = "smollm2",
    text: Text = None,
    tokens: Tokens = 4096,
    length: Length = 1024,
    arms: Annotated[str | None, typer.Option(help="Arms by name, separated by commas; default: all.")] = None,
    tails: Annotated[bool, typer.Option(help="Also with every gate times 1, 4 and 16, and with neurons that are off.")] = True,
    throughput: Annotated[bool, typer.Option("--throughput", help="Also time prefill and decode.")] = False,
    tasks: Annotated[str | None, typer.Option(help="Also lm-eval tasks, separated by commas: names, common, or YAML files of local tasks.")] = None,
    device: Device = None,
    dtype: Dtype = "bf16",
    products: Products = None,
    out_file: Annotated[Path | None, typer.Option("--out", help="Write the record as JSON.")] = None,
    as_json: Json = False,
) -> None:
    """A model under every arm: KL divergence, perplexity, drift of its layers; with outliers; with throughput and tasks, if asked for."""
    where, products = _placed(device, products)
    from polyfma.bench.evaluate import Wanted, evaluate

    names = [a.strip() for a in arms.split(",") if a.strip()] if arms is not None else []
    wanted = Wanted(model, text, tokens, length, where, dtype, products, names, tails, throughput, tasks)
    if out_file is not None:
        check_target(out_file)
    with progress_bar(f"evaluating {model}") as progress:
        record = evaluate(wanted, progress)
    if out_file is not None:
        write_text(out_file, json.dumps(record, indent=1) + "\n")
    if as_json:
        print_json(record)
        return
    _print_evaluation(record)
    if out_file is not None:
        out.print(f"written: {out_file}", markup=False)


def _placed(device: str | None, products: str | None) -> tuple[str, str]:
    """Device and products, by what there is."""
    try:
        import torch
    except ImportError as error:
        raise MissingToolError("this command needs torch, which is not installed; pip install 'polyfma[models]'") from error
    where = device or ("cuda" if torch.cuda.is_available() else "cpu")
    if where.partition(":")[0] not in ("cpu", "cuda"):
        raise UnknownNameError(f"device {where!r} must be cpu or cuda")
    return where, products or ("native" if where.startswith("cuda") else "fp32")


def _write_histograms(folder: Path, bins: dict[str, Any]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{name}.json" for name in bins]
    with replacing_all(paths) as temporary:
        for path, data in zip(temporary, bins.values(), strict=True):
            path.write_text(json.dumps(data) + "\n", encoding="utf-8")


def _print_profile(found: Any, out_file: Path | None) -> None:
    table = Table(title="What each layer sees, and the predicted relative error x 1e-3 of each candidate", title_justify="left")
    candidates = list(next(iter(found.layers.values())).predicted)
    for column in ("layer", "function", "deviation", "least", "most", "in the tail", *candidates, "choice"):
        table.add_column(column, justify="left" if column in ("layer", "function", "choice") else "right", no_wrap=True)
    for name, layer in found.layers.items():
        s = layer.histogram.summary(layer.function)
        figures = [f"{s[k]:.3g}" if k in s else "" for k in ("deviation", "least", "most")]
        table.add_row(name, layer.function, *figures, f"{s.get('in the tail', 0):,}", *(f"{1e3 * layer.predicted[c].relative:.3g}" for c in candidates), found.choice[name])
    print_table(table)
    for quality in found.tried:
        out.print(_line(quality.to_dict()), markup=False)
    out.print(f"{'within' if found.within else 'over'} the budget" + (f"; written: {out_file}" if out_file else ""), markup=False)


def _print_evaluation(record: dict[str, Any]) -> None:
    print_table(_quality_table(f"{record['model']['name']} ({record['dtype']}, {record['device']})", record["quality"]))
    for scale, rows in record.get("tails", {}).items():
        print_table(_quality_table(scale, rows))
    for row in record.get("throughput", ()):
        out.print(f"{row['arm']}: prefill {row['prefill']:.0f} tokens/s, decode {row['decode']:.0f}", markup=False)
    for arm, figures in record.get("tasks", {}).get("arms", {}).items():
        out.print(f"{arm}: " + ", ".join(f"{task} {value['value']:.4f}" for task, value in figures.items()), markup=False)


def _quality_table(title: str, rows: list[dict[str, Any]]) -> Table:
    table = Table(title=title, title_justify="left")
    columns = [c for c in ("kl", "top1", "perplexity", "perplexity_change", "word_perplexity", "cosine", "departs") if any(r[c] is not None for r in rows)]
    for column in ("arm", *columns, *(["refused"] if any("refused" in r for r in rows) else [])):
        table.add_column(column.replace("_", " "), justify="left" if column in ("arm", "refused") else "right", no_wrap=column == "arm")
    for row in rows:
        figures = ["" if row[c] is None else str(row[c]) if c == "departs" else f"{row[c]:.4g}" for c in columns]
        table.add_row(row["arm"], *figures, *(["; ".join(row["refused"]) or "no"] if "refused" in row else []))
    return table


def _line(q: dict[str, Any]) -> str:
    if q["kl"] is None:
        return f"{q['arm']}: cosine distance {q['cosine']:.3g}"
    departs = "no layer departs" if q["departs"] is None else f"layer {q['departs']} departs first"
    return f"{q['arm']}: mean KL {q['kl']:.3g}, perplexity {q['perplexity']:.4g} ({q['perplexity_change']:+.3%}), {departs}"
