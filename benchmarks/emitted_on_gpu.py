"""Runs every catalogue program, as emitted for CUDA, Triton and CuTe, on a GPU and compares each bit with replay.

    python benchmarks/emitted_on_gpu.py OUT_DIR [cuda triton cute]

Needs a GPU of sm_90 or later and torch; nvcc for cuda, triton, and nvidia-cutlass-dsl for cute (the default: those
that are installed). Every one of the 65,536 inputs goes through both lanes, the other lane holding another input, in
all three layouts and, in CUDA, as a single element; outputs are poisoned first. Writes OUT_DIR/emitted.json: compared
and differing results by target and layout, with device and versions, and the programs that differ.
"""

from __future__ import annotations

import ctypes
import importlib.metadata
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch

import polyfma as pf
from polyfma.emit.header import identifier
from polyfma.emit.lowering import LAYOUTS

COUNT = 1 << 16
FILES = 16  # CUDA sources, compiled side by side
GROUP = 24  # programs in one CuTe kernel
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
SUFFIXES = {"packed": "", "f32-packed": "_packed", "f32": "_f32"}
PROTOCOL = ("all 65,536 inputs in each lane, the other lane a random permutation of them, three layouts, scalars in CUDA; outputs poisoned;"
            " bit for bit, except that NaN only has to be NaN where the input is fp32, whose NaN has lost its pattern")  # fmt: skip
Results = dict[str, dict[str, np.ndarray]]  # layout -> output -> uint16 of shape (2, 65536), one row a lane


class Inputs:
    """The pairs of a format: every pattern below, a permutation above, and the same as fp32."""

    def __init__(self, fmt: str, seed: int) -> None:
        self.low = np.arange(COUNT, dtype=np.uint16)
        self.high = np.random.default_rng(seed).permutation(COUNT).astype(np.uint16)
        pairs = np.stack([self.low, self.high], axis=1).reshape(-1)
        self.values = torch.from_numpy(pairs.view(np.int16)).cuda().view(DTYPES[fmt])
        self.wide = self.values.float()


def as_lanes(tensor: torch.Tensor, fmt: str) -> np.ndarray:
    """Interleaved results as patterns, one row a lane; fp32 results are exact in the format."""
    narrow = tensor.to(DTYPES[fmt]) if tensor.dtype == torch.float32 else tensor
    return narrow.view(torch.int16).cpu().numpy().view(np.uint16).reshape(COUNT, 2).T


def compare(program: pf.Program, inputs: Inputs, results: Results) -> dict[str, tuple[int, int]]:
    """(compared, differing) by layout."""
    wanted = pf.replay(program, inputs.low)
    table = wanted if isinstance(wanted, dict) else {next(iter(program.outputs)): wanted}
    counts = {}
    for layout, outputs in results.items():
        compared = differ = 0
        for output, lanes in outputs.items():
            for got, given in zip(lanes, (inputs.low, inputs.high), strict=True):
                right = table[output][given]
                wrong = got != right
                if layout in ("f32-packed", "f32"):
                    wrong &= ~(program.fmt.is_nan(got) & program.fmt.is_nan(right))
                compared, differ = compared + COUNT, differ + int(np.count_nonzero(wrong))
        counts[layout] = (compared, differ)
    return counts


# -- CUDA ----------------------------------------------------------------------------------------------


def cuda_source(numbered: list[tuple[int, pf.Program]]) -> str:
    """One launcher for each program, output and layout, and one for single elements."""
    text = ""
    for i, p in numbered:
        struct = f"polyfma::{identifier(p)}"
        text += pf.emit(p, "cuda")
        for output in p.outputs:
            for layout, (taken, given, suffix) in {"packed": ("packed", "packed", ""), "f32": ("float2", "float2", "_f32"),
                                                   "f32-packed": ("float2", "packed", "_packed"), "scalar": ("scalar", "scalar", "")}.items():  # fmt: skip
                types = [t if t == "float2" else f"{struct}::{t}" for t in (taken, given)]
                name = f"{i}_{output}_{layout.replace('-', '_')}"
                text += (f"__global__ void k{name}(const {types[0]}* x, {types[1]}* y, int n) {{\n"
                         f"  int j = blockIdx.x * blockDim.x + threadIdx.x; if (j < n) y[j] = {struct}::{output}{suffix}(x[j]); }}\n"
                         f'extern "C" int run{name}(const void* x, void* y, int n) {{ k{name}<<<(n + 255) / 256, 256>>>((const {types[0]}*)x, ({types[1]}*)y, n);'
                         f" return cudaDeviceSynchronize(); }}\n")  # fmt: skip
    return text


def compile_cuda(folder: Path, number: int, numbered: list[tuple[int, pf.Program]]) -> ctypes.CDLL:
    source, library = folder / f"{number}.cu", folder / f"{number}.so"
    source.write_text(cuda_source(numbered))
    subprocess.run(["nvcc", "-arch=sm_90", "-shared", "-Xcompiler", "-fPIC", "-o", str(library), str(source)], check=True)
    return ctypes.CDLL(str(library))


