"""Writing files whole or not at all."""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path


@contextmanager
def replacing(path: str | Path) -> Iterator[Path]:
    """A temporary path beside ``path`` that takes its place when the block ends well, and goes when it fails.

    The suffix is kept, because matplotlib and numpy read the file type from it.
    """
    target = Path(path)
    _check_kind(target, str(path))
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.stem}.", suffix=target.suffix)
    except OSError as error:
        error.filename = str(path)  # not the temporary one
        raise
    os.close(handle)
    try:
        yield Path(name)
        # mkstemp makes files private; give the usual permissions of a new file.
        mask = os.umask(0)
        os.umask(mask)
        os.chmod(name, 0o666 & ~mask)
        os.replace(name, target)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


@contextmanager
def replacing_all(paths: Sequence[Path]) -> Iterator[list[Path]]:
    """:func:`replacing` for several files: none is put in place before all are written."""
    for path in paths:
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, "a folder is in the way", str(path))
    with ExitStack() as stack:
        yield [stack.enter_context(replacing(path)) for path in paths]


def _check_kind(target: Path, given: str) -> None:
    """A folder cannot be replaced by a file, and a device or pipe must not be."""
    if not given or target.is_dir():
        raise IsADirectoryError(errno.EISDIR, "a folder, not a file", given or ".")
    if target.exists() and not target.is_file():
        raise OSError(errno.EINVAL, "not a regular file", given)


def check_target(path: str | Path) -> None:
    """Raises OSError, with the path as given, where :func:`replacing` could not put a file: before long work, not after it."""
    _check_kind(Path(path), str(path))
    try:
        check_writable(Path(path).parent)
    except OSError as error:
        error.filename = str(path)
        raise


def check_writable(folder: str | Path) -> None:
    """Raises OSError where a folder, or the nearest one above it that exists, takes nothing: before long work, not after it."""
    existing = next(p for p in (Path(folder).absolute(), *Path(folder).absolute().parents) if p.exists())
    if not existing.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, "a file, where a folder is needed", str(existing))
    with tempfile.TemporaryDirectory(dir=existing):
        pass


def write_text(path: str | Path, text: str) -> None:
    """Write a text file, replacing an older one whole."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")
