"""Tables of docs/attention.md, from benchmarks/results/h200/attention.json, attention-exp2.json and attention-tests.json."""

from __future__ import annotations

import json
from pathlib import Path

from polyfma.bench.result import Timing, find, read

RESULTS = Path(__file__).parents[1] / "benchmarks" / "results" / "h200"


def _rows(file: str, case: str, direction: str) -> tuple[list[str], dict[str, list[Timing | None]], dict[str, dict[str, float]]]:
    """(shapes, arm -> its timing at each shape, arm -> its errors)."""
    measurement = read(RESULTS / f"{file}.json")
    chosen = [t for t in measurement.timings if t.where == "graph" and t.direction == direction and t.case.startswith(f"{case} ")]
    shapes = list(dict.fromkeys(t.case.removeprefix(f"{case} ") for t in chosen))
    arms = dict.fromkeys(t.arm for t in chosen)
    times = {arm: [find(chosen, case=f"{case} {s}", arm=arm) for s in shapes] for arm in arms}
    return shapes, times, {name.removeprefix(f"{case} "): fact for name, fact in measurement.facts.items() if name.startswith(f"{case} ")}


def _time(t: Timing | None) -> str:
    return "-" if t is None else f"{t.median_us:.0f} ({min(t.rounds_us):.0f} .. {max(t.rounds_us):.0f})"


def _speeds(times: dict[str, list[Timing | None]], arm: str, base: str) -> str:
    pairs = [(times[base][i], t) for i, t in enumerate(times[arm])]
    return " / ".join(f"{b.median_us / t.median_us:.3f}" for b, t in pairs if b and t)


def _error(value: float | None) -> str:
    return "-" if value is None else f"{1e3 * value:.3g}"


def _table(file: str, case: str, direction: str, bases: dict[str, str], errors: dict[str, str], suffix: str = "") -> str:
    shapes, times, facts = _rows(file, case, direction)
    head = ["arm", *(f"{s}, us" for s in shapes), *bases.values(), *errors.values()]
    lines = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    for arm, found in times.items():
        fact = facts.get(arm + suffix) or facts.get(arm) or {}
        cells = [arm, *(_time(t) for t in found), *(_speeds(times, arm, base) for base in bases), *(_error(fact.get(name)) for name in errors)]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def softcap_table() -> str:
    errors = {f"output, scale {s}": f"x{s}" for s in (1, 2, 4, 8)}
    return _table("attention", "b2", "forward", {"built-in": "over built-in", "hardware": "over hardware", "hardware, running maximum": "over hardware, running maximum"}, errors)


def softcap_backward_table() -> str:
    return _table("attention", "b2", "backward", {"built-in": "over built-in", "reciprocal": "over reciprocal"}, {n: n for n in ("dq", "dk", "dv")})


def sigmoid_table() -> str:
    text = _table("attention", "b3", "forward", {"exponential": "over exponential", "hardware": "over hardware", "softmax": "over softmax"},
                  {"output, scale 1": "bias 0, x1", "output, scale 2": "x2"}, ", bias 0")  # fmt: skip
    *_, facts = _rows("attention", "b3", "forward")
    far = [f"{name.removesuffix(', bias -log n')}: {_error(f['output, scale 1'])}" for name, f in facts.items() if name.endswith("-log n")]
    return text + f"\nWith bias -log 4096 and scale 1 the errors are: {'; '.join(far)}.\n"


def sigmoid_backward_table() -> str:
    return _table("attention", "b3", "backward", {"exponential": "over exponential", "softmax": "over softmax"}, {n: n for n in ("dq", "dk", "dv")}, ", bias 0")


def exp2_table() -> str:
    errors = {"output, scale 1": "output", "dq": "dq", "distance from all SFU": "from all SFU"}
    forward = _table("attention-exp2", "exp2", "forward", {"all SFU": "over all SFU"}, errors)
    return forward + "\nBackward:\n\n" + _table("attention-exp2", "exp2", "backward", {"all SFU": "over all SFU"}, {})


def tests_table() -> str:
    run = json.loads((RESULTS / "attention-tests.json").read_text(encoding="utf-8"))
    failed = f" ({', '.join(run['failures'])})" if run["failures"] else ""
    return (f"{run['passed']} tests passed and {run['failed']} failed{failed} on one {run['device']}, at commit {run['commit']}"
            f" (flash-attn-4 {run['versions']['flash-attn-4']}, torch {run['versions']['torch']}).\n")  # fmt: skip