def run_cuda(programs: list[pf.Program], record: Callable[..., None], inputs: dict[str, Inputs]) -> None:
    numbered = list(enumerate(programs))
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(FILES) as pool:
        parts = [numbered[k::FILES] for k in range(FILES)]
        libraries = list(pool.map(lambda k: compile_cuda(Path(folder), k, parts[k]), range(FILES)))
        for i, p in numbered:
            results: Results = {}
            for layout in (*LAYOUTS, "scalar"):
                results[layout] = {}
                x = inputs[p.format].wide if layout.startswith("f32") else inputs[p.format].values
                for output in p.outputs:
                    y = poisoned(2 * COUNT, torch.float32 if layout == "f32" else DTYPES[p.format])
                    run = getattr(libraries[i % FILES], f"run{i}_{output}_{layout.replace('-', '_')}")
                    status = run(ctypes.c_void_p(x.data_ptr()), ctypes.c_void_p(y.data_ptr()), 2 * COUNT if layout == "scalar" else COUNT)
                    if status:
                        raise RuntimeError(f"CUDA error {status} in {p.name} {layout}")
                    results[layout][output] = as_lanes(y, p.format)
            record("cuda", p, results)


def poisoned(size: int, dtype: torch.dtype) -> torch.Tensor:
    """Filled with a pattern that no program gives: a NaN with a payload."""
    if dtype == torch.float32:
        return torch.full((size,), 0x7FA5A5A5, dtype=torch.int32, device="cuda").view(dtype)
    return torch.full((size,), 0x7FA5, dtype=torch.int16, device="cuda").view(dtype)


# -- Triton --------------------------------------------------------------------------------------------

TRITON_KERNEL = """

@triton.jit
def kernel(x_ptr, y_ptr, z_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i, mask=i < n)
{body}
"""


