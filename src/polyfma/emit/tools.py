"""The compilers that turn emitted PTX into machine code, where they are installed: Triton's package or a CUDA toolkit."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
from functools import cache
from pathlib import Path

from polyfma.emit.architecture import Architecture
from polyfma.errors import MissingToolError, PolyfmaError

_BLACKWELL = 100


@cache
def find_tool(name: str) -> str:
    """The path of ptxas, nvdisasm or cuobjdump: on PATH, else in the installed triton package. Raises MissingToolError."""
    on_path = shutil.which(name)
    if on_path is not None:
        return on_path
    triton = importlib.util.find_spec("triton")
    if triton is not None and triton.origin:
        packed = Path(triton.origin).parent / "backends" / "nvidia" / "bin" / name
        if packed.is_file():
            return str(packed)
    raise MissingToolError(f"{name} is not installed: pip install triton, or install a CUDA toolkit and put it on PATH")


def _ptxas(architecture: Architecture) -> str:
    """Triton has an assembler of its own for Blackwell."""
    path = find_tool("ptxas")
    newer = Path(path).with_name("ptxas-blackwell")
    return str(newer) if architecture.number >= _BLACKWELL and newer.is_file() else path


def version_of(path: str) -> str:
    """``12.8`` of ``release 12.8``; empty if the tool does not say."""
    text = subprocess.run([path, "--version"], capture_output=True, text=True, check=False, timeout=60).stdout
    found = re.search(r"release (\d+\.\d+)", text)
    return found[1] if found else ""


def assemble(source: Path, output: Path, architecture: Architecture) -> str:
    """Assemble a PTX file to a cubin; returns the assembler's version. Raises PolyfmaError with its message."""
    ptxas = _ptxas(architecture)
    done = subprocess.run([ptxas, "-v", f"-arch={architecture}", "-o", str(output), str(source)], capture_output=True, text=True,
                          check=False, timeout=300)  # fmt: skip
    if done.returncode != 0:
        first = next((line for line in (done.stderr + done.stdout).splitlines() if line.strip()), "no message")
        raise PolyfmaError(f"ptxas {version_of(ptxas) or 'of unknown version'} does not assemble for {architecture}: {first.strip()}")
    return version_of(ptxas)


def disassemble(cubin: Path) -> str:
    """SASS text of a cubin."""
    done = subprocess.run([find_tool("cuobjdump"), "-sass", str(cubin)], capture_output=True, text=True, check=False, timeout=300)
    if done.returncode != 0 or "/*0000*/" not in done.stdout:
        said = (done.stderr.strip() or "no code in it").splitlines()[0]
        tool = find_tool("cuobjdump")
        raise PolyfmaError(f"cuobjdump {version_of(tool)} cannot disassemble for this architecture ({said}): put the cuobjdump and nvdisasm of a"
                           " newer CUDA toolkit on PATH")  # fmt: skip
    return done.stdout
