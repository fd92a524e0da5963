"""FlashAttention-4's SM90 kernels with the arithmetic on scores replaced: what is ours between its two products.

A :class:`Hook` is passed where a ``score_mod`` would be, so its digest is in the compile cache's key. While a kernel that has
one is traced, its methods stand in for those of FlashAttention-4; kernels without one are not touched.
"""

from __future__ import annotations

import hashlib
import inspect
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from cutlass import Float32, cute
from flash_attn.cute import flash_fwd_sm90, interface, utils
from flash_attn.cute.flash_bwd_sm90 import FlashAttentionBackwardSm90
from flash_attn.cute.flash_fwd_sm90 import FlashAttentionForwardSm90
from flash_attn.cute.softmax import Softmax, SoftmaxSm100

from polyfma.attention.fa4.edits import edited
from polyfma.attention.fa4.here import here
from polyfma.attention.fa4.sm100 import ForwardSm100
from polyfma.attention.fa4.versions import TESTED
from polyfma.emit import lowering

_lock = threading.RLock()


@cache
def _sources() -> str:
    """A hash of what emits a hook's code: FlashAttention-4 may keep kernels on disk, under its own sources and a hook's digest."""
    files = [*sorted(Path(__file__).parent.glob("*.py")), Path(lowering.__file__)]
    return hashlib.sha256(b"".join(f.read_bytes() for f in files)).hexdigest()[:16]


class Hook:
    """Arithmetic on an accumulator of raw scores q k^T, in place of what FlashAttention-4 does to them.

    ``digest`` names all that the compiled kernel depends on. Methods run while CuTe traces a kernel.
    """

    def __init__(self, digest: str) -> None:
        self.__cute_hash__ = f"polyfma:{_sources()}:{type(self).__name__}:{digest}"
        self.masked = False  # whether the tile in hand is masked after scores()

    def __repr__(self) -> str:
        return self.__cute_hash__

    def __call__(self, *_: Any, **__: Any) -> Any:
        raise TypeError("a hook is not called; it needs the kernels of polyfma.attention.fa4.hooks")

    def scores(self, acc: cute.Tensor, scale: Float32, scalars: tuple[Float32, ...]) -> None:
        """Changes raw scores before the mask; ``scale`` is softmax_scale. Forward and backward."""

    def softmax(self, scale_log2: Float32, rows: int, scale: Float32) -> Softmax:
        """The object that makes weights of what scores() left, in the forward pass."""
        return plain_softmax(Softmax, scale_log2 * scale, rows)

    def softmax_sm100(self, scale_log2: Float32, **options: Any) -> Any:
        """:meth:`softmax` of the SM100 kernel."""
        return SoftmaxSm100.create(scale_log2 * options["softmax_scale"], **options)

    def convert(self, plain: Callable[..., Any]) -> Callable[..., Any]:
        """What turns weights into the second product's operand."""
        return plain

    def scale_log2(self, plain: Float32, scale: Float32) -> Float32:
        """Backward: what multiplies a score before its log-sum-exp is taken off."""
        return plain * scale

    def gradient(self, acc: cute.Tensor) -> None:
        """Backward: multiplies the gradient of a changed score, so that it becomes that of the scaled one."""


def plain_softmax(kind: type[Softmax], scale_log2: Float32, rows: int, **fields: Any) -> Softmax:
    """A Softmax or a subclass of it with its registers."""
    registers = [cute.make_rmem_tensor(rows, Float32) for _ in range(2)]
    return kind(scale_log2, rows, *registers, arch=90, softmax_scale=None, **fields)


class Forward(FlashAttentionForwardSm90):
    """The forward kernel of a hook."""

    def mma(self, *args: Any, **kwargs: Any) -> Any:
        hook = self.score_mod
        plain = flash_fwd_sm90.Softmax, utils.cvt_f16

        def create(scale_log2: Float32, num_rows: int, arch: int = 90, softmax_scale: Float32 | None = None) -> Softmax:
            return hook.softmax(scale_log2, num_rows, softmax_scale)

        class Bound(plain[0]):
            pass

        Bound.create = staticmethod(here(create, plain[0].create))
        flash_fwd_sm90.Softmax, utils.cvt_f16 = Bound, here(hook.convert(plain[1]), plain[1])
        try:
            return super().mma(*args, **kwargs)
        finally:
            flash_fwd_sm90.Softmax, utils.cvt_f16 = plain

    def apply_score_mod(self, thr_mma_qk: Any, batch_idx: Any, head_idx: Any, m_block: Any, acc_S: cute.Tensor, n_block: Any,
                        softmax_scale: Float32, seqlen: Any, aux_data: Any = None, fastdiv_mods: Any = None) -> None:  # fmt: skip
        self.score_mod.scores(acc_S, softmax_scale, _scalars(aux_data))

    def first_half_block_overlap(self, *args: Any, **kwargs: Any) -> Any:
        self.score_mod.masked = True
        return super().first_half_block_overlap(*args, **kwargs)

    def mma_one_n_block(self, *args: Any, mask_fn: Any = None, **kwargs: Any) -> Any:
        self.score_mod.masked = mask_fn is not None
        return super().mma_one_n_block(*args, mask_fn=mask_fn, **kwargs)

    def mma_one_n_block_intrawg_overlap(self, *args: Any, mask_fn: Any = None, **kwargs: Any) -> Any:
        self.score_mod.masked = mask_fn is not None
        return super().mma_one_n_block_intrawg_overlap(*args, mask_fn=mask_fn, **kwargs)


