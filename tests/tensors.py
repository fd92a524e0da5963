"""What the tests of operators share: tensors as bit patterns, and the arithmetic of gated units written out in float64."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import polyfma as pf
from polyfma.ops.dtypes import DTYPES

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
UNARY = {
    "sigmoid": pf.ops.sigmoid,
    "tanh": pf.ops.tanh,
    "silu": pf.ops.silu,
    "silu-1.702": pf.ops.quick_gelu,
    "gelu": pf.ops.gelu,
    "gelu-tanh": lambda x, **given: pf.ops.gelu(x, approximate="tanh", **given),
    "softcap-50": lambda x, **given: pf.ops.softcap(x, 50.0, **given),
    "softcap-30": lambda x, **given: pf.ops.softcap(x, 30.0, **given),
}
GATED = {
    "silu": pf.ops.swiglu,
    "gelu": pf.ops.geglu,
    "gelu-tanh": lambda *tensors, **given: pf.ops.geglu(*tensors, approximate="tanh", **given),
    "silu-1.702": pf.ops.clamped_swiglu,
}


def from_bits(bits, dtype, device="cpu"):
    """A tensor of these uint16 patterns."""
    return torch.from_numpy(np.ascontiguousarray(bits).view(np.int16)).view(dtype).to(device)


def to_bits(tensor):
    return tensor.detach().cpu().contiguous().view(torch.int16).numpy().view(np.uint16)


def every_input(fmt, device="cpu"):
    return from_bits(np.arange(65536, dtype=np.uint16), DTYPES[fmt], device)


def random_bits(fmt, n, seed, std=2.0):
    f = pf.BF16 if fmt == "bf16" else pf.FP16
    return f.encode(np.random.default_rng(seed).normal(0, std, n)), f


def product(f, a, b):
    """Two bit patterns multiplied: exact in float64, rounded once; every NaN is the canonical one."""
    with np.errstate(invalid="ignore"):
        result = f.encode(f.decode(a) * f.decode(b))
    return np.where(f.is_nan(result), f.dtype.type(f.nan_bits), result)


def assert_bits(got, want, what=""):
    differ = np.flatnonzero(got != want)
    assert not differ.size, f"{what}: {differ.size} differ, first at {differ[0]}: {got.flat[differ[0]]:#06x}, want {want.flat[differ[0]]:#06x}"
