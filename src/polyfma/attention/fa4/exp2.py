"""Programs for 2^f inside the softmax of FlashAttention-4's SM90 kernels, beside the special-function unit.

The published routing: of the pairs of a row every third goes through software forward, in tiles that no mask touches and but for the
row's last fragment, and every eighth backward, where one piece of code serves all tiles; the others through ``ex2.approx``. Software is Cody-Waite: x = n + f with
n = floor(x), a program for 2^f on 0 <= f < 1, and n added to its exponent. x = -127, to which a masked score is raised, gives exactly 0.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import cutlass
from cutlass import Float32, cute
from flash_attn.cute import utils
from flash_attn.cute.softmax import Softmax
from quack import layout_utils

from polyfma.attention.fa4.hooks import Hook, plain_softmax
from polyfma.attention.fa4.pairs import assembly, run, unary
from polyfma.attention.mix import HARDWARE, in_fp32
from polyfma.program import Program

LOG2_E = math.log2(math.e)
PERIOD = {"forward": 3, "backward": 8}  # one pair of so many is computed in software
LAST_PAIRS = 2  # of a row: the fragment that the next instruction waits for
_MAGIC = float(2**23 + 2**22)  # adding it leaves floor(x) in the lowest bits
_LEAST = -127.0


def software_exp2(program: Program, x: tuple[Float32, Float32], *, fp32: bool) -> tuple[Float32, Float32]:
    """2^x of two x <= 0 by a program for the fraction; ``fp32`` computes it there, else in the program's own packed format."""
    clamped = tuple(cute.arch.fmax(v, Float32(_LEAST)) for v in x)
    floors = tuple(assembly("add.rm.ftz.f32 $0, $1, $2;", "=f,f,f", (v, Float32(_MAGIC)), ("f32",))[0] for v in clamped)
    fractions = tuple(v - (n - _MAGIC) for v, n in zip(clamped, floors, strict=True))
    cores = run(in_fp32(program) if fp32 else program, "f32", *fractions)
    text = "{ .reg .b32 n, p; mov.b32 n, $1; mov.b32 p, $2; shl.b32 n, n, 23; add.s32 p, p, n; mov.b32 $0, p; }"
    return tuple(assembly(text, "=f,f,f", (n, p), ("f32",))[0] for n, p in zip(floors, cores, strict=True))  # type: ignore[return-value]


@dataclass
class RoutedSoftmax(Softmax):
    """The online softmax with its exponentials by the hook."""

    hook: cutlass.Constexpr = None

    @cute.jit
    def online_softmax(self, acc_S: cute.Tensor, is_first: cutlass.Constexpr[bool] = False, check_inf: cutlass.Constexpr[bool] = True) -> cute.Tensor:
        rows = layout_utils.reshape_acc_to_mn(acc_S)
        factors = cute.make_fragment_like(self.row_max, Float32)
        for r in cutlass.range_constexpr(cute.size(self.row_max)):
            before = self.row_max[r]
            top = utils.fmax_reduce(rows[r, None].load(), None if cutlass.const_expr(is_first) else before, arch=self.arch)
            top = cute.arch.warp_reduction_max(top, threads_in_group=4)
            self.row_max[r] = top
            safe = 0.0 if top == -Float32.inf else top  # a row that has seen no key
            self.hook.exponentials(rows, r, self.scale_log2, safe * self.scale_log2)
            factors[r] = 1.0 if cutlass.const_expr(is_first) else cute.math.exp2((before - safe) * self.scale_log2, fastmath=True)
            carried = None if cutlass.const_expr(is_first) else self.row_sum[r] * factors[r]
            self.row_sum[r] = utils.fadd_reduce(rows[r, None].load(), carried, arch=self.arch)
        return factors


class Exp2(Hook):
    """``part``: HARDWARE or a program for the fraction of exp2, computed in fp32 or in its own format."""

    direction = "forward"

    def __init__(self, part: str | Program, *, fp32: bool = False) -> None:
        self.part, self.fp32 = part, fp32
        super().__init__(f"{part if isinstance(part, str) else part.digest}:{fp32}")

    def softmax(self, scale_log2: Float32, rows: int, scale: Float32) -> Softmax:
        return plain_softmax(RoutedSoftmax, scale_log2 * scale, rows, hook=self)

    def exponentials(self, rows: cute.Tensor, r: int, scale: Float32, shift: Float32) -> None:
        """2^(x scale - shift) of one row, in place."""
        pairs = cute.size(rows, mode=[1]) // 2
        for i in range(pairs):
            x = tuple(rows[r, 2 * i + j] * scale - shift for j in (0, 1))
            y = self.pair(x, i % PERIOD[self.direction] == 1 and i < pairs - LAST_PAIRS and not self.masked)
            rows[r, 2 * i], rows[r, 2 * i + 1] = y

    def pair(self, x: Any, routed: bool) -> Any:
        if self.part == HARDWARE or not routed:
            return tuple(unary("ex2.approx.ftz.f32", v) for v in x)
        return software_exp2(self.part, x, fp32=self.fp32)  # type: ignore[arg-type]


class Exp2Backward(Exp2):
    """The weights again, from scores and their log-sum-exp."""

    direction = "backward"

    def argument(self, score: Float32, scale_log2: Float32, lse: Float32) -> Float32:
        return score * scale_log2 - lse

    def weights(self, acc: cute.Tensor) -> None:
        for i in range(cute.size(acc) // 2):
            y = self.pair((acc[2 * i], acc[2 * i + 1]), i % PERIOD[self.direction] == 1)
            acc[2 * i], acc[2 * i + 1] = y

    def weighted(self, weight: Float32, dp: Float32, dpsum: Float32) -> Float32:
        return weight * (dp - dpsum)
