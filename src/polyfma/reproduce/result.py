"""What a reproduced table holds: rows of one schema, and how to print them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rich.table import Table


@dataclass(frozen=True)
class Cell:
    """One figure. ``measured`` was computed in this run, or read from the result that the notes name; ``published`` is None where
    none was printed."""

    row: str
    metric: str
    measured: float | None
    published: float | None = None


@dataclass(frozen=True)
class Result:
    """A table: cells, the factor and digits in which a person reads them, and notes."""

    title: str
    cells: tuple[Cell, ...]
    notes: tuple[str, ...] = ()
    scale: float = 1.0

    def rows(self) -> list[dict[str, Any]]:
        """``{"row", "metric", "measured", "published"}``, one a cell."""
        return [{"row": c.row, "metric": c.metric, "measured": c.measured, "published": c.published} for c in self.cells]

    def table(self) -> Table:
        """One line a row, one column a metric; a published figure stands in its own column."""
        metrics = list(dict.fromkeys(c.metric for c in self.cells))
        printed = [m for m in metrics if any(c.metric == m and c.published is not None for c in self.cells)]
        table = Table(title=self.title, title_justify="left")
        table.add_column("row", no_wrap=True)
        for metric in metrics:
            if metric in printed:
                table.add_column(f"published: {metric}", justify="right", style="dim")
            table.add_column(metric, justify="right")
        for row in dict.fromkeys(c.row for c in self.cells):
            by_metric = {c.metric: c for c in self.cells if c.row == row}
            texts = []
            for metric in metrics:
                cell = by_metric.get(metric)
                if metric in printed:
                    texts.append(self._text(cell.published if cell else None))
                texts.append(self._text(cell.measured if cell else None))
            table.add_row(row, *texts)
        return table

    def _text(self, value: float | None) -> str:
        return "" if value is None else f"{value * self.scale:.4g}"
