"""The published figures and coefficients, as package data: facts to compare with, never results of ours."""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files
from typing import Any


@cache
def published() -> dict[str, Any]:
    """The tables of "Fast Polynomial Transcendentals for LLMs" (August 2026), by name. Do not change the dict."""
    text = files("polyfma").joinpath("published.json").read_text(encoding="utf-8")
    tables: dict[str, Any] = json.loads(text)
    return tables
