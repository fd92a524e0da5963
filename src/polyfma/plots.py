"""Pictures. Every function returns a matplotlib Figure; :func:`save` writes it whole, as PNG or SVG."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.figure import Figure

from polyfma.certify import Certificate
from polyfma.files import replacing
from polyfma.formats import Values
from polyfma.pareto import Entry, front
from polyfma.program import Program
from polyfma.replay import replay

INK, ACCENT, SECOND, THIRD, QUIET = "#1f2933", "#c2410c", "#0f766e", "#6d28d9", "#9aa5b1"
SERIES = (ACCENT, SECOND, THIRD, "#b45309", "#1d4ed8", "#be185d")
_STYLE = {
    "font.size": 10.0,
    "axes.edgecolor": QUIET,
    "axes.labelcolor": INK,
    "axes.titlecolor": INK,
    "axes.titlesize": 11.0,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e4e7eb",
    "grid.linewidth": 0.7,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "lines.linewidth": 1.5,
    "legend.frameon": False,
    "savefig.facecolor": "white",
    "svg.hashsalt": "polyfma",  # the same picture gives the same file
}


def figure(width: float, height: float, rows: int = 1, columns: int = 1, **options: Any) -> tuple[Figure, Any]:
    """A Figure in the house style and its axes, as an array of shape (rows, columns)."""
    with rc_context(_STYLE):
        fig = Figure(figsize=(width, height), layout="constrained")
        return fig, fig.subplots(rows, columns, squeeze=False, **options)


def save(fig: Figure, path: str | Path) -> None:
    """Write a picture, replacing an older one whole; the suffix (.png, .svg) decides the kind."""
    with replacing(path) as temporary:
        draw(fig, temporary)


def draw(fig: Figure, path: Path) -> None:
    """Write a picture straight to a path."""
    metadata = {"Date": None} if path.suffix == ".svg" else {}
    with rc_context(_STYLE):
        fig.savefig(path, dpi=150, metadata=metadata)


def visible_inputs(program: Program) -> Any:
    """Bit patterns of the inputs worth drawing: a little beyond the clamp, in ascending order of value."""
    fmt = program.fmt
    bits = fmt.finite_bits() if fmt.width == 16 else fmt.encode(np.linspace(-8, 8, 1 << 16))
    x = fmt.decode(bits)
    domain = program.target.domain
    reach = 1.4 * (program.clamp if program.clamp and np.isfinite(program.clamp) else 6.0)
    low, high = domain or (-reach, reach)
    return bits[(x >= low) & (x <= high)]


def signed_error(program: Program, bits: Any) -> tuple[Values, Values, Values]:
    """x, f and the error of the program's first output at input bit patterns."""
    y = replay(program, bits)
    first = next(iter(y.values())) if isinstance(y, dict) else y
    x = program.fmt.decode(bits)
    exact = program.target.table(program.fmt).exact[bits] if program.fmt.width == 16 else program.target.values(x)
    return x, exact, program.fmt.decode(first) - exact


def error_picture(program: Program, certificate: Certificate) -> Figure:
    """The function with its program above, the error at every input below, the worst one marked."""
    bits = visible_inputs(program)
    x, exact, error = signed_error(program, bits)
    ulp = program.fmt.ulp(exact) / 2
    error = np.where(np.isfinite(error), error, np.nan)
    fig, axes = figure(8, 6.4, rows=2, height_ratios=[1, 1.2], sharex=True)
    above, below = axes[:, 0]
    above.plot(x, exact, color=QUIET, linewidth=4, label=f"{program.function} {program.direction}, exact")
    above.plot(x, exact + error, color=ACCENT, linewidth=1.2, label=program.name)
    above.legend(loc="upper left", frameon=False)
    counts = program.counts
    above.set_title(f"{program.name}: {counts.instructions} packed instructions, {counts.fma} FMA")
    below.fill_between(x, -1e3 * ulp, 1e3 * ulp, color=QUIET, alpha=0.35, linewidth=0, label="half an ulp (correct rounding)")
    below.plot(x, 1e3 * error, color=ACCENT, linewidth=0.8, label="error at every input")
    worst = certificate.max_abs_at
    if abs(worst.x) <= np.max(np.abs(x)) and np.isfinite(worst.error):
        i = int(np.argmin(np.abs(x - worst.x)))
        below.plot([worst.x], [1e3 * error[i]], "o", color=INK, markersize=5)
        below.annotate(f"max {1e3 * worst.error:.3f}e-3 at {worst.x:.5g}", (worst.x, 1e3 * error[i]), xytext=(-8, 4),
                       textcoords="offset points", ha="right")  # fmt: skip
    if program.clamp and program.target.domain is None:
        for edge in (-program.clamp, program.clamp):
            below.axvline(edge, color=QUIET, linestyle=":", linewidth=1)
    below.set_ylabel("error x 1e3")
    below.set_xlabel("x  (dotted: the clamp)" if program.clamp else "x")
    below.legend(loc="upper center", ncols=2, frameon=False)
    below.margins(y=0.18)
    return fig


