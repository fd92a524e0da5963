"""PyTorch operators on catalogue programs: activations and gated units with their gradients, in BF16 and FP16.

::

    y = pf.ops.silu(x)                                  # the default program of x's dtype
    y = pf.ops.swiglu(gate, up)                         # silu(gate) * up in one pass; backward makes both gradients in one
    y = pf.ops.swiglu(gate_up)                          # one [..., 2h] tensor: halves, or interleaved=True
    y = pf.ops.gelu(x, program="exact")                 # fp32 arithmetic, rounded once
    y = pf.ops.tanh(x, program="tanh.forward.bf16.d4", backward="matched")

Every operator takes ``program=`` and ``backward=`` (:func:`polyfma.ops.choice.choose` says what they may be). CUDA tensors of
compute capability 8.0 and later run in a Triton kernel at the speed of a copy; CPU tensors get the same bits from a table.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from polyfma.catalog import load
from polyfma.errors import DtypeError, MissingToolError, PolyfmaError
from polyfma.program import Program

try:
    import torch
except ImportError as error:
    raise MissingToolError("polyfma.ops needs torch, which is not installed; pip install 'polyfma[torch]'") from error

from polyfma.ops.versions import TESTED_TORCH

try:
    from polyfma.ops import dispatcher, eager, execute
except (ImportError, AttributeError) as error:  # of the private names that a direct call needs
    raise MissingToolError(f"torch {torch.__version__} is not inside as polyfma.ops knows it ({error}); tested: torch {TESTED_TORCH}") from error

from polyfma.ops.choice import RELU, choose, function_with, is_file, register
from polyfma.ops.dtypes import FORMATS

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["clamped_swiglu", "geglu", "gelu", "quick_gelu", "register", "reglu", "sigmoid", "silu", "softcap", "swiglu", "tanh"]
_Given = str | Path | Program | None
_Fixed = str | Program | None
_LEAST, _MOST = 1e-2, 1e5  # of a cap, an alpha or a limit: what the exact sequences are tested with
_any_autocast = torch._C._is_any_autocast_enabled


def sigmoid(x: Tensor, *, program: _Given = None, backward: _Given = None) -> Tensor:
    """1/(1 + exp(-x)) of a BF16 or FP16 tensor of any shape; the result has its dtype and layout."""
    return _unary("sigmoid", x, program, backward)


def tanh(x: Tensor, *, program: _Given = None, backward: _Given = None) -> Tensor:
    """tanh(x) of a BF16 or FP16 tensor of any shape."""
    return _unary("tanh", x, program, backward)


def silu(x: Tensor, *, program: _Given = None, backward: _Given = None) -> Tensor:
    """x/(1 + exp(-x)) of a BF16 or FP16 tensor of any shape. At -inf it is 0, where torch gives NaN."""
    return _unary("silu", x, program, backward)


def quick_gelu(x: Tensor, *, program: _Given = None, backward: _Given = None) -> Tensor:
    """x * sigmoid(1.702 x), the "quick GELU" of CLIP, of a BF16 or FP16 tensor of any shape."""
    return _unary("silu-1.702", x, program, backward)


def gelu(x: Tensor, *, approximate: str = "none", program: _Given = None, backward: _Given = None) -> Tensor:
    """x Phi(x), or with ``approximate="tanh"`` its tanh form, of a BF16 or FP16 tensor. At -inf it is 0, where torch gives NaN."""
    return _unary(check_approximate(approximate), x, program, backward)


def softcap(x: Tensor, cap: float, *, program: _Given = None, backward: _Given = None) -> Tensor:
    """cap * tanh(x / cap) for a positive number ``cap``."""
    return _unary("softcap", x, program, backward, check_number("cap", cap))


def swiglu(gate: Tensor, up: Tensor | None = None, *, interleaved: bool = False, program: _Given = None,
           backward: _Given = None) -> Tensor:  # fmt: skip
    """silu(gate) * up; with one argument, of a packed [..., 2h] tensor: gate then up, or alternating with ``interleaved``."""
    return _gated("silu", gate, up, interleaved, program, backward)


def geglu(gate: Tensor, up: Tensor | None = None, *, approximate: str = "none", interleaved: bool = False, program: _Given = None,
          backward: _Given = None) -> Tensor:  # fmt: skip
    """gelu(gate) * up, arguments as :func:`swiglu`; ``approximate`` as :func:`gelu`."""
    return _gated(check_approximate(approximate), gate, up, interleaved, program, backward)


def reglu(gate: Tensor, up: Tensor | None = None, *, interleaved: bool = False) -> Tensor:
    """max(gate, 0) * up, arguments as :func:`swiglu`. It needs no program: relu is exact."""
    return _gated(RELU, gate, up, interleaved, None, None)


def clamped_swiglu(gate: Tensor, up: Tensor | None = None, *, alpha: float = 1.702, limit: float = 7.0, interleaved: bool = False,
                   program: _Given = None, backward: _Given = None) -> Tensor:  # fmt: skip
    """GPT-OSS's unit: g * sigmoid(alpha g) * (u + 1) with g = min(gate, limit) and u = clamp(up, -limit, limit).

    An ``alpha`` other than 1.702 and 1 has no default program: pass ``program="exact"`` or one of your own. Its packed tensors are interleaved: pass ``interleaved=True``. Where the clamp cuts off, the gradient is 0.
    """
    return _gated("silu", gate, up, interleaved, program, backward, check_number("alpha", alpha), check_number("limit", limit))


# -- from the arguments to an operator -----------------------------------------------------------------------


def check_approximate(approximate: str) -> str:
    """The function's name. Raises PolyfmaError for another word."""
    if approximate not in ("none", "tanh"):
        raise PolyfmaError(f"approximate {approximate!r} must be 'none' (exact GELU) or 'tanh'")
    return "gelu" if approximate == "none" else "gelu-tanh"


