"""Time against error of attention's forward arms at batch 1: one panel a case."""

from __future__ import annotations

from typing import Any

from matplotlib.figure import Figure

from polyfma import plots
from polyfma.bench.result import Measurement, Timing

TITLES = {"b2": "softcap 50", "b3": "sigmoid, bias 0", "exp2": "softmax, exp2 in software"}
LIMITS = {"b2": 2.5e-3, "b3": 4e-3}
SCALES = {"b2": "2", "b3": "1", "exp2": "1"}
_MOST = 1.6  # times the fastest: what is slower has its time in the key alone


def time_against_error(measurement: Measurement) -> Figure:
    """Lower and further left is better; a dashed line is the error that ``auto`` allows, numbers are explained below."""
    cases = [case for case in TITLES if any(t.case == f"{case} batch 1" for t in measurement.timings)]
    fig, axes = plots.figure(6.4 * len(cases), 6.6, columns=len(cases))
    for ax, case in zip(axes[0], cases, strict=True):
        _panel(ax, case, measurement)
    axes[0][0].set_ylabel("relative L2 error of the output against fp64")
    return fig


def _panel(ax: Any, case: str, measurement: Measurement) -> None:
    rows = [t for t in measurement.timings if (t.case, t.where, t.direction) == (f"{case} batch 1", "graph", "forward")]
    shown = sorted((t for t in rows if _error(measurement, case, t) is not None), key=lambda t: t.median_us)
    for number, t in enumerate(shown, 1):
        ours = t.program is not None and ".forward." in t.program
        colour, late = plots.ACCENT if ours else plots.SECOND, t.median_us > _MOST * shown[0].median_us
        label = f"{number}  {t.arm}" + (f" ({t.median_us:.0f} us)" if late else "")
        if late:
            ax.plot([], [], " ", label=label)
            continue
        error = _error(measurement, case, t)
        ax.plot(t.median_us, error, "o", color=colour, markersize=5, label=label)
        side = 1 if number % 2 else -1
        ax.annotate(str(number), (t.median_us, error), xytext=(0, 9 * side), textcoords="offset points", ha="center", va="center", fontsize=8, color=colour)
    if case in LIMITS:
        ax.axhline(LIMITS[case], color=plots.QUIET, linestyle="--")
    at = "" if SCALES[case] == "1" else ", q and k twice N(0, 1)"
    ax.set(title=f"{TITLES[case]}{at}", xlabel="microseconds, batch 1, 4,096 tokens", yscale="log")
    ax.legend(loc="upper center", bbox_to_anchor=(0.5, -0.12), ncols=2, fontsize=7.5, handletextpad=0.3, columnspacing=1.0)


def _error(measurement: Measurement, case: str, t: Timing) -> float | None:
    facts = measurement.facts.get(f"{case} {t.arm}") or measurement.facts.get(f"{case} {t.arm}, bias 0") or {}
    return facts.get(f"output, scale {SCALES[case]}")
