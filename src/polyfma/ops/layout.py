"""How a kernel walks tensors of one shape: as one run, or as rows with a step, without copying what a row view can reach."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

_VECTOR = 8  # 16-bit elements in 16 bytes, what a thread moves at a time


@dataclass(frozen=True)
class Walk:
    """``tensors`` in order (inputs, outputs), ``rows`` runs of ``columns`` elements, ``steps`` from row to row in elements."""

    tensors: tuple[Tensor, ...]
    rows: int
    columns: int
    steps: tuple[int, ...]

    @property
    def flat(self) -> bool:
        return self.rows == 1

    @property
    def aligned(self) -> bool:
        addresses = all(t.data_ptr() % 16 == 0 for t in self.tensors)
        return addresses and (self.flat or (self.columns % _VECTOR == 0 and all(step % _VECTOR == 0 for step in self.steps)))

    def tile(self, elements: int) -> tuple[int, ...]:
        """(rows, columns) of a tile of so many elements, powers of two, wide enough for a row where one fits; () for one run."""
        if self.flat:
            return ()
        columns = min(elements, 1 << max(self.columns - 1, 0).bit_length())
        return elements // columns, columns

    def blocks(self, elements: int) -> int:
        """How many tiles cover the tensors."""
        if self.flat:
            return -(-self.columns // elements)
        rows, columns = self.tile(elements)
        return -(-self.rows // rows) * -(-self.columns // columns)


def plan(inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> Walk:
    """The walk over inputs and freshly made dense outputs of one shape.

    An input that is no row view in the outputs' order (a broadcast last dimension, a permuted one) is copied into that order.
    """
    tensors = [*inputs, *outputs]
    dims = _collapsed(tensors)
    if not _walkable(dims):
        tensors = [_reordered(t, outputs[0]) if not _walkable(_collapsed([t, outputs[0]])) else t for t in inputs] + list(outputs)
        dims = _collapsed(tensors)
    if not _walkable(dims):  # each is a row view, but of rows of different lengths
        tensors = [_reordered(t, outputs[0]) for t in inputs] + list(outputs)
        dims = _collapsed(tensors)
    rows, steps = dims[0] if len(dims) == 2 else (1, (0,) * len(tensors))
    return Walk(tuple(tensors), rows, dims[-1][0], steps)


def _collapsed(tensors: Sequence[Tensor]) -> list[tuple[int, tuple[int, ...]]]:
    """(size, stride of each tensor) of the fewest loops, outermost first, in the memory order of the last tensor.

    The innermost has stride 1 in every tensor; where none has, it has size 1.
    """
    shape = tensors[-1].shape
    order = sorted((d for d in range(len(shape)) if shape[d] != 1), key=lambda d: tensors[-1].stride(d), reverse=True)
    dims: list[tuple[int, tuple[int, ...]]] = []
    for d in order:
        strides = tuple(t.stride(d) for t in tensors)
        if dims and dims[-1][1] == tuple(s * shape[d] for s in strides):
            dims[-1] = (dims[-1][0] * shape[d], strides)
        else:
            dims.append((shape[d], strides))
    ones = (1,) * len(tensors)
    return dims if dims and dims[-1][1] == ones else [*dims, (1, ones)]


def _walkable(dims: list[tuple[int, tuple[int, ...]]]) -> bool:
    return len(dims) <= 2


def _reordered(tensor: Tensor, like: Tensor) -> Tensor:
    return torch.empty_like(like, dtype=tensor.dtype).copy_(tensor)
