"""The Triton kernels that carry an operation's PTX block: a flat one, and one over rows with a stride each.

Both work in tiles (:func:`polyfma.ops.operation.tiling`) in which a thread moves 16-byte vectors. Whole tiles are accessed without
a mask; the last one masked, with the same block: equal inputs give equal bits at every index. Offsets are 64 bits wide.
Unused pointers are the constant None. A ``wide`` pointer holds a 32-bit word of two 16-bit values (interleaved gate and up).
"""

import triton
import triton.language as tl


@triton.jit
def _load(pointer, offsets, mask):
    if pointer is None:
        value = None
    elif mask is None:
        value = tl.load(pointer + offsets)
    else:
        value = tl.load(pointer + offsets, mask=mask, other=0)
    return value


@triton.jit
def _store(pointer, offsets, value, mask):
    if mask is None:
        tl.store(pointer + offsets, value)
    else:
        tl.store(pointer + offsets, value, mask=mask)


@triton.jit
def _apply(a, b, c, y, z, at_a, at_b, at_c, at_y, at_z, mask, ASM: tl.constexpr, CONSTRAINTS: tl.constexpr):
    va = _load(a, at_a, mask)
    vb = _load(b, at_b, mask)
    vc = _load(c, at_c, mask)
    if z is not None:
        vy, vz = tl.inline_asm_elementwise(ASM, CONSTRAINTS, [va, vb, vc], dtype=(y.dtype.element_ty, z.dtype.element_ty), is_pure=True, pack=2)
        _store(y, at_y, vy, mask)
        _store(z, at_z, vz, mask)
    else:
        if c is not None:
            vy = tl.inline_asm_elementwise(ASM, CONSTRAINTS, [va, vb, vc], dtype=y.dtype.element_ty, is_pure=True, pack=2)
        elif b is not None:
            vy = tl.inline_asm_elementwise(ASM, CONSTRAINTS, [va, vb], dtype=y.dtype.element_ty, is_pure=True, pack=2)
        else:
            vy = tl.inline_asm_elementwise(ASM, CONSTRAINTS, [va], dtype=y.dtype.element_ty, is_pure=True, pack=2)
        _store(y, at_y, vy, mask)


@triton.jit
def flat(a, b, c, y, z, n, ASM: tl.constexpr, CONSTRAINTS: tl.constexpr, BLOCK: tl.constexpr):
    """All tensors are one run of ``n`` elements in the same order."""
    start = tl.program_id(0).to(tl.int64) * BLOCK
    at = start + tl.arange(0, BLOCK)
    if start + BLOCK <= n:
        _apply(a, b, c, y, z, at, at, at, at, at, None, ASM, CONSTRAINTS)
    else:
        _apply(a, b, c, y, z, at, at, at, at, at, at < n, ASM, CONSTRAINTS)


@triton.jit
def by_rows(a, b, c, y, z, rows, columns, step_a, step_b, step_c, step_y, step_z,
            ASM: tl.constexpr, CONSTRAINTS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):  # fmt: skip
    """``rows`` runs of ``columns`` elements; row i of a tensor begins at i times its step."""
    tiles = tl.cdiv(columns, COLUMNS)
    pid = tl.program_id(0).to(tl.int64)
    row = (pid // tiles) * ROWS + tl.arange(0, ROWS)[:, None]
    column = (pid % tiles) * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    mask = (row < rows) & (column < columns)
    _apply(a, b, c, y, z, row * step_a + column, row * step_b + column, row * step_c + column,
           row * step_y + column, row * step_z + column, mask, ASM, CONSTRAINTS)  # fmt: skip
