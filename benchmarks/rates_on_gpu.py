"""Measures instruction rates on a GPU: what the nominal rates of ``polyfma.hardware.rates`` are checked against.

    python benchmarks/rates_on_gpu.py OUT_DIR

Needs nvcc and a GPU of sm_90. One block of 1,024 threads on every SM, eight independent chains a thread, the SM's own
clock; the rate is instructions (lanes of one) per clock and SM, the median of 9 runs with the lowest and the highest.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

# name: (PTX with the chain's register %0, the pipe whose nominal rate it is held against)
INSTRUCTIONS = {
    "fma.rn.bf16x2": ("fma.rn.bf16x2 %0, %0, %1, %2;", "fma_bf16"),
    "fma.rn.relu.bf16x2": ("fma.rn.relu.bf16x2 %0, %0, %1, %2;", "fma_bf16"),
    "mul.rn.bf16x2": ("mul.rn.bf16x2 %0, %0, %1;", "fma_bf16"),
    "add.rn.bf16x2": ("add.rn.bf16x2 %0, %0, %2;", "fma_bf16"),
    "abs.bf16x2": ("abs.bf16x2 %0, %0;", "fma_bf16"),
    "fma.rn.f16x2": ("fma.rn.f16x2 %0, %0, %1, %2;", "fma_f16"),
    "fma.rn.f32": ("fma.rn.f32 %0, %0, %1, %2;", "fma_f32"),
    # The same minimum twice is one minimum, and ptxas knows it: minimum and maximum take turns.
    "min/max.NaN.bf16x2": ("min.NaN.bf16x2 %0, %0, %1; max.NaN.bf16x2 %0, %0, %2;", "alu"),
    "min/max.f16x2": ("min.f16x2 %0, %0, %1; max.f16x2 %0, %0, %2;", "alu"),
    "min.NaN.xorsign.abs.bf16x2": ("min.NaN.xorsign.abs.bf16x2 %0, %0, %1;", "alu"),
    "lop3.b32": ("lop3.b32 %0, %0, %1, %2, 0x96;", "alu"),
    "cvt.rn.bf16x2.f32": ("cvt.rn.bf16x2.f32 %0, %0, %1;", "cvt"),
    "cvt.rn.f16x2.f32": ("cvt.rn.f16x2.f32 %0, %0, %1;", "cvt"),
    "tanh.approx.f32": ("tanh.approx.f32 %0, %0;", "mufu"),
    "tanh.approx.bf16x2": ("tanh.approx.bf16x2 %0, %0;", "mufu"),
    "tanh.approx.f16x2": ("tanh.approx.f16x2 %0, %0;", "mufu"),
    "ex2.approx.ftz.bf16x2": ("ex2.approx.ftz.bf16x2 %0, %0;", "mufu"),
}
CHAINS, STEPS, LOOPS, THREADS, RUNS = 8, 16, 64, 1024, 9
KERNEL = """
extern "C" __global__ void __launch_bounds__({threads}) k{i}(const {type}* in, {type}* out, long long* clocks) {{
  {type} r[{chains}], a = in[0], b = in[1];
  for (int c = 0; c < {chains}; ++c) r[c] = in[2 + c] ;
  __syncthreads();
  long long start = clock64();
#pragma unroll 1
  for (int l = 0; l < {loops}; ++l) {{
#pragma unroll
    for (int s = 0; s < {steps}; ++s) {{
#pragma unroll
      for (int c = 0; c < {chains}; ++c) asm volatile("{ptx}" : "+{letter}"(r[c]) : "{letter}"(a), "{letter}"(b));
    }}
  }}
  __syncthreads();
  long long end = clock64();
  {type} total = r[0];
  for (int c = 1; c < {chains}; ++c) total += r[c];
  out[blockIdx.x * {threads} + threadIdx.x] = total;
  if (threadIdx.x == 0) clocks[blockIdx.x] = end - start;
}}
"""
MAIN = """
#include <cstdio>
#include <algorithm>
#include <cuda_runtime.h>
template <class T> void run(void (*kernel)(const T*, T*, long long*), const char* name, int sms) {{
  T* in; T* out; long long* clocks; long long host[512];
  cudaMalloc(&in, 64); cudaMalloc(&out, sizeof(T) * sms * {threads}); cudaMalloc(&clocks, 8 * sms);
  cudaMemset(in, 0x3f, 64);
  for (int r = 0; r < {runs} + 2; ++r) {{
    kernel<<<sms, {threads}>>>(in, out, clocks);
    cudaMemcpy(host, clocks, 8 * sms, cudaMemcpyDeviceToHost);
    std::nth_element(host, host + sms / 2, host + sms);
    if (r >= 2) printf("%s %f\\n", name, double({threads}) * {chains} * {steps} * {loops} / double(host[sms / 2]));
  }}
}}
int main() {{
  cudaDeviceProp p; cudaGetDeviceProperties(&p, 0);
  {calls}
  return cudaGetLastError();
}}
"""


def source() -> str:
    constants = {"chains": CHAINS, "steps": STEPS, "loops": LOOPS, "threads": THREADS, "runs": RUNS}
    kernels, calls = "", ""
    for i, (name, (ptx, _)) in enumerate(INSTRUCTIONS.items()):
        wide = name.endswith("f32") and not name.startswith("cvt")
        kernels += KERNEL.format(i=i, ptx=ptx, type="float" if wide else "unsigned", letter="f" if wide else "r", **constants)
        calls += f'run(k{i}, "{name}", p.multiProcessorCount);\n  '
    return kernels + MAIN.format(calls=calls, **constants)


def main(out: Path) -> None:
    from polyfma.hardware.rates import RATES, SOURCE

    out.mkdir(parents=True, exist_ok=True)
    query = ["nvidia-smi", "--query-gpu=name,driver_version,compute_cap", "--format=csv,noheader"]
    device, driver, capability = (v.strip() for v in subprocess.run(query, capture_output=True, text=True, check=True).stdout.split(","))
    nominal = RATES[int(capability.replace(".", ""))]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rates.cu"
        path.write_text(source())
        subprocess.run(["nvcc", "-arch=sm_" + capability.replace(".", ""), "-O3", "-o", str(path.with_suffix("")), str(path)], check=True)
        lines = subprocess.run([str(path.with_suffix(""))], capture_output=True, text=True, check=True).stdout.splitlines()
    rows = []
    each = {name: ptx.count(";") for name, (ptx, _) in INSTRUCTIONS.items()}
    for name, (_, pipe) in INSTRUCTIONS.items():
        rates = [each[name] * float(line.split()[1]) for line in lines if line.split()[0] == name]
        rows.append({"instruction": name, "pipe": pipe, "nominal": getattr(nominal, pipe), "median": statistics.median(rates),
                     "lowest": min(rates), "highest": max(rates)})  # fmt: skip
        print(f"{name:28} {rows[-1]['median']:7.1f}  nominal {pipe} {rows[-1]['nominal']}")
    about = {"device": device, "driver": driver, "compute_capability": capability, "nominal": SOURCE,
             "protocol": " ".join(__doc__.split("One block")[1].split()), "unit": "instructions per clock and SM"}  # fmt: skip
    (out / "rates.json").write_text(json.dumps(about | {"rates": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
