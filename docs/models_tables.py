"""Tables of docs/models.md, from benchmarks/results/h200/evaluate-smollm2.json, models-mlp.json, models-prefill.json and models-tests.json."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from polyfma.bench.result import Timing, read

RESULTS = Path(__file__).parents[1] / "benchmarks" / "results" / "h200"


def _evaluation() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((RESULTS / "evaluate-smollm2.json").read_text(encoding="utf-8"))
    return found


def _departs(row: dict[str, Any]) -> str:
    return "-" if row["departs"] is None else str(row["departs"])


def quality_table() -> str:
    record = _evaluation()
    lines = ["| arm | mean KL x 1e-3 | same top token | perplexity | change, percent | of a word | departs at layer |", "|---" * 7 + "|"]
    for q in record["quality"]:
        low, high = q["perplexity_interval"]
        lines.append(f"| {q['arm']} | {1e3 * q['kl']:.3g} ({1e3 * q['kl_interval'][0]:.3g} .. {1e3 * q['kl_interval'][1]:.3g}) | {100 * q['top1']:.2f} % |"
                     f" {q['perplexity']:.4f} | {100 * q['perplexity_change']:+.3f} ({100 * low:+.3f} .. {100 * high:+.3f}) | {q['word_perplexity']:.2f} | {_departs(q)} |")  # fmt: skip
    chunks, length = record["text"]["chunks"]
    about = f"{chunks} chunks of {length:,} tokens of {record['text']['name']}, {record['model']['source']}, {record['dtype'].upper()} on one {record['device']}, commit {record['commit']}"
    return "\n".join(lines) + f"\n\n{about}; in brackets 95 percent intervals over chunks.\n"


def tails_table() -> str:
    tails = _evaluation()["tails"]
    arms = [q["arm"] for q in next(iter(tails.values()))]
    lines = ["| | " + " | ".join(arms) + " |", "|---" * (1 + len(arms)) + "|"]
    for change, rows in tails.items():
        lines.append(f"| {change} | " + " | ".join(f"{q['kl']:.3g}, {q['perplexity']:.4g}, {_departs(q)}" for q in rows) + " |")
    return "\n".join(lines) + "\n"


def throughput_table() -> str:
    lines = ["| arm | prefill, tokens/s | decode, tokens/s |", "|---|---|---|"]
    for row in _evaluation()["throughput"]:
        cells = [f"{row[k]:,.0f} ({row[f'{k}_range'][0]:,.0f} .. {row[f'{k}_range'][1]:,.0f})" for k in ("prefill", "decode")]
        lines.append(f"| {row['arm']} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _ms(t: Timing) -> str:
    return f"{t.median_us / 1e3:.2f} ({min(t.rounds_us) / 1e3:.2f} .. {max(t.rounds_us) / 1e3:.2f})"


def mlp_table() -> str:
    # In this run the Liger arm also added its weights' gradients to those of the call before, which no other arm did.
    timings = [t for t in read(RESULTS / "models-mlp.json").timings if t.arm != "liger"]
    base = next(t for t in timings if t.arm == "torch.compile")
    lines = ["| arm | forward + backward, ms | torch.compile's time over it |", "|---|---|---|"]
    lines += [f"| {t.arm} | {_ms(t)} | {base.median_us / t.median_us:.3f} |" for t in sorted(timings, key=lambda t: t.median_us)]
    return "\n".join(lines) + "\n"


def prefill_table() -> str:
    measurement = read(RESULTS / "models-prefill.json")
    lines = ["| family | native, ms | patched, ms | native over patched | replaced |", "|---|---|---|---|---|"]
    for native in (t for t in measurement.timings if t.arm == "native"):
        patched = next(t for t in measurement.timings if t.case == native.case and t.arm == "patched")
        family = native.case.removeprefix("prefill ")
        kinds = ", ".join(dict.fromkeys(r.partition(":")[0] for r in measurement.facts[family]["replaced"]))
        lines.append(f"| {family} | {_ms(native)} | {_ms(patched)} | {native.median_us / patched.median_us:.3f} | {kinds} |")
    return "\n".join(lines) + "\n"


def tests_table() -> str:
    run = json.loads((RESULTS / "models-tests.json").read_text(encoding="utf-8"))
    return f"{run['passed']} tests passed and {run['failed']} failed on one {run['device']}, at commit {run['commit']} (torch {run['versions']['torch']}, transformers {run['versions']['transformers']}).\n"
