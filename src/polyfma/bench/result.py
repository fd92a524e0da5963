"""The one schema of a measurement: where it ran, under which protocol, and every round of every arm."""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from polyfma.errors import PolyfmaError, UnknownNameError
from polyfma.files import write_text

SCHEMA = 1
MACHINE = ("device", "driver", "cuda", "versions", "commit")


@dataclass(frozen=True)
class Timing:
    """Microseconds of one call of one arm. ``where`` says what was timed: ``graph`` (device time), ``eager`` (with the launch), ``autograd`` or ``host``."""

    case: str
    function: str
    direction: str
    dtype: str
    elements: int
    arm: str
    where: str
    rounds_us: tuple[float, ...]
    program: str | None = None
    bytes: int | None = None

    @property
    def median_us(self) -> float:
        return statistics.median(self.rounds_us)

    def to_dict(self) -> dict[str, Any]:
        spread = {"median_us": self.median_us, "lowest_us": min(self.rounds_us), "highest_us": max(self.rounds_us)}
        return asdict(self) | spread | {"rounds_us": [round(r, 4) for r in self.rounds_us]}


@dataclass
class Measurement:
    """Timings of one run and facts beside them (bytes allocated, counts)."""

    bench: str
    protocol: dict[str, str]
    timings: list[Timing] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)
    machine: dict[str, Any] = field(default_factory=lambda: machine())

    def to_dict(self) -> dict[str, Any]:
        return {"schema": SCHEMA, "bench": self.bench, **self.machine, "protocol": self.protocol, "facts": self.facts,
                "timings": [t.to_dict() for t in self.timings]}  # fmt: skip

    def write(self, path: Path) -> None:
        write_text(path, json.dumps(self.to_dict(), indent=1) + "\n")


def read(path: Path) -> Measurement:
    """A measurement of a file. Raises PolyfmaError for a file that is none."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        if data["schema"] != SCHEMA:
            raise PolyfmaError(f"{str(path)!r} has schema {data['schema']}; this version reads {SCHEMA}")
        timings = [_timing(t) for t in data["timings"]]
        return Measurement(data["bench"], data["protocol"], timings, data["facts"], {name: data[name] for name in MACHINE})
    except OSError as error:
        raise PolyfmaError(f"cannot read result {str(path)!r}: {error.strerror}") from error
    except (ValueError, KeyError, TypeError) as error:
        if isinstance(error, PolyfmaError):
            raise
        raise PolyfmaError(f"{str(path)!r} is no result of polyfma bench: {type(error).__name__}: {error}") from error


def _timing(data: dict[str, Any]) -> Timing:
    given = {name: data[name] for name in Timing.__dataclass_fields__}
    return Timing(**(given | {"rounds_us": tuple(data["rounds_us"])}))


def find(timings: Iterable[Timing], **wanted: Any) -> Timing | None:
    """The first timing whose fields have these values."""
    return next((t for t in timings if all(getattr(t, k) == v for k, v in wanted.items())), None)


def check_cases(cases: Sequence[str], known: Iterable[str]) -> Sequence[str]:
    """The cases of a bench. Raises UnknownNameError for one that is not among the known."""
    for case in cases:
        if case not in known:
            raise UnknownNameError(f"unknown case {case!r}; known: {', '.join(known)}")
    return cases


COPIES = ("copy kernel", "cuda memcpy")


def comparisons(timings: Sequence[Timing]) -> Iterator[tuple[Timing, float | None, float | None]]:
    """Every timing with its time over the best copy and torch's time over its own, of the same case; None where there is none."""
    for t in timings:
        same = {"case": t.case, "function": t.function, "direction": t.direction, "dtype": t.dtype, "elements": t.elements, "where": t.where}
        copies = [c.median_us for name in COPIES if (c := find(timings, arm=name, **same))]
        native = find(timings, arm="torch", **same)
        yield t, t.median_us / min(copies) if copies else None, native.median_us / t.median_us if native else None


def machine() -> dict[str, Any]:
    """Device, driver, versions and commit of this run."""
    import torch

    from polyfma import __version__

    packages = ("torch", "triton", "liger-kernel", "transformers")
    gpu = torch.cuda.is_available()
    return {"device": torch.cuda.get_device_name() if gpu else _processor(),
            "driver": _first_line("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader") if gpu else None, "cuda": torch.version.cuda, "versions": {p: _version(p) for p in packages if _version(p)} | {"polyfma": __version__},
            "commit": os.environ.get("GIT_COMMIT") or _first_line("git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty", "--abbrev=12")}  # fmt: skip


def _processor() -> str:
    """The CPU's own name, of several cores."""
    names = [line.partition(":")[2].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")] if Path("/proc/cpuinfo").is_file() else []
    return f"{names[0] if names else platform.machine()}, {os.cpu_count()} cores"


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _first_line(*command: str) -> str | None:
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()[0]
    except (OSError, subprocess.CalledProcessError, IndexError):
        return None
