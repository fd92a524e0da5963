"""The published tables and figures, side by side with what is measured here.

A table is a function (progress) -> :class:`~polyfma.reproduce.result.Result`; a figure a function
(folder, progress) -> list of files.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from polyfma.reproduce import figures, table2, table3, table4, table6, table8, table9, table10
from polyfma.reproduce.result import Result

Progress = Callable[..., None]
TABLES: dict[str, Callable[[Progress], Result]] = {
    "table2": table2.reproduce,
    "table3": table3.reproduce,
    "table4": table4.reproduce,
    "table6": table6.reproduce,
    "table8": table8.reproduce,
    "table9": table9.reproduce,
    "table10": table10.reproduce,
}
FIGURES: dict[str, Callable[[Path, Progress], list[Path]]] = {
    "figure1": figures.figure1,
    "figure2": figures.figure2,
    "figure4": figures.figure4,
    "figure5": figures.figure5,
}