def check_number(what: str, value: float) -> str:
    """A positive number as hexadecimal text: of a number that torch.compile made symbolic, this alone gives a constant."""
    if isinstance(value, bool) or not isinstance(value, int | float | np.number) or not _LEAST <= value <= _MOST:
        raise PolyfmaError(f"{what} {str(value)[:40]!r} must be a number from {_LEAST:g} to {_MOST:g}")
    return value.hex() if type(value) is float else float(value).hex()


def _fixed(given: _Given) -> _Fixed:
    """A program as something that names it for good: a file is read at every call, whatever its path named before."""
    if isinstance(given, Path) or (isinstance(given, str) and is_file(given)):
        return register(load(given))
    if given is not None and not isinstance(given, str | Program):
        raise PolyfmaError(f"program {given!r} must be a name, a path, a Program, a tier, 'hardware' or 'exact'")
    return given


def _unary(function: str, x: Tensor, program: _Given, backward: _Given, parameter: str | None = None) -> Tensor:
    if not torch.compiler.is_compiling():
        program, backward = _fixed(program), _fixed(backward)
        if eager.plain(x) and (fmt := _ready(x)):
            return eager.unary(x, _key(function, fmt, program, backward, parameter, None))
    (x,) = _accepted(x)
    arguments = (function, FORMATS[x.dtype], program, backward, parameter, None)
    if torch.compiler.is_compiling():
        return dispatcher.unary(x, _key_in_graph(*arguments))
    key = _key(*arguments)
    return eager.unary(x, key) if eager.plain(x) and not x.is_meta else eager.watched("unary", key, x)


def _gated(function: str, gate: Tensor, up: Tensor | None, interleaved: bool, program: _Given, backward: _Given,
           parameter: str | None = None, limit: str | None = None) -> Tensor:  # fmt: skip
    if up is None:
        return _packed(function, gate, interleaved, program, backward, parameter, limit)
    if interleaved:
        raise PolyfmaError("interleaved=True is for one packed tensor; gate and up were given as two")
    if not torch.compiler.is_compiling():
        program, backward = _fixed(program), _fixed(backward)
        if eager.plain(gate, up) and (fmt := _ready(gate)) and _ready(up) == fmt and gate.shape == up.shape and gate.device == up.device:
            return eager.gated(gate, up, _key(function, fmt, program, backward, parameter, limit))
    gate, up = _accepted(gate, up)
    if gate.shape != up.shape:
        raise PolyfmaError(f"gate has shape {tuple(gate.shape)} and up {tuple(up.shape)}; they must be equal (expand one first)")
    if gate.device != up.device:
        raise PolyfmaError(f"gate is on {gate.device} and up on {up.device}; they must be on one device")
    arguments = (function, FORMATS[gate.dtype], program, backward, parameter, limit)
    if torch.compiler.is_compiling():
        return dispatcher.gated(gate, up, _key_in_graph(*arguments))
    key = _key(*arguments)
    return eager.gated(gate, up, key) if eager.plain(gate, up) and not gate.is_meta else eager.watched("gated", key, gate, up)


