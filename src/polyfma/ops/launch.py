"""Compiles a kernel for a device and launches it with one call of the CUDA driver.

Triton compiles (its cache keeps the result); the launch is ours, because a call through a Triton function is dear on the host, and
because Triton's own launcher needs a C compiler on the user's machine.
Every kernel argument is 8 bytes wide, so a launch packs them into one buffer.
"""

from __future__ import annotations

import ctypes
import re
import struct
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from typing import Any

import torch

from polyfma.emit.triton import inline_asm
from polyfma.errors import MissingToolError, PolyfmaError
from polyfma.ops.interleaved import interleaved_asm
from polyfma.ops.operation import architecture_of, operation, tiling
from polyfma.ops.versions import TESTED_TRITON

_TYPES = {"bf16": "*bf16", "fp16": "*fp16", "wide": "*i32"}
_CONFIG_BYTES = 56  # CUlaunchConfig: seven 32-bit numbers, 4 bytes of padding, stream, attributes, their count and padding
_BUFFER_POINTER, _BUFFER_SIZE, _END = 1, 2, 0  # CU_LAUNCH_PARAM_*
_NO_CONTEXT = 201  # CUDA_ERROR_INVALID_CONTEXT
_MOST_SHARED = 48 * 1024  # bytes a kernel gets without asking the driver for more
_PARAMETER = re.compile(r"\.param \.(\w+)")


@dataclass(frozen=True)
class Variant:
    """What a kernel is compiled for. ``pointers`` are the tensors in order: inputs, then outputs, ``wide`` for interleaved ones.

    ``tile`` is () for the flat kernel, else (rows, columns). ``aligned``: every address is a multiple of 16 bytes, every row step
    and the number of columns one of 8 elements.
    """

    key: str
    kind: str
    interleaved: bool
    tile: tuple[int, ...]
    aligned: bool


