"""Runs every packed operation of the IR on a GPU and compares it bit for bit with the CPU's arithmetic.

    python benchmarks/operations_on_gpu.py OUT_DIR

Needs nvcc and a GPU of sm_90 or later. Writes OUT_DIR/operations.json (counts of compared and differing
results per operation, device, versions) and OUT_DIR/hardware_<arch>.npz: the hardware's own tanh.approx and
ex2.approx at all 65,536 inputs of both formats.
"""

from __future__ import annotations

import ctypes
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from polyfma.emit.lowering import opcode
from polyfma.formats import BF16, FP16, Format
from polyfma.program import OPERATIONS
from polyfma.replay import _FUSED

# copysign and select are bit operations; a conversion is compared with ml_dtypes in the tests.
NAMES = [n for n in OPERATIONS if n not in ("copysign", "select", "cvt")]
KERNEL = """
extern "C" __global__ void k_{index}(const unsigned* a, const unsigned* b, const unsigned* c, unsigned* y, int n) {{
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) {{ unsigned r; asm volatile("{ptx}" : "=r"(r) : {inputs}); y[i] = r; }}
}}
"""
HOST = """
extern "C" int run_{index}(const unsigned* a, const unsigned* b, const unsigned* c, unsigned* y, int n) {{
  unsigned *d[4];
  for (int i = 0; i < 4; ++i) if (cudaMalloc(&d[i], 4 * n)) return 1;
  cudaMemcpy(d[0], a, 4 * n, cudaMemcpyHostToDevice);
  cudaMemcpy(d[1], b, 4 * n, cudaMemcpyHostToDevice);
  cudaMemcpy(d[2], c, 4 * n, cudaMemcpyHostToDevice);
  cudaMemset(d[3], 0xA5, 4 * n);
  k_{index}<<<(n + 255) / 256, 256>>>(d[0], d[1], d[2], d[3], n);
  cudaMemcpy(y, d[3], 4 * n, cudaMemcpyDeviceToHost);
  for (int i = 0; i < 4; ++i) cudaFree(d[i]);
  return cudaGetLastError();
}}
"""


PROTOCOL = (
    "2^21 lane values per operation, fresh random patterns, half of them near 1, specials at one in sixteen; every result"
    " compared with the CPU arithmetic; outputs poisoned"
)


def rows() -> list[tuple[str, Format, str, int]]:
    """Operation, format, PTX with operands %0, %1, ..., operand count."""
    found = []
    for fmt in (BF16, FP16):
        for name in NAMES:
            if (name, fmt) == ("fma.sat", BF16):
                continue
            arity = OPERATIONS[name].arity
            found.append((name, fmt, f"{opcode(name, fmt)} {', '.join(f'%{i}' for i in range(arity + 1))};", arity))
    return found


def source() -> str:
    """CUDA C++ with a kernel and a host function for every row."""
    text = "#include <cuda_runtime.h>\n"
    for index, (_, _, ptx, arity) in enumerate(rows()):
        inputs = ", ".join(f'"r"({v}[i])' for v in "abc"[:arity])
        text += KERNEL.format(index=index, ptx=ptx, inputs=inputs) + HOST.format(index=index)
    return text


def compile_library(folder: Path) -> ctypes.CDLL:
    (folder / "ops.cu").write_text(source())
    library = folder / "ops.so"
    subprocess.run(["nvcc", "-arch=sm_90", "-shared", "-Xcompiler", "-fPIC", "-o", str(library), str(folder / "ops.cu")], check=True)
    return ctypes.CDLL(str(library))


def operands(fmt: Format, count: int) -> list[np.ndarray]:
    """Random patterns; half of them near 1, where results are ordinary; specials at every 64th place."""
    rng = np.random.default_rng()
    special = np.array([0, fmt.sign_bit, fmt.inf_bits, fmt.inf_bits | fmt.sign_bit, fmt.nan_bits, fmt.nan_bits | fmt.sign_bit,
                        fmt.inf_bits + 1, 1, fmt.sign_bit + 1, fmt.max_bits], dtype=np.uint16)  # fmt: skip
    found = []
    for _ in range(3):
        bits = rng.integers(0, 1 << 16, count).astype(np.uint16)
        near = fmt.encode(rng.normal(0, 2, count))
        bits = np.where(rng.random(count) < 0.5, bits, near)
        where = rng.random(count) < 1 / 16
        found.append(np.where(where, rng.choice(special, count), bits).astype(np.uint16))
    return found


def call(library: ctypes.CDLL, index: int, arrays: list[np.ndarray]) -> np.ndarray:
    packed = [np.ascontiguousarray(a).view(np.uint32) for a in arrays]
    y = np.zeros_like(packed[0])
    pointers = [p.ctypes.data_as(ctypes.c_void_p) for p in [*packed, y]]
    status = getattr(library, f"run_{index}")(*pointers, packed[0].size)
    if status:
        raise RuntimeError(f"CUDA error {status} in row {index}")
    return y.view(np.uint16)


def versions() -> dict[str, Any]:
    query = ["nvidia-smi", "--query-gpu=name,driver_version,compute_cap", "--format=csv,noheader"]
    name, driver, capability = (v.strip() for v in subprocess.run(query, capture_output=True, text=True, check=True).stdout.split(","))
    nvcc = subprocess.run(["nvcc", "--version"], capture_output=True, text=True, check=True).stdout.split("release ")[1].split(",")[0]
    return {"device": name, "driver": driver, "compute_capability": capability, "nvcc": nvcc}


def main(out: Path) -> None:
    out.mkdir(parents=True, exist_ok=True)
    about = versions()
    results, tables = [], {}
    with tempfile.TemporaryDirectory() as folder:
        library = compile_library(Path(folder))
        for index, (name, fmt, ptx, arity) in enumerate(rows()):
            if name in ("tanh.approx", "ex2.approx"):
                every = fmt.all_bits()
                low, high = call(library, index, [np.stack([every, every[::-1]], 1).ravel()] * 3).reshape(-1, 2).T
                assert np.array_equal(low, high[::-1]), "the two lanes differ"
                tables[f"{name}.{fmt}"] = low
                continue
            a, b, c = operands(fmt, 1 << 21)
            got = call(library, index, [a, b, c])
            wanted = _FUSED[name](fmt, *[a, b, c][:arity])
            differ = np.flatnonzero(got != wanted)
            both_nan = fmt.is_nan(got) & fmt.is_nan(wanted)
            examples = [[hex(int(v[i])) for v in (a, b, c, got, wanted)] for i in differ[:6]]
            results.append({"op": name, "format": fmt.name, "ptx": ptx, "compared": int(got.size), "differ": int(differ.size),
                            "differ_not_both_nan": int(np.sum((got != wanted) & ~both_nan)), "examples": examples})  # fmt: skip
        np.savez_compressed(out / f"hardware_sm_{about['compute_capability'].replace('.', '')}.npz", **tables)
    about["protocol"] = PROTOCOL
    (out / "operations.json").write_text(json.dumps(about | {"operations": results}, indent=1))
    for r in results:
        print(f"{r['format']} {r['op']:20} {r['compared']} compared, {r['differ']} differ, not NaN {r['differ_not_both_nan']} {r['examples'][:2] if r['differ'] else ''}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
