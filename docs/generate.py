"""Writes the generated parts of the README and of docs/: tables from the catalogue, and the pictures.

    python docs/generate.py           write them
    python docs/generate.py --check   fail if a table is not what the catalogue says
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attention_tables
import models_tables

from polyfma import catalog, plots
from polyfma.bench import isolated
from polyfma.bench.attention_picture import time_against_error
from polyfma.bench.models_picture import drift_by_layer
from polyfma.bench.result import COPIES, Timing, comparisons, read
from polyfma.bench.roofline import roofline
from polyfma.catalog.build import CONTROLS, SEARCHED_DEGREES
from polyfma.catalog.build import FUNCTIONS as BUILT_FUNCTIONS
from polyfma.certify import certify
from polyfma.files import write_text
from polyfma.pareto import TIERS, best, candidates_for, entries, pipe_cost

ROOT = Path(__file__).parents[1]
IMAGES = ROOT / "docs" / "images"
PICTURED = "silu.forward.bf16.d4"
BLOCK = "<!-- generated: {0} -->\n{1}<!-- end: {0} -->"


FUNCTIONS = ("sigmoid", "tanh", "silu", "gelu")


def figure(value: float | str) -> str:
    return value if isinstance(value, str) else f"{1e3 * value:.3g}"


def certificate(name: str) -> dict[str, Any]:
    found: dict[str, Any] = catalog.record(name)["certificate"]
    return found


def error(name: str) -> str:
    return figure(certificate(name)["max_weighted_error"]) if name in catalog.programs() else "-"


def summary_table() -> str:
    """The README's table: the default programs of D3 to D5 against the best control of the same degree."""
    lines = ["| function | format | correct rounding | D3 | D4 | D5 | best control D3 | D4 | D5 |", "|---|---|---|---|---|---|---|---|---|"]
    for function in FUNCTIONS:
        for fmt in ("bf16", "fp16"):
            stems = [f"{function}.forward.{fmt}.d{d}" for d in (3, 4, 5)]
            ours = [f"**{error(s)}** ({certificate(s)['instructions']})" for s in stems]
            controls = [min((f"{s}.{m}" for m in CONTROLS), key=lambda n: certificate(n)["max_weighted_error"]) for s in stems]
            theirs = [f"{error(n)} ({certificate(n)['instructions']})" for n in controls]
            floor = figure(certificate(stems[0])["floor_weighted_error"])
            lines.append(f"| {function} | {fmt} | {floor} | {' | '.join([*ours, *theirs])} |")
    return "\n".join(lines) + "\n"