class Kernel(threading.local):
    """A loaded function with the memory of its launches, one for each thread that launches it.

    ``arguments`` counts its 8-byte parameters, our own first. The memory holds a CUlaunchConfig and behind it the
    arguments, so a launch is one ``struct.pack_into`` and one call.
    """

    def __init__(self, function: int, arguments: int, threads: int, shared: int) -> None:
        self.fixed = (1, 1, threads, 1, 1, shared)
        self.unused = (0,) * arguments  # what Triton adds behind ours is not used by these kernels
        memory = (ctypes.c_uint64 * (_CONFIG_BYTES // 8 + arguments))()
        start = ctypes.addressof(memory)
        self.memory, self.pack = memory, struct.Struct(f"=7I4x3Q{arguments}q").pack_into
        self.size = ctypes.c_size_t(8 * arguments)
        self.extra = (ctypes.c_void_p * 5)(_BUFFER_POINTER, start + _CONFIG_BYTES, _BUFFER_SIZE, ctypes.addressof(self.size), _END)
        self.call = (ctypes.c_void_p(start), ctypes.c_void_p(function), ctypes.c_void_p(0), self.extra)


def compile_kernel(variant: Variant, capability: int) -> Any:
    """Triton's compiled kernel for a compute capability (times ten). Needs no GPU."""
    what = operation(variant.key, variant.kind)
    fmt = what.choice.format
    block = what.block(architecture_of(capability), "packed")
    if variant.interleaved:
        asm, constraints = interleaved_asm(block, variant.kind)
        inputs, outputs = (["wide"], [fmt]) if variant.kind == "gated" else ([fmt, "wide"], ["wide"])
    else:
        asm, constraints = inline_asm(block)
        inputs, outputs = [fmt] * len(what.inputs), [fmt] * len(what.outputs)
    return compile_asm(asm, constraints, inputs, outputs, capability, tiling(variant.key, variant.kind), tile=variant.tile, aligned=variant.aligned)


def compile_asm(asm: str, constraints: str, inputs: Sequence[str], outputs: Sequence[str], capability: int, shape: tuple[int, int], *,
                tile: tuple[int, ...] = (), aligned: bool = True) -> Any:  # fmt: skip
    """The flat kernel, or with a tile the one by rows, around a text of PTX.

    Inputs and outputs are bf16, fp16 or wide; ``shape`` is the elements of a tile and its warps.
    """
    triton, kernels = _triton()
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    function = kernels.by_rows if tile else kernels.flat
    pointers = dict(zip("abc", inputs, strict=False)) | dict(zip("yz", outputs, strict=False))
    constants: dict[str, Any] = {name: None for name in "abcyz" if name not in pointers} | {"ASM": asm, "CONSTRAINTS": constraints}
    constants |= {"ROWS": tile[0], "COLUMNS": tile[1]} if tile else {"BLOCK": shape[0]}
    names = list(function.arg_names)
    signature = {name: _TYPES[pointers[name]] if name in pointers else "constexpr" if name in constants else "i64" for name in names}
    divisor = {i: 16 if name in pointers else 8 for i, name in enumerate(names)
               if aligned and (name in pointers or name.startswith(("step", "columns")))}  # fmt: skip
    source = ASTSource(fn=function, signature=signature, constexprs={(names.index(k),): v for k, v in constants.items()},
                       attrs={(i,): [["tt.divisibility", d]] for i, d in divisor.items()})  # fmt: skip
    return triton.compile(source, target=GPUTarget("cuda", capability, 32), options={"num_warps": shape[1]})


@cache
def _triton() -> tuple[Any, Any]:
    try:
        import triton

        from polyfma.ops import kernels
    except ImportError as error:
        raise MissingToolError("operators on a GPU need triton, which is not installed; pip install 'polyfma[torch]'") from error
    return triton, kernels


@cache
def _driver() -> ctypes.CDLL:
    """libcuda, which every machine with an NVIDIA driver has."""
    for name in ("libcuda.so.1", "nvcuda.dll"):
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    raise MissingToolError("the CUDA driver library (libcuda.so.1) is not installed; operators on CUDA tensors need it")


def _check(status: int, doing: str) -> None:
    if status:
        text = ctypes.c_char_p()
        _driver().cuGetErrorString(status, ctypes.byref(text))
        raise RuntimeError(f"CUDA error {status} {doing}: {(text.value or b'unknown').decode()}")


_loading = threading.Lock()


def kernel(variant: Variant, device: int) -> Kernel:
    """The kernel, loaded on the device. Raises PolyfmaError where the device or the Triton version cannot run it."""
    major, minor = torch.cuda.get_device_capability(device)
    if (major, minor) < (8, 0):
        raise PolyfmaError(f"cuda:{device} has compute capability {major}.{minor}; operators run from 8.0 on")
    return load(compile_kernel(variant, 10 * major + minor), device)


def load(built: Any, device: int) -> Kernel:
    """A compiled kernel in the memory of a device."""
    arguments = _parameters(built)
    module, function = ctypes.c_void_p(), ctypes.c_void_p()
    with _loading, torch.cuda.device(device):
        _make_current(device)
        _check(_driver().cuModuleLoadData(ctypes.byref(module), built.asm["cubin"]), "loading a kernel")
        _check(_driver().cuModuleGetFunction(ctypes.byref(function), module, built.metadata.name.encode()), "finding a kernel")
    return Kernel(function.value or 0, arguments, 32 * built.metadata.num_warps, built.metadata.shared)


def _make_current(device: int) -> None:
    """The device's primary context becomes this thread's: a thread of autograd may have none yet."""
    handle, context = ctypes.c_int(), ctypes.c_void_p()
    _check(_driver().cuDeviceGet(ctypes.byref(handle), device), "finding the device")
    _check(_driver().cuDevicePrimaryCtxRetain(ctypes.byref(context), handle), "taking the device's context")
    _check(_driver().cuCtxSetCurrent(context), "taking the device's context")


def _parameters(built: Any) -> int:
    """How many parameters the entry takes. Triton adds pointers behind ours; anything but 8 bytes is a version we do not know."""
    entry = built.asm["ptx"].split(".entry", 1)[1].split("{", 1)[0]
    kinds = _PARAMETER.findall(entry)
    if set(kinds) - {"u64", "b64", "s64"} or built.metadata.shared > _MOST_SHARED:
        raise PolyfmaError(f"triton {version('triton')} compiled a kernel with parameters {', '.join(kinds)}; tested: triton {TESTED_TRITON}")
    return len(kinds)


def launch(loaded: Kernel, blocks: int, stream: int, arguments: Sequence[int]) -> None:
    """Start the kernel on a stream of the current device. ``arguments`` are addresses and 64-bit integers in order."""
    loaded.pack(loaded.memory, 0, blocks, *loaded.fixed, stream, 0, 0, *arguments, *loaded.unused[len(arguments) :])
    status = _launcher()(*loaded.call)
    if status == _NO_CONTEXT:
        _make_current(torch.cuda.current_device())
        status = _launcher()(*loaded.call)
    if status:
        _check(status, "launching a kernel")


@cache
def _launcher() -> Any:
    """cuLaunchKernelEx, which drivers have from CUDA 11.8 on."""
    try:
        return _driver().cuLaunchKernelEx
    except AttributeError as error:
        raise MissingToolError("the CUDA driver is older than CUDA 11.8 and has no cuLaunchKernelEx; operators on CUDA tensors need it") from error
