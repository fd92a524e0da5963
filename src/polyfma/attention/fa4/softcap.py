"""softmax(cap tanh(s / cap)) inside FlashAttention-4's SM90 kernels, forward and backward.

Scores come raw (q k^T) and leave as exponents of 2. Where cap log2(e) is at most BOUND and weights are BF16, whose exponents
reach as far as fp32's, the softmax needs no row maximum and no rescaling of the output: 2^(c tanh(u) - SHIFT) neither
overflows nor vanishes. That is worth more than the choice of tanh. FP16 weights and wider caps keep the running maximum.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import cutlass
from cutlass import Float32, Int32, cute
from flash_attn.cute import utils
from flash_attn.cute.softmax import Softmax, SoftmaxSm100
from quack import layout_utils

from polyfma.attention.budget import rounded_scale
from polyfma.attention.fa4.hooks import Hook, plain_softmax
from polyfma.attention.fa4.pairs import both, narrow, packed, run, unary, widen
from polyfma.attention.mix import HARDWARE, Mix, scaled
from polyfma.program import Program

LOG2_E = math.log2(math.e)
BOUND = 80.0  # weights from 2^-(80 + SHIFT), normal in BF16, to 2^(80 - SHIFT), which leaves 2^63 for sums and values
SHIFT = 16.0


@dataclass
class BoundedSoftmax(Softmax):
    """Weights 2^x of exponents that are known to be bounded: no maximum, nothing to rescale until the end.

    In tiles with a mask the sum is of weights as BF16 has them, so that a row with one visible key gives it weight 1 exactly, as a
    running maximum does, and its gradient is 0. Every row with few keys has them there; elsewhere the roundings average out.
    """

    hook: cutlass.Constexpr = None

    @cute.jit
    def online_softmax(self, acc_S: cute.Tensor, is_first: cutlass.Constexpr[bool] = False, check_inf: cutlass.Constexpr[bool] = True) -> None:
        rows = layout_utils.reshape_acc_to_mn(acc_S)
        for r in cutlass.range_constexpr(cute.size(self.row_sum)):
            rows[r, None].store(cute.math.exp2(rows[r, None].load(), fastmath=True))
            if cutlass.const_expr(self.hook.masked):
                for i in cutlass.range_constexpr(cute.size(rows, mode=[1]) // 2):
                    rounded = widen(narrow(rows[r, 2 * i], rows[r, 2 * i + 1], "bf16"), "bf16")
                    rows[r, 2 * i], rows[r, 2 * i + 1] = rounded
            before = None if cutlass.const_expr(is_first) else self.row_sum[r]
            self.row_sum[r] = utils.fadd_reduce(rows[r, None].load(), before, arch=self.arch)
        return None  # no factor for the output

    def rescale_O(self, acc_O: cute.Tensor, row_scale: cute.Tensor | None) -> None:
        if row_scale is not None:
            super().rescale_O(acc_O, row_scale)

    def finalize(self, final_scale: Float32 = 1.0, sink_val: Any = None) -> cute.Tensor:
        self.row_max.fill(SHIFT / self.scale_log2)
        return super().finalize(final_scale, sink_val)


class Softcap(Hook):
    """``cap`` in the units of scaled scores; ``scale`` is softmax_scale, ``weights`` the format of the second product's operand.

    ``running_maximum`` keeps the online softmax where it is not needed, to measure what it costs.
    """

    def __init__(self, mix: Mix, cap: float, scale: float, weights: str, *, running_maximum: bool = False) -> None:
        self.mix = mix
        formats = [p.format for p in mix.packed]
        # 16-bit programs take scores times a scale that their format holds; the cap makes that good for all parts.
        self.unit, correction = rounded_scale(scale / cap, formats[0]) if formats else (scale / cap, 1.0)
        self.exponent = cap * correction * LOG2_E
        self.bounded = weights == "bf16" and self.exponent <= BOUND and not running_maximum
        super().__init__(f"{mix.digest}:{self.unit!r}:{self.exponent!r}:{self.bounded}")

    # -- forward -----------------------------------------------------------------------------------

    def scores(self, acc: cute.Tensor, scale: Float32, scalars: tuple[Float32, ...]) -> None:
        shift = SHIFT if self.bounded else 0.0
        for i in range(cute.size(acc) // 2):
            part, x = self.mix.part(i), (acc[2 * i], acc[2 * i + 1])
            if isinstance(part, Program) and part not in self.mix.packed:
                acc[2 * i], acc[2 * i + 1] = run(scaled(part, self.unit, self.exponent, -shift), "f32", *x)
            else:
                acc[2 * i], acc[2 * i + 1] = (t * self.exponent - shift for t in self._tanh(part, x))

    def _tanh(self, part: str | Program, x: tuple[Float32, Float32]) -> tuple[Float32, Float32]:
        if part == HARDWARE:
            return tuple(unary("tanh.approx.f32", v * self.unit) for v in x)  # type: ignore[return-value]
        return widen(self._packed_tanh(part, x), part.format)

    def _packed_tanh(self, program: Program, x: tuple[Float32, Float32]) -> Int32:
        u = packed("mul", program.format, narrow(*x, program.format), both(self.unit, program.format))
        return run(program, "packed", u)[0]

    def softmax(self, scale_log2: Float32, rows: int, scale: Float32) -> Softmax:
        if self.bounded:
            return plain_softmax(BoundedSoftmax, Float32(1.0), rows, hook=self)
        return plain_softmax(Softmax, Float32(1.0), rows)

    def softmax_sm100(self, scale_log2: Float32, **options: Any) -> Any:
        return SoftmaxSm100.create(Float32(1.0), **options)


class SoftcapBackward(Softcap):
    """The same scores, and the derivative 1 - t^2 of each kept until the gradient comes; 16-bit programs keep it packed, in half the registers."""

    def scores(self, acc: cute.Tensor, scale: Float32, scalars: tuple[Float32, ...]) -> None:
        self.slopes: list[Any] = []
        for i in range(cute.size(acc) // 2):
            part, x = self.mix.part(i), (acc[2 * i], acc[2 * i + 1])
            if part in self.mix.packed:
                t = self._packed_tanh(part, x)
                self.slopes.append((packed("fma", part.format, packed("neg", part.format, t), t, both(1.0, part.format)), part.format))
                y = widen(t, part.format)
            else:
                y = run(scaled(part, self.unit, 1.0), "f32", *x) if isinstance(part, Program) else self._tanh(part, x)
                self.slopes.append((y[0], y[1]))
            acc[2 * i], acc[2 * i + 1] = y

    def scale_log2(self, plain: Float32, scale: Float32) -> Float32:
        return Float32(self.exponent)

    def gradient(self, acc: cute.Tensor) -> None:
        for i, (first, second) in enumerate(self.slopes):
            slopes = widen(first, second) if isinstance(second, str) else (1.0 - first * first, 1.0 - second * second)
            acc[2 * i], acc[2 * i + 1] = acc[2 * i] * slopes[0], acc[2 * i + 1] * slopes[1]
