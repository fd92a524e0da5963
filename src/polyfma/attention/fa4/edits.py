"""Edits lines inside a method of an installed package: ours are the lines and the hash of what they apply to.

The DSL reads a function's source from its file, so the edited method is written to a file of the cache and compiled from there.
"""

from __future__ import annotations

import ast
import hashlib
import inspect
import linecache
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from polyfma.errors import MissingToolError
from polyfma.files import write_text
from polyfma.functions import cache_directory

Edit = tuple[str, str]  # what stands there, exactly once, and what shall


def edited(method: Callable[..., Any], digest: str, edits: Sequence[Edit], tested: str) -> Callable[..., Any]:
    """The method with its edits, in its own module's names.

    Raises MissingToolError where the installed source is not the one with this SHA-256, naming the ``tested`` versions.
    """
    original = inspect.unwrap(method)
    source = _source(original)
    found = hashlib.sha256(source.encode()).hexdigest()
    name = f"{original.__module__}.{original.__qualname__}"
    if found != digest:
        raise MissingToolError(f"{name} is not the source that our edits are for (sha256 {found[:12]}, wanted {digest[:12]}); tested: {tested}")
    for old, new in edits:
        if source.count(old) != 1:
            raise MissingToolError(f"{name} holds {old.strip()!r} {source.count(old)} times, not once; tested: {tested}")
        source = source.replace(old, new)
    path = cache_directory() / "edited" / f"{original.__name__}-{hashlib.sha256(source.encode()).hexdigest()[:16]}.py"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, source)
    linecache.checkcache(str(path))
    names = dict(original.__globals__)
    exec(compile(source, str(path), "exec"), names)
    return names[original.__name__]


def _source(function: Callable[..., Any]) -> str:
    """The function's text in its file, decorators included. ``inspect`` follows the code object, which the DSL replaces."""
    module = Path(inspect.getfile(function)).read_text(encoding="utf-8")
    body: list[ast.stmt] = ast.parse(module).body
    for name in function.__qualname__.split("."):
        node = next(n for n in body if isinstance(n, ast.ClassDef | ast.FunctionDef) and n.name == name)
        body = node.body
    start = min([node.lineno, *(d.lineno for d in node.decorator_list)])
    return textwrap.dedent("\n".join(module.splitlines()[start - 1 : node.end_lineno])) + "\n"
