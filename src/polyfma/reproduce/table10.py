"""Table 10: what software exp2 does to attention's results, read from a checked-in result."""

from __future__ import annotations

from typing import Any

from polyfma.errors import PolyfmaError
from polyfma.published import published
from polyfma.reproduce.checked_in import checked_in
from polyfma.reproduce.result import Cell, Result
from polyfma.reproduce.table9 import COLUMNS

FACT = "distance from all SFU"


def reproduce(progress: Any) -> Result:
    measurement, source = checked_in("attention-exp2", "table10", "polyfma bench attention --case exp2")
    printed = published()["table10_exp2_attention_rel_l2"]
    facts = {column: measurement.facts.get(f"exp2 {arm}", {}) for column, arm in COLUMNS.items()}
    if not all(FACT in f for f in facts.values()):
        raise PolyfmaError("the checked-in result of attention with exp2 programs has no distances; polyfma bench attention --case exp2 measures them")
    cells = [Cell(column, "rel L2", fact[FACT], printed[column]) for column, fact in facts.items()]
    cells += [Cell(column, "output against fp64", fact["output, scale 1"]) for column, fact in facts.items()]
    notes = (source, f"rel L2: {printed['metric']}; every third eligible pair of scores forward and every eighth backward is computed in software",
             "against fp64 the kernel with ex2.approx alone has "
             f"{measurement.facts['exp2 all SFU']['output, scale 1']:.3g}: BF16 rounding of weights and output")  # fmt: skip
    return Result("Table 10: attention with software exp2, relative L2 distance", tuple(cells), notes)