def text_plot(program: Program, width: int = 72, height: int = 9) -> list[str]:
    """The error curve as lines of text for a terminal: the extremes of each column of inputs."""
    x, _, error = signed_error(program, visible_inputs(program))
    if not np.all(np.isfinite(error)):
        return ["some outputs are not finite: no error curve"]
    columns = np.clip(((x - x[0]) / (x[-1] - x[0]) * width).astype(int), 0, width - 1)
    top = float(np.max(np.abs(error))) or 1.0
    rows = np.clip(np.rint((1 - error / top) / 2 * (height - 1)).astype(int), 0, height - 1)
    canvas = [[" "] * width for _ in range(height)]
    canvas[height // 2] = ["-"] * width
    for column in range(width):
        here = rows[columns == column]
        for row in range(int(here.min()), int(here.max()) + 1) if here.size else ():
            canvas[row][column] = "#"
    labels = {0: f"{1e3 * top:+8.3f}e-3", height // 2: "       0   ", height - 1: f"{-1e3 * top:+8.3f}e-3"}
    lines = [f"{labels.get(i, ''):>11} |{''.join(row)}" for i, row in enumerate(canvas)]
    return [*lines, " " * 12 + f"{x[0]:<{width // 2}.4g}{x[-1]:>{width // 2}.4g}"]


def pareto_picture(entries: Sequence[Entry]) -> Figure:
    """Error against instructions and against pipe cost, a row a function and direction, colours by format."""
    rows = list(dict.fromkeys((e.function, e.direction) for e in entries))
    fig, axes = figure(11, 2.9 * len(rows), rows=len(rows), columns=2)
    for i, (function, direction) in enumerate(rows):
        for j, (cost, label) in enumerate((("instructions", "packed instructions"), ("pipe_bound", "pipe cost, FMA units"))):
            ax = axes[i, j]
            for fmt, colour in (("bf16", ACCENT), ("fp16", SECOND)):
                here = [e for e in entries if (e.function, e.direction, e.format) == (function, direction, fmt)]
                controls = [e for e in here if not e.default]
                ax.scatter([getattr(e, cost) for e in controls], [1e3 * e.error for e in controls], s=10, color=colour, alpha=0.25)
                best = front([e for e in here if e.default], cost=cost)
                if best:
                    ax.step([getattr(e, cost) for e in best], [1e3 * e.error for e in best], "o-", where="post", color=colour,
                            markersize=4, label=fmt)  # fmt: skip
            ax.set_yscale("log")
            ax.set_title(f"{function}{'' if direction == 'forward' else chr(39)}")
            ax.set_xlabel(label)
        axes[i, 0].set_ylabel("weighted error x 1e3")
        axes[i, 0].legend(frameon=False, title="line: default programs; faint: all others", title_fontsize=8)
    return fig


def bars(ax: Any, groups: Sequence[str], series: Sequence[tuple[str, Sequence[float], str]]) -> None:
    """Grouped bars: one group a label, one bar a series (name, values, colour)."""
    width = 0.8 / len(series)
    for i, (label, values, colour) in enumerate(series):
        offset = (i - (len(series) - 1) / 2) * width
        ax.bar(np.arange(len(groups)) + offset, values, width * 0.92, color=colour, label=label)
    ax.set_xticks(range(len(groups)), groups)
