"""Runs an operation on plain tensors of one device: kernels on CUDA, the twin on the CPU."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from polyfma.ops import layout, twin
from polyfma.ops.launch import Kernel, Variant, kernel, launch
from polyfma.ops.operation import operation, tiling

# Builds of torch without CUDA have neither.
_current_stream = getattr(torch._C, "_cuda_getCurrentRawStream", None)
_current_device = getattr(torch._C, "_cuda_getDevice", None)
_kernels: dict[tuple[object, ...], Kernel] = {}


def unary(x: Tensor, key: str) -> Tensor:
    """y = f(x), in the layout of x."""
    y = torch.empty_like(x)
    run(key, "unary", (x,), (y,))
    return y


def unary_backward(grad: Tensor, x: Tensor, key: str) -> Tensor:
    """dx = grad * f'(x), in the layout of x."""
    dx = torch.empty_like(x)
    run(key, "unary_backward", (grad, x), (dx,))
    return dx


def gated(gate: Tensor, up: Tensor, key: str) -> Tensor:
    """y = f(gate) * up, in the layout of gate."""
    y = torch.empty_like(gate)
    run(key, "gated", (gate, up), (y,))
    return y


def gated_backward(grad: Tensor, gate: Tensor, up: Tensor, key: str) -> tuple[Tensor, Tensor]:
    """(d_gate, d_up), both in the layout of gate."""
    d_gate, d_up = torch.empty_like(gate), torch.empty_like(gate)
    run(key, "gated_backward", (grad, gate, up), (d_gate, d_up))
    return d_gate, d_up


def halves(x: Tensor, interleaved: bool) -> tuple[Tensor, Tensor]:
    """Views of gate and up in a packed tensor, by one operator each: its gradient joins the two without adding zeros."""
    h = x.shape[-1] // 2
    gate, up = x.view(*x.shape[:-1], h, 2).unbind(-1) if interleaved else x.split([h, h], -1)
    return gate, up


def packed(x: Tensor, key: str, interleaved: bool) -> Tensor:
    """y = f(gate) * up of [..., 2h] in one tensor, in the layout of gate."""
    gate, up = halves(x, interleaved)
    y = torch.empty_like(gate)
    if interleaved and x.is_cuda and x.numel():
        run(key, "gated", (_words(x),), (y,), interleaved=True)
    else:
        run(key, "gated", (gate, up), (y,))
    return y


def packed_backward(grad: Tensor, x: Tensor, key: str, interleaved: bool) -> Tensor:
    """The gradient of :func:`packed`: one contiguous [..., 2h]."""
    dx = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if interleaved and x.is_cuda and x.numel():
        run(key, "gated_backward", (grad, _words(x)), (_words(dx),), interleaved=True)
    else:
        run(key, "gated_backward", (grad, *halves(x, interleaved)), halves(dx, interleaved))
    return dx


def _words(x: Tensor) -> Tensor:
    """[..., 2h] of 16 bits as [..., h] of 32 bits; a copy where a pair is not one aligned word."""
    steps_even = all(s % 2 == 0 for s in x.stride()[:-1])
    if x.stride(-1) != 1 or not steps_even or x.storage_offset() % 2 or x.data_ptr() % 4:
        x = x.clone(memory_format=torch.contiguous_format)
    return x.view(torch.int32)


def run(key: str, kind: str, inputs: Sequence[Tensor], outputs: Sequence[Tensor], *, interleaved: bool = False) -> None:
    """Fill the outputs. All tensors have one shape; outputs are dense and made for this call."""
    first = outputs[0]
    n = first.numel()
    if n == 0:
        return
    if not first.is_cuda:
        for out, result in zip(outputs, twin.run(operation(key, kind), inputs), strict=True):
            out.copy_(result)
        return
    tensors = (*inputs, *outputs)
    index = first.get_device()
    elements, _ = tiling(key, kind)
    addresses, unaligned = [], 0
    for t in tensors:
        if not t.is_contiguous():
            break
        addresses.append(t.data_ptr())
        unaligned |= addresses[-1]
    else:
        _start(key, kind, interleaved, index, (), not unaligned & 15, -(-n // elements), [*addresses, n])
        return
    walk = layout.plan(inputs, outputs)
    addresses = [t.data_ptr() for t in walk.tensors]
    sizes = [walk.columns] if walk.flat else [walk.rows, walk.columns, *_row_steps(walk.steps, len(outputs))]
    _start(key, kind, interleaved, index, walk.tile(elements), walk.aligned, walk.blocks(elements), addresses + sizes)


def _row_steps(steps: Sequence[int], outputs: int) -> list[int]:
    """The kernel's five steps: three inputs and two outputs, 0 for those that it lacks."""
    inputs = len(steps) - outputs
    return [*steps[:inputs], *[0] * (3 - inputs), *steps[inputs:], *[0] * (2 - outputs)]


def _start(key: str, kind: str, interleaved: bool, index: int, tile: tuple[int, ...], aligned: bool, blocks: int,
           arguments: list[int]) -> None:  # fmt: skip
    chosen = (key, kind, interleaved, tile, aligned, index)
    loaded = _kernels.get(chosen)
    if loaded is None:
        loaded = _kernels[chosen] = kernel(Variant(key, kind, interleaved, tile, aligned), index)
    if index == _current_device():  # type: ignore[misc]
        launch(loaded, blocks, _current_stream(index), arguments)  # type: ignore[misc]
    else:
        with torch.cuda.device(index):
            launch(loaded, blocks, _current_stream(index), arguments)  # type: ignore[misc]
