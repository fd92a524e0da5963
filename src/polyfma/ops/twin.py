"""The CPU twin: the same bits as the GPU kernel, from tables.

A 16-bit program is a table of 65,536 results, built once by replay; a call gathers from it. The products around it are torch's
own: of two 16-bit numbers each is exact in fp32 and rounded once, which is what the packed instruction does. Exact operations
compute in float64 and round once.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from polyfma.formats import get_format
from polyfma.ops.choice import Choice
from polyfma.ops.dtypes import DTYPES
from polyfma.ops.fused import Call, Fused
from polyfma.ops.operation import Operation
from polyfma.ops.reference import reference
from polyfma.program import Op, Program
from polyfma.replay import replay, replay_op


def run(what: Operation, inputs: Sequence[Tensor]) -> list[Tensor]:
    """The outputs of an operation on CPU tensors of one shape; contiguous."""
    if what.fused is not None:
        return _run_fused(what.fused, inputs)
    return _run_exact(what.choice, what.kind, inputs)


@lru_cache(maxsize=256)
def table(program: Program) -> Tensor:
    """The program's 65,536 results by input bit pattern."""
    bits = np.asarray(replay(program, program.fmt.all_bits()))
    return torch.from_numpy(bits.view(np.int16)).view(DTYPES[program.format])


def _gather(values: Tensor, x: Tensor) -> Tensor:
    index = x.contiguous().view(torch.int16).to(torch.int32).bitwise_and_(0xFFFF)
    return values.index_select(0, index.view(-1)).view(x.shape)


def _run_fused(fused: Fused, inputs: Sequence[Tensor]) -> list[Tensor]:
    values = dict(zip(fused.inputs, inputs, strict=True))
    for name, bits in fused.constants.items():
        pattern = np.array(int(bits, 16), dtype=np.uint16).view(np.int16)
        values[name] = torch.from_numpy(pattern.reshape(1)).view(DTYPES[fused.format])[0]
    for step in fused.steps:
        if isinstance(step, Call):
            values[step.dst] = _gather(table(step.program), values[step.src])
        else:
            values[step.dst] = _packed(step, [values[s] for s in step.src])
    return [values[name] for name in fused.outputs.values()]


def _packed(step: Op, operands: list[Tensor]) -> Tensor:
    """One packed operation: products and sums by torch, the rest as replay does it."""
    fmt = get_format(step.format)
    if step.op in ("mul", "add"):
        result = operands[0] * operands[1] if step.op == "mul" else operands[0] + operands[1]
        canonical = torch.tensor(fmt.nan_bits, dtype=torch.int16).view(result.dtype)
        return torch.where(result.isnan(), canonical, result)
    bits = [o.contiguous().view(torch.int16).numpy().view(np.uint16) for o in operands]
    computed = np.ascontiguousarray(replay_op(step, bits))
    shape = torch.broadcast_shapes(*(o.shape for o in operands))  # numpy makes one dimension of none
    return torch.from_numpy(computed.view(np.int16)).view(operands[-1].dtype).view(shape)


# -- exact -------------------------------------------------------------------------------------------


@lru_cache(maxsize=64)
def exact_table(function: str, direction: str, fmt: str) -> Tensor:
    """The function in float64 at every input of the format, by bit pattern."""
    f = get_format(fmt)
    with np.errstate(all="ignore"):
        return torch.from_numpy(np.ascontiguousarray(reference(function, direction, f.decode(f.all_bits()))))


def _run_exact(choice: Choice, kind: str, inputs: Sequence[Tensor]) -> list[Tensor]:
    def at(direction: str, x: Tensor) -> Tensor:
        return _gather(exact_table(choice.function, direction, choice.format), x)

    dtype = DTYPES[choice.format]
    if kind == "unary":
        return [rounded(at("forward", inputs[0]), dtype)]
    if kind == "unary_backward":
        grad, x = inputs
        return [rounded(grad.double() * at("backward", x), dtype)]
    *grads, gate, up = inputs
    value, slope, raised = at("forward", gate), at("backward", gate), up.double()
    gate_cut = up_cut = torch.zeros_like(gate, dtype=torch.bool)
    if choice.limit is not None:  # in fp32, as the kernel has it: the format need not hold the limit
        limit = float(np.float32(choice.limit))
        gate_cut, up_cut = gate.double() > limit, up.double().abs() > limit
        value = value.masked_fill(gate_cut, float(reference(choice.function, "forward", np.array([limit]))[0]))
        raised = raised.clamp(-limit, limit) + 1
    if kind == "gated":
        return [rounded(value * raised, dtype)]
    grad = grads[0].double()
    d_gate, d_up = grad * slope * raised, grad * value
    return [rounded(d_gate.masked_fill(gate_cut, 0), dtype), rounded(d_up.masked_fill(up_cut, 0), dtype)]


def rounded(values: Tensor, dtype: torch.dtype) -> Tensor:
    """float64 rounded once to a 16-bit dtype.

    torch converts through fp32, which would round twice: the fp32 value is made odd where it is inexact (round to odd),
    so that the second rounding sees that it was.
    """
    single = values.to(torch.float32)
    bits = single.view(torch.int32)
    inexact = (single.double() != values) & single.isfinite() & values.isfinite()
    too_large = inexact & (single.double().abs() > values.abs())
    odd = torch.where(inexact, (bits - too_large.to(torch.int32)) | 1, bits)
    return odd.view(torch.float32).to(dtype)
