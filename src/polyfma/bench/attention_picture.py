"""Time against error of attention's forward arms at batch 1: one panel a case."""

from __future__ import annotations

from matplotlib.figure import Figure

from polyfma import plots
from polyfma.bench.result import Measurement

TITLES = {"b2": "softcap 50", "b3": "sigmoid, bias 0", "exp2": "softmax, exp2 in software"}
LIMITS = {"b2": 2.5e-3, "b3": 4e-3}


def time_against_error(measurement: Measurement) -> Figure:
    """Lower and further left is better; a dashed line is the error that ``auto`` allows."""
    cases = [case for case in TITLES if any(t.case == f"{case} batch 1" for t in measurement.timings)]
    fig, axes = plots.figure(5.6 * len(cases), 5.0, columns=len(cases))
    for ax, case in zip(axes[0], cases, strict=True):
        rows = [t for t in measurement.timings if (t.case, t.where, t.direction) == (f"{case} batch 1", "graph", "forward")]
        for t in rows:
            facts = measurement.facts.get(f"{case} {t.arm}") or measurement.facts.get(f"{case} {t.arm}, bias 0") or {}
            error = facts.get("output, scale 1")
            if error is None:
                continue
            ours = t.program is not None and ".forward." in t.program
            ax.plot(t.median_us, error, "o", color=plots.ACCENT if ours else plots.SECOND)
            ax.annotate(t.arm, (t.median_us, error), xytext=(4, 3), textcoords="offset points", fontsize=7)
        if case in LIMITS:
            ax.axhline(LIMITS[case], color=plots.QUIET, linestyle="--")
        ax.set(title=TITLES[case], xlabel="microseconds, batch 1, 4,096 tokens", yscale="log")
    axes[0][0].set_ylabel("relative L2 error of the output against fp64")
    return fig
