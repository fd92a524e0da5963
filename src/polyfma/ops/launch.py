"""Compiles a kernel for a device and launches it with one call of the CUDA driver.

Triton compiles (its cache keeps the result); the launch is ours, because a call through a Triton function costs 20
microseconds on the host where this costs about 4, and because Triton's own launcher needs a C compiler on the user's machine.
Every kernel argument is 8 bytes wide, so a launch packs them into one buffer.
"""

from __future__ import annotations

import ctypes
import re
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib.metadata import version
from typing import Any

import torch

from polyfma.emit.triton import inline_asm
from polyfma.errors import MissingToolError, PolyfmaError
from polyfma.ops.interleaved import interleaved_asm
from polyfma.ops.operation import architecture_of, operation

TESTED_TRITON = "3.6, 3.7"
_TYPES = {"bf16": "*bf16", "fp16": "*fp16", "wide": "*i32"}
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


@dataclass(frozen=True)
class Kernel:
    """A loaded function; ``arguments`` counts its 8-byte parameters, our own first."""

    function: int
    arguments: int
    threads: int
    shared: int


def compile_kernel(variant: Variant, capability: int) -> Any:
    """Triton's compiled kernel for a compute capability (times ten). Needs no GPU."""
    triton, kernels = _triton()
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    function = kernels.by_rows if variant.tile else kernels.flat
    signature, constants = _signature(variant, capability)
    names = list(function.arg_names)
    divisor = {i: 16 if signature[name].startswith("*") else 8 for i, name in enumerate(names)
               if variant.aligned and (signature[name].startswith("*") or name.startswith(("step", "columns")))}  # fmt: skip
    source = ASTSource(fn=function, signature=signature, constexprs={(names.index(k),): v for k, v in constants.items()},
                       attrs={(i,): [["tt.divisibility", d]] for i, d in divisor.items()})  # fmt: skip
    return triton.compile(source, target=GPUTarget("cuda", capability, 32), options={"num_warps": kernels.WARPS})


@cache
def _triton() -> tuple[Any, Any]:
    try:
        import triton

        from polyfma.ops import kernels
    except ImportError as error:
        raise MissingToolError("operators on a GPU need triton, which is not installed; pip install 'polyfma[torch]'") from error
    return triton, kernels


def _signature(variant: Variant, capability: int) -> tuple[dict[str, str], dict[str, Any]]:
    _, kernels = _triton()
    what = operation(variant.key, variant.kind)
    fmt = what.choice.format
    block = what.block(architecture_of(capability), "packed")
    if variant.interleaved:
        asm, constraints = interleaved_asm(block, variant.kind)
        inputs, outputs = (["wide"], [fmt]) if variant.kind == "gated" else ([fmt, "wide"], ["wide"])
    else:
        asm, constraints = inline_asm(block)
        inputs, outputs = [fmt] * len(what.inputs), [fmt] * len(what.outputs)
    pointers = dict(zip("abc", [_TYPES[t] for t in inputs], strict=False)) | dict(zip("yz", [_TYPES[t] for t in outputs], strict=False))
    constants: dict[str, Any] = {name: None for name in "abcyz" if name not in pointers} | {"ASM": asm, "CONSTRAINTS": constraints}
    numbers = ("rows", "columns", *(f"step_{p}" for p in "abcyz")) if variant.tile else ("n",)
    constants |= {"ROWS": variant.tile[0], "COLUMNS": variant.tile[1]} if variant.tile else {"BLOCK": kernels.TILE}
    signature = {name: pointers.get(name, "constexpr") for name in "abcyz"} | dict.fromkeys(numbers, "i64")
    signature |= dict.fromkeys([name for name in constants if name not in signature], "constexpr")
    order = (kernels.by_rows if variant.tile else kernels.flat).arg_names
    return {name: signature[name] for name in order}, constants


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


@lru_cache(maxsize=4096)
def kernel(variant: Variant, device: int) -> Kernel:
    """The kernel, loaded on the device. Raises PolyfmaError where the device or the Triton version cannot run it."""
    with _loading, torch.cuda.device(device):
        major, minor = torch.cuda.get_device_capability(device)
        if (major, minor) < (8, 0):
            raise PolyfmaError(f"cuda:{device} has compute capability {major}.{minor}; operators run from 8.0 on")
        built = compile_kernel(variant, 10 * major + minor)
        arguments = _parameters(built)
        module, function = ctypes.c_void_p(), ctypes.c_void_p()
        _check(_driver().cuModuleLoadData(ctypes.byref(module), built.asm["cubin"]), "loading a kernel")
        _check(_driver().cuModuleGetFunction(ctypes.byref(function), module, built.metadata.name.encode()), "finding a kernel")
        return Kernel(function.value or 0, arguments, 32 * built.metadata.num_warps, built.metadata.shared)


def _parameters(built: Any) -> int:
    """How many parameters the entry takes. Triton adds pointers behind ours; anything but 8 bytes is a version we do not know."""
    entry = built.asm["ptx"].split(".entry", 1)[1].split("{", 1)[0]
    kinds = _PARAMETER.findall(entry)
    if set(kinds) - {"u64", "b64", "s64"} or built.metadata.shared > _MOST_SHARED:
        raise PolyfmaError(f"triton {version('triton')} compiled a kernel with parameters {', '.join(kinds)}; tested: triton {TESTED_TRITON}")
    return len(kinds)


_SIZE_OF_ARGUMENT = 8
_BUFFER_POINTER, _BUFFER_SIZE, _END = 1, 2, 0


def launch(loaded: Kernel, blocks: int, stream: int, arguments: Sequence[int]) -> None:
    """Start the kernel on the stream of the current device. ``arguments`` are addresses and 64-bit integers in order."""
    count = loaded.arguments
    buffer = (ctypes.c_int64 * count)(*arguments)
    size = ctypes.c_size_t(_SIZE_OF_ARGUMENT * count)
    extra = (ctypes.c_void_p * 5)(_BUFFER_POINTER, ctypes.addressof(buffer), _BUFFER_SIZE, ctypes.addressof(size), _END)
    status = _launcher()(loaded.function, blocks, 1, 1, loaded.threads, 1, 1, loaded.shared, stream, None, extra)
    if status:
        _check(status, "launching a kernel")


@cache
def _launcher() -> Any:
    function = _driver().cuLaunchKernel
    function.argtypes = [ctypes.c_void_p, *[ctypes.c_uint] * 7, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p]
    function.restype = ctypes.c_int
    return function
