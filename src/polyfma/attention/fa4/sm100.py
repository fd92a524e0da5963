"""The hooks in FlashAttention-4's forward kernel for SM100: compiled and its machine code counted without such a GPU, never run.

Scores of one row lie in one thread's registers, so nothing of the hooks' pair arithmetic changes; weights go to tensor memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cutlass
from cutlass import Float32, Int32, cute
from flash_attn.cute import flash_fwd_sm100
from flash_attn.cute.flash_fwd_sm100 import FlashAttentionForwardSm100
from flash_attn.cute.softmax import SoftmaxSm100

from polyfma.attention.fa4.here import here


class ForwardSm100(FlashAttentionForwardSm100):
    """The forward kernel of a hook."""

    def softmax_loop(self, *args: Any, **kwargs: Any) -> Any:
        plain = flash_fwd_sm100.SoftmaxSm100

        class Bound(plain):
            pass

        Bound.create = staticmethod(here(self.score_mod.softmax_sm100, plain.create))
        flash_fwd_sm100.SoftmaxSm100 = Bound
        try:
            return super().softmax_loop(*args, **kwargs)
        finally:
            flash_fwd_sm100.SoftmaxSm100 = plain

    def apply_score_mod(self, tSrS_t2r: cute.Tensor, thr_tmem_load: Any, thr_mma_qk: Any, batch_idx: Any, head_idx: Any, m_block: Any,
                        n_block: Any, softmax: SoftmaxSm100, seqlen: Any, aux_data: Any = None, *_: Any, **__: Any) -> None:  # fmt: skip
        scalars = () if aux_data is None or aux_data.scalars is None else tuple(aux_data.scalars)
        self.score_mod.scores(tSrS_t2r, softmax.softmax_scale, scalars)


@dataclass
class SigmoidWeightsSm100(SoftmaxSm100):
    """Weights by the hook; no row needs a maximum, and its sum is what the output is divided by in the end."""

    hook: cutlass.Constexpr = None

    def update_row_max(self, acc_S_row: Any, is_first: int) -> tuple[Float32, Float32]:
        self.row_max[0] = Float32(0.0)
        return Float32(0.0), Float32(1.0)

    def scale_subtract_rowmax(self, acc_S_row: cute.Tensor, row_max: Float32) -> None:
        """Scores stay as they are: the hook scales them."""

    def apply_exp2_convert(self, acc_S_row: cute.Tensor, acc_S_row_converted: cute.Tensor, **_: Any) -> None:
        self.hook.weights_of(acc_S_row)
        pairs = cute.recast_tensor(acc_S_row_converted, Int32)
        for i, operand in enumerate(self.hook.operands):
            pairs[i] = operand()

    def update_row_sum(self, acc_S_row_exp: Any, row_scale: Float32, is_first: int = False) -> None:
        self.row_sum[0] = 1.0 / self.hook.weight_scale


def with_hook(kind: type[SoftmaxSm100], made: SoftmaxSm100, **fields: Any) -> SoftmaxSm100:
    """A subclass with the fields of a softmax that FlashAttention-4 made."""
    return kind(**vars(made), **fields)
