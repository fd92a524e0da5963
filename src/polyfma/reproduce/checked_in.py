"""Results that a GPU gave and the repository holds: read where there is no GPU, and named in the notes."""

from __future__ import annotations

from pathlib import Path

from polyfma.bench.result import Measurement, read
from polyfma.errors import PolyfmaError

FOLDER = Path(__file__).parents[3] / "benchmarks" / "results" / "h200"


def checked_in(name: str, table: str, how: str) -> tuple[Measurement, str]:
    """(the measurement, a note that names it). Raises PolyfmaError outside a checkout; ``how`` says what measures it."""
    path = FOLDER / f"{name}.json"
    if not path.is_file():
        raise PolyfmaError(f"{table} needs a checkout of the repository with its checked-in results of a GPU; {how} measures them")
    measurement = read(path)
    return measurement, f"read from benchmarks/results/h200/{name}.json, measured on {measurement.machine['device']} by {how}"


def gpu() -> bool:
    """Whether there is a CUDA GPU."""
    try:
        import torch
    except ImportError:
        return False
    return torch.cuda.is_available()
