"""Writes the generated parts of the README and of docs/: tables from the catalogue, and the pictures.

    python docs/generate.py           write them
    python docs/generate.py --check   fail if a table is not what the catalogue says
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from polyfma import catalog, plots
from polyfma.certify import certify
from polyfma.files import write_text

ROOT = Path(__file__).parents[1]
IMAGES = ROOT / "docs" / "images"
PICTURED = "sigmoid.forward.bf16.d4.endpoint-ls"
BLOCK = "<!-- generated: {0} -->\n{1}<!-- end: {0} -->"


def figure(value: float | str) -> str:
    return value if isinstance(value, str) else f"{1e3 * value:.3g}"


def programs_table() -> str:
    lines = ["| program | instructions | of them FMA | max error x 1e-3 | correct rounding | tails | NaN |",
             "|---|---|---|---|---|---|---|"]  # fmt: skip
    for name in shown():
        c = catalog.record(name)["certificate"]
        lines.append(f"| `{name}` | {c['instructions']} | {c['fma']} | {figure(c['max_weighted_error'])} |"
                     f" {figure(c['floor_weighted_error'])} | {'exact' if c['tails']['exact'] else 'not exact'} |"
                     f" {c['nan'].split(' at ')[0]} |")  # fmt: skip
    return "\n".join(lines) + "\n"


def shown() -> list[str]:
    return [n for n in catalog.programs() if re.fullmatch(r"(sigmoid|tanh|silu|gelu)\.forward\.bf16\.d[34]\.(endpoint-ls|sollya)", n)]


GENERATED = {ROOT / "README.md": {"programs": programs_table}}


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


if __name__ == "__main__":
    main("--check" in sys.argv[1:])
