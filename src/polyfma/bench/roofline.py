"""The roofline of an elementwise operator: elements a nanosecond against the arithmetic of an element."""

from __future__ import annotations

from matplotlib.figure import Figure

from polyfma import catalog, plots
from polyfma.bench.result import COPIES, Measurement, Timing, find
from polyfma.hardware.rates import UNITS

# Of one SM a clock: lanes of the FMA pipe, in which a unit is one packed FMA of two elements.
_LANES = 128
MARKS = {"exact": ("s", plots.SECOND), "hardware": ("^", plots.THIRD), "polynomial": ("o", plots.ACCENT)}


def units(program: str) -> float:
    """The busiest pipe of a program for one element, in units of one FMA lane; a pair of elements is one packed operation."""
    counts = catalog.load(program).counts
    alu = UNITS["alu"] * counts.alu + UNITS["cvt"] * counts.cvt
    return max(UNITS["fma"] * counts.fma, alu, UNITS["mufu"] * counts.mufu) / 2


def roofline(measurement: Measurement) -> Figure:
    """Forward operators: the copy's speed is the roof of memory at each size, arithmetic the slope that a costlier program meets."""
    rows = [t for t in measurement.timings if t.where == "graph" and t.direction == "forward"]
    sizes = sorted({t.elements for t in rows})
    fig, axes = plots.figure(5.2 * len(sizes), 4.2, columns=len(sizes))
    for ax, elements in zip(axes[0], sizes, strict=True):
        _panel(ax, [t for t in rows if t.elements == elements], elements)
    axes[0][0].set_ylabel("elements a nanosecond")
    return fig


def _panel(ax: object, rows: list[Timing], elements: int) -> None:
    """One size: points by program, the copies' speed as a line, torch's by its height alone."""
    copies = [t for name in COPIES if (t := find(rows, arm=name))]
    roof = max(elements / t.median_us for t in copies) / 1e3
    ax.axhline(roof, color=plots.QUIET, linewidth=2, label="best copy")  # type: ignore[attr-defined]
    for arm, (marker, colour) in MARKS.items():
        points = [(units(t.program), elements / t.median_us / 1e3) for t in rows if t.arm == arm and t.program and t.program in catalog.programs()]
        if points:
            ax.plot(*zip(*points, strict=True), marker, color=colour, label=arm)  # type: ignore[attr-defined]
    for arm, style in (("torch", ":"), ("exact", "--")):
        speeds = [elements / t.median_us / 1e3 for t in rows if t.arm == arm]
        for speed in speeds:
            ax.axhline(speed, color=plots.INK if arm == "torch" else plots.SECOND, linestyle=style, linewidth=0.8,  # type: ignore[attr-defined]
                       label=arm if speed == speeds[0] else None)  # fmt: skip
    ax.set(title=f"{elements:,} elements", xlabel="units of the busiest pipe for an element (one FMA lane: 1)", ylim=(0, None))  # type: ignore[attr-defined]
    ax.legend(loc="lower right")  # type: ignore[attr-defined]