def _packed(function: str, x: Tensor, interleaved: bool, program: _Given, backward: _Given, parameter: str | None,
            limit: str | None) -> Tensor:  # fmt: skip
    (x,) = _accepted(x)
    if x.ndim == 0 or x.shape[-1] % 2:
        raise PolyfmaError(f"a packed tensor's last dimension must be even (gate and up); the shape is {tuple(x.shape)}")
    if torch.compiler.is_compiling() or not eager.plain(x) or x.is_meta:
        gate, up = execute.halves(x, interleaved)
        return _gated(function, gate, up, False, program, backward, parameter, limit)
    key = _key(function, FORMATS[x.dtype], _fixed(program), _fixed(backward), parameter, limit)
    return eager.packed(x, key, interleaved)


def _ready(x: Tensor) -> str | None:
    """The format of a plain tensor that needs no second look: 16-bit, dense, on a device that runs operators, no autocast."""
    if (x.is_cuda or x.is_cpu) and x.layout is torch.strided and not x.is_neg() and not x.is_nested and not _any_autocast():
        return FORMATS.get(x.dtype)
    return None


def _accepted(*tensors: Tensor) -> tuple[Tensor, ...]:
    """The tensors in one 16-bit dtype. Under autocast every floating tensor is cast to its dtype; else they must agree."""
    for t in tensors:
        if not isinstance(t, torch.Tensor):
            raise DtypeError(f"polyfma.ops take tensors, not {type(t).__name__}")
        if t.layout is not torch.strided or t.is_nested:
            raise DtypeError(f"polyfma.ops take dense tensors, not {'nested ones' if t.is_nested else t.layout}; use to_dense() or to_padded_tensor()")
    device = tensors[0].device.type
    if device in ("cuda", "cpu") and torch.is_autocast_enabled(device):
        wanted = torch.get_autocast_dtype(device)
        tensors = tuple([t.to(wanted) if t.is_floating_point() and t.dtype is not torch.float64 else t for t in tensors])
    for t in tensors:
        if t.dtype not in FORMATS:
            raise DtypeError(f"polyfma.ops take torch.bfloat16 and torch.float16, not {t.dtype}: cast it, or use torch's own function for it")
        if t.dtype is not tensors[0].dtype:
            raise DtypeError(f"gate is {tensors[0].dtype} and up {t.dtype}; give both one dtype")
    if device not in ("cuda", "cpu", "meta"):
        raise DtypeError(f"polyfma.ops run on cuda and cpu tensors, not on {device}")
    if torch.compiler.is_compiling():
        return tensors
    return tuple([t.resolve_neg() if t.is_neg() else t for t in tensors])  # a negative view stores its values without the sign


@lru_cache(maxsize=4096)
def _key(function: str, fmt: str, program: _Fixed, backward: _Fixed, parameter: str | None, limit: str | None) -> str:
    return choose(function_with(function, parameter), fmt, program, backward, None if limit is None else float.fromhex(limit)).key


def _key_in_graph(function: str, fmt: str, program: _Given, backward: _Given, parameter: str | None, limit: str | None) -> str:
    """The key as a constant of the graph being traced. Tracing is also when Inductor must learn the operators."""
    from polyfma.ops import inductor

    inductor.register()
    return _key(function, fmt, _fixed(program), _fixed(backward), parameter, limit)


# What torch.compiler.assume_constant_result sets; calling that would import the whole compiler with this module.
_key_in_graph._dynamo_marked_constant = True  # type: ignore[attr-defined]

