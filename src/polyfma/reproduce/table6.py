"""Table 6: open-weight models with degree-4 programs. Of the published models none is here; SmolLM2-135M, which a package carries, stands for them."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from polyfma.errors import PolyfmaError
from polyfma.published import published
from polyfma.reproduce.checked_in import FOLDER
from polyfma.reproduce.result import Cell, Result

NAME = "evaluate-smollm2"
ROW = "SmolLM2 135M dense SwiGLU"


def reproduce(progress: Callable[..., None]) -> Result:
    path = FOLDER / f"{NAME}.json"
    if not path.is_file():
        raise PolyfmaError("table6 needs a checkout of the repository with its checked-in results of a GPU; polyfma evaluate measures them")
    record: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    table = published()["table6_open_weight_degree4"]
    cells = [Cell(f"{row} (not run)", metric, None, value) for row, values in table["rows"].items() for metric, value in zip(table["columns"], values, strict=True)]
    native = next(q for q in record["quality"] if q["arm"] == "native")
    speeds = {row["arm"]: row for row in record["throughput"]}
    for quality in record["quality"]:
        row = f"{ROW}, {quality['arm']}"
        cells += [Cell(row, "wikitext2_word_ppl_native", native["word_perplexity"]), Cell(row, "wikitext2_word_ppl_variant", quality["word_perplexity"]),
                  Cell(row, "mean_kl_x1e3", 1e3 * quality["kl"]), Cell(row, "ppl_change_percent", 100 * quality["perplexity_change"])]  # fmt: skip
        if quality["arm"] in speeds:
            cells += [Cell(row, f"{what}_ratio", speeds[quality["arm"]][what] / speeds["native"][what]) for what in ("prefill", "decode")]
    text = record["text"]
    notes = (f"read from benchmarks/results/h200/{NAME}.json, measured on {record['device']} by polyfma evaluate --tokens {text['chunks'][0] * text['chunks'][1]} --throughput",
             f"SmolLM2's word perplexity is of {text['name']}, not of WikiText-2, which is not here; ratios are speed against native",
             "the published figures are of a GB200; mean_accuracy_change_pp is of eight tasks that need a network")  # fmt: skip
    return Result("Table 6: open-weight models, degree 4", tuple(cells), notes)
