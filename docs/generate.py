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

from polyfma import catalog, plots
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
    lines = ["| function | format | fast | balanced | accurate | its error in ulp of max(abs f, 1/4) |", "|---|---|---|---|---|---|"]
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


def catalog_functions() -> list[str]:
    return list(BUILT_FUNCTIONS)


GENERATED: dict[Path, dict[str, Callable[[], str]]] = {
    ROOT / "README.md": {"summary": summary_table},
    ROOT / "docs" / "programs.md": {"defaults": defaults_table, "tiers": tiers_table, "hardware": hardware_table},
    ROOT / "docs" / "proofs.md": {"proofs": proofs_table},
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


if __name__ == "__main__":
    main("--check" in sys.argv[1:])
