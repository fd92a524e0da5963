"""The published figures and coefficients, as package data, and the programs they make: facts to compare with, never results of ours."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from polyfma.forms import Form, get_form
from polyfma.functions import Function, get_function
from polyfma.program import Program

METHODS = ("endpoint_ls", "sollya")


@cache
def published() -> dict[str, Any]:
    """The tables of "Fast Polynomial Transcendentals for LLMs" (August 2026), by name. Do not change the dict."""
    text = files("polyfma").joinpath("published.json").read_text(encoding="utf-8")
    tables: dict[str, Any] = json.loads(text)
    return tables


# The published SiLU row is the composition of the sigmoid program; GELU multiplies by t once more.
_FORMS = {("sigmoid", "forward"): "centred-odd", ("tanh", "forward"): "odd", ("silu", "forward"): "sigmoid-product",
          ("gelu", "forward"): "residual-tp", ("sigmoid", "backward"): "even", ("tanh", "backward"): "even",
          ("silu", "backward"): "centred-odd", ("gelu", "backward"): "centred-odd"}  # fmt: skip


@dataclass(frozen=True)
class Row:
    """One published row with one method's coefficients."""

    function: str
    direction: str
    degree: int
    clamp: float
    method: str
    published_error: float
    coefficients: tuple[float, ...]

    @property
    def form(self) -> Form:
        return get_form(_FORMS[self.function, self.direction])

    @property
    def target(self) -> Function:
        return get_function(self.function, self.direction)

    @property
    def label(self) -> str:
        short = {"forward": "", "backward": "'"}[self.direction]
        return f"{self.function}{short} D{self.degree} {self.method.replace('_', '-')}"


def rows() -> list[Row]:
    """The sixteen published figures with the coefficients that go with them."""
    tables = published()
    found = []
    for row in tables["table2_max_abs_error_x1e3"]["rows"]:
        source = "sigmoid" if row["function"] == "silu" and row["direction"] == "forward" else row["function"]
        key = f"{source}_{'fwd' if row['direction'] == 'forward' else 'bwd'}_d{row['degree']}"
        for method in METHODS:
            coefficients = tables["table2_coefficients_ascending_powers"][key][method]
            found.append(Row(row["function"], row["direction"], row["degree"], row["clamp"], method,
                             row[method] / 1e3, tuple(coefficients)))  # fmt: skip
    return found


def bf16_program(row: Row) -> Program:
    """The printed coefficients rounded to BF16, as a program."""
    values = dict(zip(row.form.free_names(row.degree), row.coefficients, strict=True))
    name = f"{row.function}.{row.direction}.bf16.d{row.degree}.published-{row.method.replace('_', '-')}"
    return row.form.build(name, row.function, row.direction, "bf16", row.degree, values | {"clamp": row.clamp})
