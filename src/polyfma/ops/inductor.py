"""Inductor: the operators as pointwise operations over inline PTX, so that a compiled model fuses them with their neighbours.

A lowering for each operator (CUDA only; on the CPU the operator itself is called). Inductor computes in fp32, so the block
takes fp32, rounds to the format as the eager operator's input was, and gives fp32 back, exact after rounding: the
bits are those of the eager kernel. An operation with two outputs becomes two pointwise ones, which Inductor joins.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch

from polyfma.errors import MissingToolError
from polyfma.ops.dispatcher import overload
from polyfma.ops.operation import INPUTS, architecture_of, operation
from polyfma.ops.versions import TESTED_TORCH


@cache
def register() -> None:
    """Register the lowerings, once. Raises MissingToolError on a torch whose Inductor is not as the tested ones."""
    try:
        from torch._inductor import ir
        from torch._inductor.lowering import fallback_handler, register_lowering
        from torch._inductor.virtualized import ops

        handler_has_asm = hasattr(ops, "inline_asm_elementwise")
    except ImportError as error:
        raise MissingToolError(f"torch {torch.__version__} has no Inductor as polyfma knows it; tested: {TESTED_TORCH}") from error
    if not handler_has_asm:
        raise MissingToolError(f"Inductor of torch {torch.__version__} has no inline_asm_elementwise; tested: {TESTED_TORCH}")
    for kind in INPUTS:
        operator = overload(kind)
        register_lowering(operator, type_promotion_kind=None)(_lowering(kind, ir, ops, fallback_handler(operator, add_to_fallback_set=False)))


def _lowering(kind: str, ir: Any, ops: Any, fallback: Callable[..., Any]) -> Callable[..., Any]:
    def lower_to_pointwise(*args: Any) -> Any:
        *inputs, key = args
        device = inputs[0].get_device()
        if device.type != "cuda":
            return fallback(*args)
        what = operation(key, kind)
        results = [_pointwise(inputs, _asm(key, kind, output, _capability(device)), device, ir, ops) for output in what.outputs]
        return results[0] if len(results) == 1 else tuple(results)

    return lower_to_pointwise


def _pointwise(inputs: list[Any], asm: tuple[str, str], device: torch.device, ir: Any, ops: Any) -> Any:
    loaders, dtype = [x.make_loader() for x in inputs], inputs[0].get_dtype()

    def inner(index: Any) -> Any:
        values = [ops.to_dtype(load(index), torch.float32, src_dtype=dtype) for load in loaders]
        return ops.inline_asm_elementwise(*values, asm=asm[0], constraints=asm[1], dtype=torch.float32, is_pure=True, pack=2)

    return ir.Pointwise.create(device=device, dtype=dtype, inner_fn=inner, ranges=list(inputs[0].get_size()))


@cache
def _asm(key: str, kind: str, output: str, capability: int) -> tuple[str, str]:
    """One output's block with fp32 in and out, every operand in a 32-bit integer register."""
    from polyfma.emit.triton import inline_asm

    asm, constraints = inline_asm(operation(key, kind).block(architecture_of(capability), "f32", (output,)))
    return asm, constraints.replace("f", "r")


def _capability(device: torch.device) -> int:
    major, minor = torch.cuda.get_device_capability(device)
    return 10 * major + minor
