"""What a model's activation is compared with: the published substitution, its control, ours, and exact arithmetic."""

from __future__ import annotations

from polyfma import catalog
from polyfma.forms import get_form
from polyfma.models.patching import Config
from polyfma.program import Program
from polyfma.published import published

CONTROLS = ("endpoint-ls", "sollya")
PUBLISHED_LS, PUBLISHED_SOLLYA = "published endpoint-ls", "published sollya"


def published_silu(method: str) -> Program:
    """SiLU as published, x (1/2 + sign(x) p(|x|)) in BF16 with the degree-4 sigmoid polynomial of a method, clamped and with nothing done to its tails.

    ``endpoint-ls`` has the printed coefficients and clamp (figure 2); Sollya's were not printed, so they are those of our control.
    """
    form = get_form("sigmoid-product")
    if method == "endpoint-ls":
        printed = published()["figure2_selected"]
        values = {f"c{i}": c for i, c in enumerate(printed["coefficients"], 1)} | {"clamp": printed["clamp"]}
    else:
        control = catalog.load(f"sigmoid.forward.bf16.d4.{method}")
        values = {name: control.const_value(name) for name in (*form.free_names(4), "clamp")}
    return form.build(f"silu.forward.bf16.d4.published-{method}", "silu", "forward", "bf16", 4, values)


def arms_of(functions: set[str], fmt: str) -> dict[str, Config | None]:
    """The arms of a model that computes these functions in a format. ``native`` is the model against itself: what no change measures as.

    The published substitution is of SiLU in BF16; of other functions the degree-4 controls stand for it, whose tails are exact.
    """
    arms: dict[str, Config | None] = {
        "native": None,
        "exact": Config(program="exact"),
        "ours (faithful)": Config(),
        "ours (operators' default)": Config(program=None),
        "ours (fast)": Config(program="fast"),
    }
    for method in CONTROLS:
        programs = {f: f"{f}.forward.{fmt}.d4.{method}" for f in functions if f"{f}.forward.{fmt}.d4.{method}" in catalog.programs()}
        if programs:
            arms[f"{method} D4, exact tails"] = Config(programs=programs)
    if "silu" in functions and fmt == "bf16":
        for name, method in ((PUBLISHED_LS, "endpoint-ls"), (PUBLISHED_SOLLYA, "sollya")):
            arms[name] = Config(programs={"silu": published_silu(method)}, inexact_tails=True)
    return arms