def defaults_table() -> str:
    """docs/programs.md: every default row and its free twin."""
    lines = ["| | floor | " + " | ".join(f"D{d}" for d in SEARCHED_DEGREES) + " |", "|---" * (2 + len(SEARCHED_DEGREES)) + "|"]
    for fmt in ("bf16", "fp16"):
        for function in catalog_functions():
            for direction in ("forward", "backward"):
                stems = [f"{function}.{direction}.{fmt}.d{d}" for d in SEARCHED_DEGREES]
                if stems[0] not in catalog.programs():
                    continue
                cells = [f"{error(s)} / {error(s + '.free')} ({catalog.load(s).form})" for s in stems]
                prime = "" if direction == "forward" else "'"
                floor = figure(certificate(stems[0])["floor_weighted_error"])
                lines.append(f"| {fmt} {function}{prime} | {floor} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def proofs_table() -> str:
    lines = ["| program | proved least error x 1e-3 | tails | clamps | tuples visited | replayed | seconds |", "|---|---|---|---|---|---|---|"]
    for name in catalog.programs():
        proof = catalog.record(name)["fit"].get("proof")
        if proof:
            lines.append(f"| `{name}` | {1e3 * proof['error']:.5g} | {'exact' if proof['exact_tails'] else 'free'} | {proof['clamps']} |"
                         f" {proof['visited']:,} | {proof['replayed']} | {proof['seconds']:.0f} |")  # fmt: skip
    return "\n".join(lines) + "\n"


def tiers_table() -> str:
    lines = ["| function | format | fast | balanced | accurate | faithful | error of accurate in ulp of max(abs f, 1/4) |", "|---|---|---|---|---|---|---|"]
    for function in catalog_functions():
        for fmt in ("bf16", "fp16"):
            if not candidates_for(function, "forward", fmt, True):
                continue
            found = [best(function, format=fmt, tier=t) for t in TIERS]
            c = certificate(found[2].name)
            monotone = "" if c["monotone_ulps_quarter"] <= 1 else f", monotone within {c['monotone_ulps_quarter']:.3g}"
            names = " | ".join(f"`{p.name.removeprefix(f'{function}.forward.{fmt}.')}` ({p.counts.instructions})" for p in found)
            lines.append(f"| {function} | {fmt} | {names} | {c['max_ulp_quarter']:.3g}{monotone} |")
    return "\n".join(lines) + "\n"


def result(path: str) -> dict[str, Any]:
    """A checked-in benchmark result."""
    found: dict[str, Any] = json.loads((ROOT / "benchmarks" / "results" / path).read_text(encoding="utf-8"))
    return found


def audit_table() -> str:
    """Machine instructions on sm_90 and sm_100 beside the program's own count, and clocks where rates are known."""
    audits = {(a["program"], a["architecture"]): a for a in result("cpu/audits.json")["audits"]}
    lines = ["| program | its own count: FMA + ALU + MUFU | sm_90: FMA + ALU + MUFU | sm_90: clocks of an SM for 32 pairs | sm_100: FMA + ALU + MUFU | once a thread |",
             "|---|---|---|---|---|---|"]  # fmt: skip
    for name in dict.fromkeys(n for n, _ in audits):
        here, next_one = audits[name, "sm_90"], audits[name, "sm_100"]
        counts = [" + ".join(f"{c[p]:g}" for p in ("fma", "alu", "mufu")) for c in (here["claimed"], here["pipes"], next_one["pipes"])]
        once = ", ".join(f"{n} {o}" for o, n in here["setup"].items()) or "-"
        lines.append(f"| `{name}` | {counts[0]} | {counts[1]} | {here['cost']:g} | {counts[2]} | {once} |")
    return "\n".join(lines) + "\n"


def rates_table() -> str:
    rates = result("h200/rates.json")
    lines = [f"| instruction | {rates['device']}: median (lowest .. highest) | nominal |", "|---|---|---|"]
    lines += [f"| `{r['instruction']}` | {r['median']:.1f} ({r['lowest']:.1f} .. {r['highest']:.1f}) | {r['nominal']} ({r['pipe']}) |" for r in rates["rates"]]
    return "\n".join(lines) + "\n"


def emitted_table() -> str:
    lines = ["| target | layout | programs | results compared | differ | device |", "|---|---|---|---|---|---|"]
    for target in ("cuda", "triton", "cute"):
        run = result(f"h200/emitted-{target}.json")
        for layout, r in run["results"][target].items():
            lines.append(f"| {target} | {layout} | {run['programs'][target]} | {r['compared']:,} | {r['differ']} | {run['device']} |")
    return "\n".join(lines) + "\n"


def hardware_table() -> str:
    """The GPU's own functions as programs, beside the cheapest default program that is at least as accurate."""
    lines = ["| program | instructions | pipe bound | weighted error x 1e-3 | default program at least as accurate | pipe bound | its error |", "|---|---|---|---|---|---|---|"]
    every = {e.name: e for e in entries()}
    for name in (n for n in catalog.programs() if n.endswith(".hardware")):
        c = certificate(name)
        cost = pipe_cost(catalog.load(name).counts)
        peers = [e for e in every.values() if (e.function, e.direction, e.format) == (c["function"], c["direction"], c["format"]) and e.default]
        better = [e for e in peers if e.error <= c["max_weighted_error"] and not e.name.endswith(".hardware")]
        chosen = min(better, key=lambda e: (e.pipe_bound, e.error), default=None)
        beside = f"`{chosen.name}` | {chosen.pipe_bound} | {figure(chosen.error)}" if chosen else "none | - | -"
        lines.append(f"| `{name}` | {c['instructions']} | {cost.bound} | {error(name)} | {beside} |")
    return "\n".join(lines) + "\n"


def timed(name: str) -> list[Timing]:
    return read(ROOT / "benchmarks" / "results" / "h200" / f"{name}.json").timings


def over_copy(timings: list[Timing]) -> dict[tuple[str, str, str, int, str], float]:
    """(function, direction, dtype, elements, arm): time over the best copy, in a graph."""
    return {(t.function, t.direction, t.dtype, t.elements, t.arm): over for t, over, _ in comparisons(timings) if over and t.where == "graph"}


def operators_table() -> str:
    """docs/operators.md: the default programs with certificate and speed, and what the hardware's own function would give."""
    lines = ["| function | dtype | default forward: instructions, error x 1e-3 (correct rounding) | over the copy, L2 / HBM | hardware's error |"
             " default backward: instructions, error x 1e-3 (correct rounding) | over the copy, L2 / HBM |", "|---|---|---|---|---|---|---|"]  # fmt: skip
    ratios = over_copy(timed("programs"))
    table = json.loads((ROOT / "src" / "polyfma" / "ops" / "defaults.json").read_text(encoding="utf-8"))["programs"]
    for function, formats in table.items():
        for fmt, directions in formats.items():
            cells = []
            for direction, name in directions.items():
                c = certificate(name)
                speeds = " / ".join(f"{ratios[function, direction, fmt, n, name]:.3f}" for n in (isolated.L2, isolated.HBM))
                cells.append(f"`{name}`: {c['instructions']}, {error(name)} ({figure(c['floor_weighted_error'])}) | {speeds}")
            own = "softcap-50" if function == "softcap" else function
            cells.insert(1, error(f"{own}.forward.{fmt}.hardware"))
            lines.append(f"| {function} | {fmt} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def isolated_table(elements: int) -> str:
    """Device time of every arm at one size."""
    arms = ("torch", "torch.compile", "hardware", "exact", "polynomial")
    lines = ["| operator | best copy, us | " + " | ".join(f"{a}" for a in arms) + " | polynomial against torch | exact against torch |", "|---" * (4 + len(arms)) + "|"]
    rows = [(t, over, speed) for t, over, speed in comparisons(timed("isolated")) if t.where == "graph" and t.elements == elements]
    for case in dict.fromkeys((t.function, t.direction, t.dtype) for t, *_ in rows):
        by_arm = {t.arm: (t, over, speed) for t, over, speed in rows if (t.function, t.direction, t.dtype) == case}
        copy = min(by_arm[a][0].median_us for a in COPIES if a in by_arm)
        cells = [f"{by_arm[a][0].median_us:.2f} ({by_arm[a][1]:.3f})" if a in by_arm else "-" for a in arms]
        speeds = [f"{by_arm[a][2]:.2f}x" for a in ("polynomial", "exact")]
        prime = "'" if case[1] == "backward" else ""
        lines.append(f"| {case[2]} {case[0]}{prime} | {copy:.2f} | {' | '.join(cells)} | {' | '.join(speeds)} |")
    return "\n".join(lines) + "\n"


def exact_cost_table() -> str:
    """Exact over polynomial, by size, for values and gradients."""
    rows = [t for t in timed("isolated") if t.where == "graph"]
    names = list(dict.fromkeys((t.function, t.direction) for t in rows))
    lines = ["| | " + " | ".join(f"{f}{chr(39) if d == 'backward' else ''}" for f, d in names) + " |", "|---" * (1 + len(names)) + "|"]
    for dtype in ("bf16", "fp16"):
        for elements in (isolated.L2, isolated.HBM):
            cells = []
            for function, direction in names:
                case = {"function": function, "direction": direction, "dtype": dtype, "elements": elements, "where": "graph"}
                times = [next(t.median_us for t in rows if t.arm == arm and all(getattr(t, k) == v for k, v in case.items())) for arm in ("exact", "polynomial")]
                cells.append(f"{100 * (times[0] / times[1] - 1):.1f}")
            lines.append(f"| {dtype}, {elements:,} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def component_table() -> str:
    """SwiGLU and SiLU of a model's block: us, and torch's time over each arm's."""
    rows = [(t, speed) for t, _, speed in comparisons(timed("component")) if "zero rows" not in t.arm]
    arms = list(dict.fromkeys(t.arm for t, _ in rows if t.arm != "cuda memcpy"))
    lines = ["| case | timed | " + " | ".join(arms) + " |", "|---" * (2 + len(arms)) + "|"]
    for case in dict.fromkeys((t.case, t.function, t.direction, t.where) for t, _ in rows):
        found = {t.arm: t for t, _ in rows if (t.case, t.function, t.direction, t.where) == case}
        spread = {a: f" ({min(t.rounds_us):.0f} .. {max(t.rounds_us):.0f})" if t.where == "autograd" else "" for a, t in found.items()}
        cells = [f"{found[a].median_us:.1f}{spread[a]}" if a in found else "-" for a in arms]
        lines.append(f"| {case[0]} {case[1]} {case[2]} | {case[3]} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def zero_rows_table() -> str:
    rows = [t for t in timed("component") if "zero rows" in t.arm]
    arms = list(dict.fromkeys(t.arm for t in rows))
    lines = ["| case | " + " | ".join(arms) + " |", "|---" * (1 + len(arms)) + "|"]
    for case in dict.fromkeys((t.case, t.direction) for t in rows):
        lines.append(f"| {' swiglu '.join(case)} | " + " | ".join(f"{t.median_us:.1f}" for t in rows if (t.case, t.direction) == case) + " |")
    return "\n".join(lines) + "\n"


def host_table() -> str:
    lines = ["| call | torch, us | polyfma, us | times torch |", "|---|---|---|---|"]
    rows = timed("host")
    for case in dict.fromkeys(t.case for t in rows):
        theirs, ours = (next(t for t in rows if t.case == case and t.arm == a) for a in ("torch", "polynomial"))
        cells = [f"{t.median_us:.1f} ({min(t.rounds_us):.1f} .. {max(t.rounds_us):.1f})" for t in (theirs, ours)]
        lines.append(f"| {case} | {' | '.join(cells)} | {ours.median_us / theirs.median_us:.2f} |")
    return "\n".join(lines) + "\n"


def misrounded_table() -> str:
    lines = ["| | BF16: torch | BF16: exact | FP16: torch | FP16: exact |", "|---|---|---|---|---|"]
    for name, formats in result("h200/operators.json")["misrounded"].items():
        lines.append(f"| {name} | " + " | ".join(str(formats[f][a]) for f in ("bf16", "fp16") for a in ("torch", "exact")) + " |")
    return "\n".join(lines) + "\n"


def gpu_tests_table() -> str:
    run = result("h200/operators.json")
    versions = ", ".join(f"{k} {v}" for k, v in run["versions"].items() if k != "polyfma")
    return (f"{run['device']}, driver {run['driver']}, {versions}: {run['passed']} tests passed, {run['failed']} failed, {len(run['skipped'])} skipped"
            f" ({'; '.join(sorted(set(run['skipped'].values())))}).\n")  # fmt: skip


def catalog_functions() -> list[str]:
    return list(BUILT_FUNCTIONS)


GENERATED: dict[Path, dict[str, Callable[[], str]]] = {
    ROOT / "README.md": {"summary": summary_table},
    ROOT / "docs" / "programs.md": {"defaults": defaults_table, "tiers": tiers_table, "hardware": hardware_table},
    ROOT / "docs" / "proofs.md": {"proofs": proofs_table},
    ROOT / "docs" / "operators.md": {
        "operators": operators_table,
        "isolated-l2": lambda: isolated_table(isolated.L2),
        "isolated-hbm": lambda: isolated_table(isolated.HBM),
        "exact-cost": exact_cost_table,
        "component": component_table,
        "zero-rows": zero_rows_table,
        "host": host_table,
        "misrounded": misrounded_table,
        "gpu-tests": gpu_tests_table,
    },
    ROOT / "docs" / "attention.md": {
        "softcap": attention_tables.softcap_table,
        "softcap-backward": attention_tables.softcap_backward_table,
        "sigmoid": attention_tables.sigmoid_table,
        "sigmoid-backward": attention_tables.sigmoid_backward_table,
        "exp2": attention_tables.exp2_table,
        "attention-tests": attention_tables.tests_table,
    },
    ROOT / "docs" / "models.md": {
        "quality": models_tables.quality_table,
        "tails": models_tables.tails_table,
        "throughput": models_tables.throughput_table,
        "mlp": models_tables.mlp_table,
        "prefill": models_tables.prefill_table,
        "models-tests": models_tables.tests_table,
    },
    ROOT / "docs" / "kernels.md": {"audit": audit_table, "rates": rates_table, "emitted": emitted_table},
}


def rendered(path: Path) -> str:
    text = path.read_text(encoding="utf-8")
    for name, make in GENERATED[path].items():
        pattern = re.compile(re.escape(BLOCK.format(name, "@")).replace("@", ".*?"), re.DOTALL)
        if not pattern.search(text):
            raise SystemExit(f"{path.name} has no block {name!r}")
        text = pattern.sub(lambda _, n=name, m=make: BLOCK.format(n, m()), text)
    return text


def main(check: bool) -> None:
    stale = [p.name for p in GENERATED if rendered(p) != p.read_text(encoding="utf-8")]
    if check:
        if stale:
            raise SystemExit(f"stale generated tables in {', '.join(stale)}: run make docs")
        return
    for path in GENERATED:
        write_text(path, rendered(path))
    program = catalog.load(PICTURED)
    plots.save(plots.error_picture(program, certify(program)), IMAGES / "error.png")
    shown = [e for e in entries() if e.function in FUNCTIONS and e.direction == "forward"]
    plots.save(plots.pareto_picture(shown), IMAGES / "pareto.png")
    plots.save(time_against_error(read(ROOT / "benchmarks" / "results" / "h200" / "attention.json")), IMAGES / "attention.png")
    plots.save(drift_by_layer(result("h200/evaluate-smollm2.json")), IMAGES / "drift.png")
    plots.save(roofline(read(ROOT / "benchmarks" / "results" / "h200" / "isolated.json")), IMAGES / "roofline.png")


if __name__ == "__main__":
    main("--check" in sys.argv[1:])
