"""How far each layer's hidden state is from the native model's: one panel for the model as it is, one with silent neurons."""

from __future__ import annotations

from typing import Any

from matplotlib.figure import Figure

from polyfma import plots
from polyfma.models.quality import DEPARTURE

SILENT = "silent neurons at -200"


def drift_by_layer(record: dict[str, Any]) -> Figure:
    """Of a record of ``polyfma evaluate``; a dashed line is the distance from which a layer is said to have departed."""
    panels = {"as it is": record["quality"]} | ({SILENT: record["tails"][SILENT]} if SILENT in record.get("tails", {}) else {})
    fig, axes = plots.figure(5.2 * len(panels), 4.6, columns=len(panels))
    for ax, (title, rows) in zip(axes[0], panels.items(), strict=True):
        for row in rows:
            if any(row["drift"]):
                ours = row["arm"].startswith("ours")
                ax.plot(range(len(row["drift"])), row["drift"], "-" if ours else "--", linewidth=1.8 if ours else 1.0, label=row["arm"])
        ax.axhline(DEPARTURE, color="0.6", linestyle=":", linewidth=1.0)
        ax.set_yscale("log")
        ax.set_title(f"{record['model']['name']}, {title}")
        ax.set_xlabel("layer")
        ax.legend(fontsize=7, frameon=False)
    axes[0][0].set_ylabel("relative L2 distance of the hidden state from native")
    return fig
