"""What is installed, what is missing, and what that switches off."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version

from polyfma.emit.tools import find_tool
from polyfma.errors import MissingToolError
from polyfma.functions import cache_directory


@dataclass(frozen=True)
class Finding:
    """One thing looked for. ``found`` is its version or place, empty if it is missing."""

    name: str
    found: str
    used_for: str
    without: str
    how_to_get: str

    def to_dict(self) -> dict[str, str]:
        return asdict(self)


_PACKAGES = (
    ("numpy", "all arithmetic", "nothing works"),
    ("python-flint", "rigorous function values", "no tables, so no fits and no certificates"),
    ("scipy", "linear programmes and distributions", "no minimax fits, no bias figures"),
    ("numba", "the search in the format", "no lattice fits"),
    ("matplotlib", "pictures", "fit and reproduce cannot draw"),
    ("torch", "polyfma.ops and polyfma.nn", "no operators, no bench"),
    ("transformers", "polyfma profile and evaluate, experts and softcapped attention of models", "patch finds activations and gated MLPs alone"),
    ("gguf", "loading smollm2", "polyfma evaluate takes folders alone"),
    ("triton", "operators on a GPU; running emitted Triton functions; brings ptxas and cuobjdump", "operators run on the CPU alone, and emitted Triton source cannot be run here"),
)
_TOOLS = (
    ("ptxas", "audit", "polyfma audit is off", "pip install triton, or install a CUDA toolkit"),
    ("cuobjdump", "audit", "polyfma audit is off", "pip install triton, or install a CUDA toolkit"),
    ("nvcc", "compiling emitted CUDA headers", "nothing here needs it", "install a CUDA toolkit"),
    ("sollya", "the fpminimax control", "method sollya and the Sollya columns of table 2 are off",
     "Debian: apt-get install sollya"),
)  # fmt: skip


def examine() -> list[Finding]:
    """Every optional and required part, in reading order."""
    findings = [Finding("python", sys.version.split()[0], "Python >= 3.11", "", "")]
    for package, used_for, without in _PACKAGES:
        findings.append(Finding(package, _package_version(package), used_for, without, f"pip install {package}"))
    for tool, used_for, without, how in _TOOLS:
        findings.append(Finding(tool, _tool_version(tool), used_for, without, how))
    cache = cache_directory()
    tables = len(list(cache.glob("*.npz"))) if cache.is_dir() else 0
    findings.append(Finding("table cache", f"{cache} ({tables} tables)", "function tables, made once", "", ""))
    return findings


def _package_version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return ""


def _tool_version(name: str) -> str:
    try:
        path = find_tool(name)
    except MissingToolError:
        return ""
    try:
        text = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=20, check=False).stdout
    except (OSError, subprocess.TimeoutExpired):
        return path
    found = re.search(r"(?:version|release)\s+v?(\d+(?:\.\d+)*)", text, re.IGNORECASE)
    return found[1] if found else path