class Backward(FlashAttentionBackwardSm90):
    """The backward kernel of a hook that changes scores before an ordinary softmax."""

    def apply_score_mod(self, acc_S: cute.Tensor, *args: Any, softmax_scale: Float32, aux_data: Any = None, **kwargs: Any) -> None:
        self.score_mod.scores(acc_S, softmax_scale, _scalars(aux_data))

    def apply_score_mod_bwd(self, grad_tensor: cute.Tensor, *args: Any, **kwargs: Any) -> None:
        self.score_mod.gradient(grad_tensor)

    def mma(self, *args: Any, **kwargs: Any) -> Any:
        self._scale = _signature().bind(self, *args, **kwargs).arguments["softmax_scale"]
        return super().mma(*args, **kwargs)

    def mma_one_m_block(self, *args: Any, softmax_scale_log2: Float32, mask_fn: Any = None, **kwargs: Any) -> Any:
        self.score_mod.masked = mask_fn is not None
        scale_log2 = self.score_mod.scale_log2(softmax_scale_log2, self._scale)
        return self._one_m_block(*args, softmax_scale_log2=scale_log2, mask_fn=mask_fn, **kwargs)

    def _one_m_block(self, *args: Any, **kwargs: Any) -> Any:
        return super().mma_one_m_block(*args, **kwargs)


class WeightsBackward(Backward):
    """The backward kernel of a hook that makes the weights itself: one that is no softmax, or has another exponential.

    The hook has three methods more: argument(s, scale_log2, lse) is what it keeps of a score after the mask, weights(acc) then makes
    weights of all of them, and weighted(p, dp, dpsum) is the gradient of the changed score.
    """

    def _one_m_block(self, *args: Any, **kwargs: Any) -> Any:
        return _edited_m_block()(self, *args, **kwargs)


_M_BLOCK = "c2292d7d90f5c78ec5792ed5cab0081ad25bf6ce4c0e50e76e543ab6e08b25e0"
_EDITS = (
    ("""acc_S_mn[r, c] = cute.math.exp2(
                acc_S_mn[r, c] * softmax_scale_log2 - lse_val, fastmath=True
            )""", "acc_S_mn[r, c] = self.score_mod.argument(acc_S_mn[r, c], softmax_scale_log2, lse_val)"),
    ("    tLSErdPsum = copy_utils", "    self.score_mod.weights(acc_S)\n    tLSErdPsum = copy_utils"),
    ("acc_dP_mn[r, c] = acc_S_mn[r, c] * (acc_dP_mn[r, c] - dpsum_val)",
     "acc_dP_mn[r, c] = self.score_mod.weighted(acc_S_mn[r, c], acc_dP_mn[r, c], dpsum_val)"),
)  # fmt: skip


@cache
def _signature() -> inspect.Signature:
    return inspect.signature(FlashAttentionBackwardSm90.mma)


@cache
def _edited_m_block() -> Callable[..., Any]:
    tested = ", ".join(f"{package} {' or '.join(versions)}" for package, versions in TESTED.items())
    return edited(FlashAttentionBackwardSm90.mma_one_m_block, _M_BLOCK, _EDITS, tested)


def _scalars(aux_data: Any) -> tuple[Float32, ...]:
    return () if aux_data is None or aux_data.scalars is None else tuple(aux_data.scalars)


def _chooser(ours: type, plain: type) -> Callable[..., Any]:
    """Makes our kernel for a hook and FlashAttention-4's own for whatever else is compiled meanwhile."""
    return lambda *args, **kwargs: (ours if isinstance(kwargs.get("score_mod"), Hook) else plain)(*args, **kwargs)


@contextmanager
def kernels(backward: type[Backward] = Backward) -> Iterator[None]:
    """FlashAttention-4's functions compile our kernels for hooks inside; one thread at a time."""
    with _lock:
        ours = {"FlashAttentionForwardSm90": Forward, "FlashAttentionBackwardSm90": backward, "FlashAttentionForwardSm100": ForwardSm100}
        plain = {name: getattr(interface, name) for name in ours}
        try:
            for name, kernel in ours.items():
                setattr(interface, name, _chooser(kernel, plain[name]))
            yield
        finally:
            for name, kernel in plain.items():
                setattr(interface, name, kernel)

