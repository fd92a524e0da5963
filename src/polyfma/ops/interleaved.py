"""Interleaved gate and up: a 32-bit word holds one of each, so two words are a pair of lanes with two byte permutations."""

from __future__ import annotations

from polyfma.emit.lowering import Block

_LOW_HALVES, _HIGH_HALVES = "0x5410", "0x7632"  # of prmt.b32 d, a, b: both low or both high 16-bit halves of a and b


def interleaved_asm(block: Block, kind: str) -> tuple[str, str]:
    """The block of a gated kind between permutations, and its constraints.

    ``gated``: two words in, one pair out. ``gated_backward``: the gradient's pair and two words in, two words out.
    """
    if kind == "gated":
        first, second, out = "$1", "$2", {"y": "$0"}
        given, after = {}, []
        constraints = "=r,r,r"
    else:
        first, second, out = "$3", "$4", {"y_d_gate": "dg", "y_d_up": "du"}
        given = {"x_grad": "$2"}
        after = [f"prmt.b32 $0, dg, du, {_LOW_HALVES};", f"prmt.b32 $1, dg, du, {_HIGH_HALVES};"]
        constraints = "=r,=r,r,r,r"
    names = given | {"x_gate": "gg", "x_up": "uu"} | out
    registers = ".reg .b32 gg, uu, dg, du;" if after else ".reg .b32 gg, uu;"
    lines = ["{", registers, f"prmt.b32 gg, {first}, {second}, {_LOW_HALVES};", f"prmt.b32 uu, {first}, {second}, {_HIGH_HALVES};",
             block.text(names, indent="", separator=" "), *after, "}"]  # fmt: skip
    return " ".join(lines), constraints
