"""What a model's activation is compared with: the published substitution, its control, ours, and exact arithmetic."""

from __future__ import annotations

from dataclasses import replace

from polyfma import catalog
from polyfma.forms import get_form
from polyfma.models.patching import Config
from polyfma.program import Op, Program
from polyfma.published import published

CONTROLS = ("endpoint-ls", "sollya")
PUBLISHED_LS, PUBLISHED_SPLIT, PUBLISHED_SOLLYA = "published endpoint-ls", "published endpoint-ls, split", "published sollya"


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


def split(program: Program) -> Program:
    """The program with each fused multiply-add as a multiplication and an addition, each rounded: the arithmetic of the published search."""
    ops: list[Op] = []
    for op in program.ops:
        if op.op == "fma":
            ops += [Op("mul", f"{op.dst}_product", op.src[:2], op.format), Op("add", op.dst, (f"{op.dst}_product", op.src[2]), op.format)]
        else:
            ops.append(op)
    return replace(program, name=f"{program.name}.split", ops=tuple(ops))


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
        for name, program in ((PUBLISHED_LS, published_silu("endpoint-ls")), (PUBLISHED_SPLIT, split(published_silu("endpoint-ls"))),
                              (PUBLISHED_SOLLYA, published_silu("sollya"))):  # fmt: skip
            arms[name] = Config(programs={"silu": program}, inexact_tails=True)
    return arms