def triton_results(name: str, folder: str, seed: int) -> tuple[str, Results]:
    """In a process of its own pool: compiling is what takes the time."""
    p = pf.load(name)
    inputs = Inputs(p.format, seed)
    results: Results = {}
    for layout in LAYOUTS:
        suffix = {"packed": "", "f32-packed": "_f32_packed", "f32": "_f32"}[layout]
        call = f"{identifier(p)}{suffix}(x)"
        names = list(p.outputs)
        stores = "".join(f"\n    tl.store({ptr} + i, {v}, mask=i < n)" for ptr, v in zip(("y_ptr", "z_ptr"), ("a", "b")[: len(names)], strict=False))
        body = f"    {', '.join(('a', 'b')[: len(names)])} = {call}{stores}"
        path = Path(folder) / f"{identifier(p)}{suffix}.py"
        path.write_text(pf.emit(p, "triton", arch="sm_90", layout=layout) + TRITON_KERNEL.format(body=body))
        spec = importlib.util.spec_from_file_location(path.stem, path)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        ys = [poisoned(2 * COUNT, torch.float32 if layout == "f32" else DTYPES[p.format]) for _ in range(2)]
        x = inputs.values if layout == "packed" else inputs.wide
        module.kernel[(2 * COUNT // 1024,)](x, *ys, 2 * COUNT, BLOCK=1024)
        results[layout] = {o: as_lanes(y, p.format) for o, y in zip(names, ys, strict=False)}
    return name, results


def run_triton(programs: list[pf.Program], record: Callable[..., None], inputs: dict[str, Inputs], seed: int) -> None:
    by_name = {p.name: p for p in programs}
    with tempfile.TemporaryDirectory() as folder, ProcessPoolExecutor(12, mp_context=get_context("spawn")) as pool:
        for name, results in pool.map(triton_results, by_name, [folder] * len(by_name), [seed] * len(by_name), chunksize=8):
            record("triton", by_name[name], results)


# -- CuTe ----------------------------------------------------------------------------------------------

CUTE_KERNEL = """
import cutlass
import cutlass.cute as cute


@cute.kernel
def kernel(x: cute.Tensor, f: cute.Tensor, y: cute.Tensor, z: cute.Tensor):
    thread, _, _ = cute.arch.thread_idx()
    block, _, _ = cute.arch.block_idx()
    j = block * 256 + thread
    v = x[j]
    a, b = f[2 * j], f[2 * j + 1]
{body}


@cute.jit
def run(x: cute.Tensor, f: cute.Tensor, y: cute.Tensor, z: cute.Tensor):
    kernel(x, f, y, z).launch(grid=[256, 1, 1], block=[256, 1, 1])
"""


def cute_module(programs: list[pf.Program]) -> tuple[str, list[tuple[pf.Program, str]]]:
    """The module's text and its rows: for each output a packed row from packed, one from fp32, and a pair of fp32 rows."""
    body, rows = [], []
    for p in programs:
        name = identifier(p)
        row = len(rows)
        for k, output in enumerate(p.outputs):
            rows.append((p, output))
            several = len(p.outputs) > 1
            body += [f"    y[{2 * (row + k)}, j] = {name}_packed(v){f'[{k}]' if several else ''}",
                     f"    y[{2 * (row + k) + 1}, j] = {name}(a, b){f'[{k}]' if several else ''}",
                     f"    pair{row + k} = {name}_f32(a, b)",
                     f"    z[{row + k}, 2 * j] = pair{row + k}[{2 * k}]",
                     f"    z[{row + k}, 2 * j + 1] = pair{row + k}[{2 * k + 1}]"]  # fmt: skip
    sources = "\n\n".join(pf.emit(p, "cute", arch="sm_90") for p in programs)
    return sources + CUTE_KERNEL.format(body="\n".join(body)), rows


def cute_results(names: list[str], folder: str, seed: int) -> dict[str, Results]:
    import cutlass.cute as cute
    from cutlass.cute.runtime import from_dlpack

    programs = [pf.load(n) for n in names]
    inputs = Inputs(programs[0].format, seed)
    text, rows = cute_module(programs)
    path = Path(folder) / f"group_{identifier(programs[0])}.py"
    path.write_text(text)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    x = inputs.values.view(torch.int32)
    y = torch.full((2 * len(rows), COUNT), 0x7FA57FA5, dtype=torch.int32, device="cuda")
    z = poisoned(2 * COUNT * len(rows), torch.float32).view(len(rows), 2 * COUNT)
    tensors = [from_dlpack(t) for t in (x, inputs.wide, y, z)]
    cute.compile(module.run, *tensors)(*tensors)
    torch.cuda.synchronize()
    found: dict[str, Results] = {}
    for k, (p, output) in enumerate(rows):
        here = found.setdefault(p.name, {layout: {} for layout in LAYOUTS})
        here["packed"][output] = as_lanes(y[2 * k].view(DTYPES[p.format]), p.format)
        here["f32-packed"][output] = as_lanes(y[2 * k + 1].view(DTYPES[p.format]), p.format)
        here["f32"][output] = as_lanes(z[k], p.format)
    return found


def run_cute(programs: list[pf.Program], record: Callable[..., None], inputs: dict[str, Inputs], seed: int) -> None:
    by_name = {p.name: p for p in programs}
    groups = []
    for fmt in DTYPES:
        names = [p.name for p in programs if p.format == fmt]
        groups += [names[i : i + GROUP] for i in range(0, len(names), GROUP)]
    with tempfile.TemporaryDirectory() as folder, ProcessPoolExecutor(12, mp_context=get_context("spawn")) as pool:
        for found in pool.map(cute_results, groups, [folder] * len(groups), [seed] * len(groups)):
            for name, results in found.items():
                record("cute", by_name[name], results)


# -- all of it -----------------------------------------------------------------------------------------


def versions() -> dict[str, Any]:
    query = ["nvidia-smi", "--query-gpu=name,driver_version,compute_cap", "--format=csv,noheader"]
    name, driver, capability = (v.strip() for v in subprocess.run(query, capture_output=True, text=True, check=True).stdout.split(","))
    found = {"device": name, "driver": driver, "compute_capability": capability, "torch": torch.__version__, "polyfma": pf.__version__}
    for package in ("triton", "nvidia-cutlass-dsl"):
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found[package] = "not installed"
    nvcc = subprocess.run(["nvcc", "--version"], capture_output=True, text=True, check=False).stdout
    return found | {"nvcc": nvcc.split("release ")[1].split(",")[0] if "release " in nvcc else "not installed"}


def main(out: Path, targets: list[str]) -> None:
    out.mkdir(parents=True, exist_ok=True)
    seed = int.from_bytes(os.urandom(4), "little")
    programs = [pf.load(n) for n in pf.programs()]
    inputs = {fmt: Inputs(fmt, seed) for fmt in DTYPES}
    totals: dict[str, dict[str, list[int]]] = {}
    differing: list[str] = []
    done: dict[str, int] = {}

    def record(target: str, program: pf.Program, results: Results) -> None:
        done[target] = done.get(target, 0) + 1
        for layout, (compared, differ) in compare(program, inputs[program.format], results).items():
            total = totals.setdefault(target, {}).setdefault(layout, [0, 0])
            total[0] += compared
            total[1] += differ
            if differ:
                differing.append(f"{target} {layout} {program.name}: {differ}")

    runners = {"cuda": lambda: run_cuda(programs, record, inputs), "triton": lambda: run_triton(programs, record, inputs, seed),
               "cute": lambda: run_cute(programs, record, inputs, seed)}  # fmt: skip
    for target in targets:
        runners[target]()
    table = {t: {layout: {"compared": c, "differ": d} for layout, (c, d) in layouts.items()} for t, layouts in totals.items()}
    digests = {p.name: p.digest[:16] for p in programs}
    about = versions() | {"protocol": PROTOCOL, "seed": seed, "programs": done, "results": table, "differing": differing, "digests": digests}
    path = out / f"emitted-{'-'.join(targets)}.json"
    path.write_text(json.dumps(about, indent=1) + "\n")
    for target, layouts in table.items():
        for layout, r in layouts.items():
            print(f"{target:7} {layout:11} {done[target]} programs {r['compared']:>12,} compared {r['differ']} differ")
    print("\n".join(differing[:10]))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:] or [t for t, module in (("cuda", "torch"), ("triton", "triton"), ("cute", "cutlass")) if importlib.util.find_spec(module)])
