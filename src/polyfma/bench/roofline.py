"""The roofline of an elementwise operator: elements a nanosecond against the arithmetic of an element."""

from __future__ import annotations

from collections import Counter
from typing import Any

from matplotlib.figure import Figure

from polyfma import plots
from polyfma.bench.result import COPIES, Measurement, Timing, find
from polyfma.hardware.rates import UNITS
from polyfma.ops.choice import EXACT, Choice
from polyfma.ops.operation import architecture_of, operation

MARKS = {"polynomial": ("o", plots.ACCENT), "exact": ("s", plots.SECOND), "hardware": ("^", plots.THIRD)}
_PIPES = {"fma": "fma", "mul": "fma", "add": "fma", "ex2": "mufu", "rcp": "mufu", "tanh": "mufu", "cvt": "cvt", "mov": ""}
_FREE = ("abs.f32", "neg.f32")  # modifiers of the operand


def units(t: Timing) -> float:
    """The busiest pipe of one element, or its issue slots, in units of one FMA lane: of the PTX that ran, half a pair's."""
    choice = Choice(t.function, t.dtype, t.program or EXACT, t.program or EXACT)
    block = operation(choice.key, "unary" if t.direction == "forward" else "unary_backward").block(architecture_of(90), "packed")
    pipes = Counter[str]()
    for instruction in block.instructions:
        pipes[_pipe(instruction.code)] += 2 if _is_packed_mufu(instruction.code) else 1
    alu = UNITS["alu"] * pipes["alu"] + UNITS["cvt"] * pipes["cvt"]
    issued = pipes.total() - pipes[""]  # an SM issues 128 lanes a clock, as many as its FMA pipe has
    return max(UNITS["fma"] * pipes["fma"], alu, UNITS["mufu"] / 2 * pipes["mufu"], issued) / 2


def _pipe(code: str) -> str:
    return "" if code in _FREE else _PIPES.get(code.split(".")[0], "alu")


def _is_packed_mufu(code: str) -> bool:
    """Two special-function results, as the two instructions of fp32 lanes are; UNITS counts such a pair."""
    return _pipe(code) == "mufu" and code.endswith("x2")


def roofline(measurement: Measurement) -> Figure:
    """Forward operators in a graph: the copy's speed is the roof of memory at each size; torch's own lie in the grey band."""
    rows = [t for t in measurement.timings if t.where == "graph" and t.direction == "forward"]
    sizes = sorted({t.elements for t in rows})
    fig, axes = plots.figure(5.4 * len(sizes), 4.2, columns=len(sizes))
    for ax, elements in zip(axes[0], sizes, strict=True):
        _panel(ax, [t for t in rows if t.elements == elements], elements)
    axes[0][0].set_ylabel("elements a nanosecond")
    return fig


def _panel(ax: Any, rows: list[Timing], elements: int) -> None:
    def speeds(*arms: str) -> list[float]:
        return [t.elements / t.median_us / 1e3 for t in rows if t.arm in arms]

    ax.axhline(max(speeds(*COPIES)), color=plots.INK, linewidth=1.2, label="best copy: the roof")
    ax.axhspan(min(speeds("torch")), max(speeds("torch")), color=plots.QUIET, alpha=0.3, linewidth=0, label="torch eager")
    for arm, (marker, colour) in MARKS.items():
        points = [(units(t), t.elements / t.median_us / 1e3) for t in rows if t.arm == arm]
        if points:
            ax.plot(*zip(*points, strict=True), marker, color=colour, label=arm, alpha=0.85)
    if find(rows, arm="torch.compile"):
        ax.axhline(max(speeds("torch.compile")), color=plots.INK, linestyle=":", linewidth=1, label="torch.compile, its best function")
    ax.set(title=f"{elements:,} elements", xlabel="busiest pipe of an element (one FMA lane: 1)", xlim=(0, None), ylim=(0, None))
    ax.legend(loc="lower right")
