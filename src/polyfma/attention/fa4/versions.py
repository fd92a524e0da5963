"""Which FlashAttention-4 the hooks were run with. They replace methods inside it, so another version is refused, not guessed at."""

from __future__ import annotations

from functools import cache
from importlib.metadata import PackageNotFoundError, version

from polyfma.errors import MissingToolError

TESTED = {"flash-attn-4": ("4.0.0b36",), "nvidia-cutlass-dsl": ("4.8.1",), "quack-kernels": ("0.6.5",)}


def missing() -> str | None:
    """The first package that is not installed, in one line; None where all are, in whatever version."""
    for package, tested in TESTED.items():
        try:
            version(package)
        except PackageNotFoundError:
            return f"{package} is not installed; pip install 'polyfma[fa4]' (tested: {', '.join(tested)})"
    return None


@cache
def problem() -> str | None:
    """Why FlashAttention-4 cannot be used here, in one line; None where it can."""
    absent = missing()
    if absent:
        return absent
    for package, tested in TESTED.items():
        if version(package) not in tested:
            return f"{package} {version(package)} is not a tested version; tested: {', '.join(tested)}"
    return None


def check() -> None:
    """Raises MissingToolError with :func:`problem`."""
    reason = problem()
    if reason:
        raise MissingToolError(f"FlashAttention-4 cannot be used: {reason}")
