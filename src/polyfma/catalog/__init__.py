"""The shipped programs with their certificates.

``programs/NAME.json`` is a program as :meth:`~polyfma.program.Program.to_dict` writes it,
``certificates/NAME.json`` its certificate and the record of its fit. Both are made by
``polyfma catalog build`` and by nothing else.
"""

from __future__ import annotations

import difflib
import json
import re
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from polyfma.errors import ProgramError, UnknownNameError
from polyfma.program import Program

ROOT = Path(str(files("polyfma.catalog")))
PROGRAMS, CERTIFICATES = ROOT / "programs", ROOT / "certificates"
REFUSED = ROOT / "refused.json"


def programs() -> list[str]:
    """The names of all catalogue programs, in reading order: function, direction, format, degree."""
    return sorted((p.stem for p in PROGRAMS.glob("*.json")), key=_reading_order)


def _reading_order(name: str) -> tuple[Any, ...]:
    return tuple(int(part) if part.isdigit() else part for part in re.split(r"(?<=\.d)(\d+)", name))


def read_entry(name: str) -> Program:
    """The catalogue program as it is on disk now. Raises ProgramError for a damaged one or one without digest."""
    path = PROGRAMS / f"{name}.json"
    program = Program.read(path)
    if json.loads(path.read_text(encoding="utf-8")).get("digest") is None:
        raise ProgramError(f"catalogue program {name} has no digest; make it again: polyfma catalog build --only {name} --force")
    return program


_remembered = cache(read_entry)


def load(name: str | Path) -> Program:
    """A catalogue program by name, or the program in a JSON file by path.

    Raises UnknownNameError for a name that is neither, ProgramError for a file that is not a program
    or whose digest does not match.
    """
    text = str(name)
    if len(text) > 1024 or "\0" in text:
        raise UnknownNameError(f"no program {text[:40]!r}...: a name or a path is expected")
    # The catalogue first: a file or folder of that name in the working directory must not stand before it.
    if not text.startswith(".") and "/" not in text and (PROGRAMS / f"{text}.json").is_file():
        return _remembered(text)
    if Path(text).is_dir():
        raise ProgramError(f"{text!r} is a folder; give the program's JSON file in it")
    if Path(text).is_file():
        return Program.read(text)
    if "/" in text or text.endswith(".json"):
        raise ProgramError(f"no program file {text!r}")
    near = difflib.get_close_matches(text, programs(), n=3, cutoff=0.6)
    hint = f"; near: {', '.join(near)}" if near else ""
    raise UnknownNameError(f"no program {text!r} in the catalogue ({len(programs())} programs: polyfma list){hint}")


def record(name: str) -> dict[str, Any]:
    """The stored certificate (``certificate``) and fit record (``fit``) of a catalogue program."""
    path = CERTIFICATES / f"{name}.json"
    if not path.is_file():
        raise UnknownNameError(f"no certificate of {name!r} in the catalogue; polyfma catalog build --only {name} makes one of a row of the plan")
    remedy = f"make it again: polyfma catalog build --only {name} --force"
    try:
        data: Any = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ProgramError(f"the catalogue's certificate of {name} is not JSON ({error}); {remedy}") from error
    if not (isinstance(data, dict) and isinstance(data.get("certificate"), dict) and "digest" in data["certificate"] and "fit" in data):
        raise ProgramError(f"the catalogue's certificate of {name} is damaged; {remedy}")
    return data


def refused() -> dict[str, str]:
    """Rows that the catalogue cannot have, with the reason."""
    if not REFUSED.is_file():
        return {}
    try:
        data: dict[str, str] = json.loads(REFUSED.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ProgramError(f"the catalogue's {REFUSED.name} is not JSON ({error}); delete it, polyfma catalog build makes it again") from error
    return data
