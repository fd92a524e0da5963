"""weight_scale sigmoid(s + bias) in place of the softmax, inside FlashAttention-4's SM90 kernels.

The bias is added in fp32 before anything is rounded, and is a scalar of the call: a new length compiles nothing. No row needs
a maximum or a sum. Weights of 16-bit programs go into the second product as they are; the last instruction of each pair, or its
conversion, stands after the wait for the product before, where the compiler may write that operand.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import cutlass
from cutlass import Float32, Int32, cute
from flash_attn.cute.softmax import Softmax, SoftmaxSm100

from polyfma.attention.fa4.hooks import Hook, plain_softmax
from polyfma.attention.fa4.pairs import finish, head_of, narrow, run, unary, widen
from polyfma.attention.fa4.sm100 import SigmoidWeightsSm100, with_hook
from polyfma.attention.mix import HARDWARE, Mix, value_of
from polyfma.program import Program

LOG2_E = math.log2(math.e)


@dataclass
class SigmoidWeights(Softmax):
    """What the kernel takes for its softmax: weights by the hook, sums of nothing."""

    hook: cutlass.Constexpr = None

    def online_softmax(self, acc_S: cute.Tensor, is_first: bool = False, check_inf: bool = True) -> None:
        self.hook.weights_of(acc_S)

    def rescale_O(self, acc_O: cute.Tensor, row_scale: cute.Tensor | None) -> None:
        if row_scale is not None:
            super().rescale_O(acc_O, row_scale)

    def finalize(self, final_scale: Float32 = 1.0, sink_val: Any = None) -> cute.Tensor:
        """Rows have no log-sum-exp: 0 is stored for it. The output is scaled once."""
        self.row_sum.fill(0.0)
        self.row_max.fill(self.hook.weight_scale)
        return self.row_max


class Sigmoid(Hook):
    """``weights`` is the format of the second product's operand. Scalars of a call: (bias, weight_scale)."""

    def __init__(self, mix: Mix, weights: str) -> None:
        self.mix, self.operand = mix, weights
        super().__init__(f"{mix.digest}:{weights}")

    def scores(self, acc: cute.Tensor, scale: Float32, scalars: tuple[Float32, ...]) -> None:
        self.scale, (self.bias, self.weight_scale) = scale, scalars

    def softmax(self, scale_log2: Float32, rows: int, scale: Float32) -> Softmax:
        return plain_softmax(SigmoidWeights, Float32(1.0), rows, hook=self)

    def softmax_sm100(self, scale_log2: Float32, **options: Any) -> Any:
        return with_hook(SigmoidWeightsSm100, SoftmaxSm100.create(Float32(1.0), **options), hook=self)

    def weights_of(self, acc: cute.Tensor) -> None:
        """Weights of masked scores, in fp32 in the accumulator and, packed, when the second product may take them."""
        self.operands: list[Callable[[], Int32]] = []
        for i in range(cute.size(acc) // 2):
            part, x = self.mix.part(i), (acc[2 * i], acc[2 * i + 1])
            if isinstance(part, Program):
                shifted = tuple(v * self.scale + self.bias for v in x)
                value = value_of(part)
                if all(op.format == part.format == self.operand for op in value.ops):
                    values = run(head_of(value), "f32-packed", *shifted)
                    self.operands.append(lambda value=value, values=values: finish(value, values))
                    acc[2 * i], acc[2 * i + 1] = widen(run(value, "f32-packed", *shifted)[0], part.format)
                    continue
                acc[2 * i], acc[2 * i + 1] = run(value, "f32", *shifted)
            else:
                acc[2 * i], acc[2 * i + 1] = (self.exact(part, v) for v in x)
            self.operands.append(lambda i=i: narrow(acc[2 * i], acc[2 * i + 1], self.operand, in_place=True))

    def exact(self, part: str, x: Float32) -> Float32:
        """sigmoid(x scale + bias) in fp32. The hardware's tanh is exact enough near -1 for weights far below 1."""
        if part == HARDWARE:
            return unary("tanh.approx.f32", x * (self.scale * 0.5) + self.bias * 0.5) * 0.5 + 0.5
        return unary("rcp.approx.ftz.f32", unary("ex2.approx.ftz.f32", x * (self.scale * -LOG2_E) - self.bias * LOG2_E) + 1.0)

    def convert(self, plain: Callable[..., Any]) -> Callable[..., Any]:
        def operands(src: cute.Tensor, dst: cute.Tensor) -> None:
            pairs = cute.recast_tensor(dst, Int32)
            for i, operand in enumerate(self.operands):
                pairs[i] = operand()

        return operands


class SigmoidBackward(Sigmoid):
    """Weights and their derivative w (1 - w), or that of a program with an output of its own for it (``derivative``)."""

    def argument(self, score: Float32, scale_log2: Float32, lse: Float32) -> Float32:
        return score

    def weights(self, acc: cute.Tensor) -> None:
        self.slopes: list[tuple[Float32, Float32]] = []
        for i in range(cute.size(acc) // 2):
            part, x = self.mix.part(i), (acc[2 * i], acc[2 * i + 1])
            w, slopes = self._with_slopes(part, x)
            self.slopes.append(tuple(s * self.weight_scale for s in slopes))
            acc[2 * i], acc[2 * i + 1] = (v * self.weight_scale for v in w)

    def _with_slopes(self, part: str | Program, x: tuple[Float32, Float32]) -> tuple[Any, Any]:
        if not isinstance(part, Program):
            w = tuple(self.exact(part, v) for v in x)
        else:
            values = run(part, "f32", *(v * self.scale + self.bias for v in x))
            if "derivative" in part.outputs:
                by_output = dict(zip(part.outputs, (values[:2], values[2:]), strict=True))
                return by_output["value"], by_output["derivative"]
            w = values
        return w, tuple(v - v * v for v in w)

    def weighted(self, weight: Float32, dp: Float32, dpsum: Float32) -> Float32:
        return dp  # gradient() multiplies by the slope

    def gradient(self, acc: cute.Tensor) -> None:
        for i, slopes in enumerate(self.slopes):
            acc[2 * i], acc[2 * i + 1] = acc[2 * i] * slopes[0], acc[2 * i + 1] * slopes[1]
