"""exp2 by itself: the fractional core and the full 2^x, in registers and over memory (the published ladder, table 9).

``core``: 2^f of a fraction, each result fed back as the next fraction (p(f) - 1 where p(f) is 2^f in [1, 2)), many times in registers.
``full``: 2^x by Cody-Waite with a core, or ``ex2.approx``, repeated likewise, and elementwise over tensors of L2 and HBM size. Per
lane, ``hardware`` is ``ex2.approx.ftz.f32``; all arms take and give fp32 lanes, and those that are packed in FP16 convert around their
core. ``core, packed fp16`` is the core alone, FP16 in and out, against ``ex2.approx.f16x2``.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial

import torch
import triton
import triton.language as tl
from torch import Tensor

from polyfma import catalog
from polyfma.attention.mix import in_fp32
from polyfma.bench.result import Measurement, Timing
from polyfma.bench.timing import GRAPH_PROTOCOL, Call, graph_rounds, need_gpu
from polyfma.emit.architecture import get_architecture
from polyfma.emit.triton import triton_asm
from polyfma.program import Program

PROGRAMS = {"D1 fp16": ("exp2.forward.fp16.d1.least-squares", False), "PWL2 fp16": ("exp2.forward.fp16.pwl2.minimax", False),
            "D2 fp32": ("exp2.forward.fp16.d2.minimax", True), "D3 fp32": ("exp2.forward.fp16.d3.published", True)}  # fmt: skip
SIZES = {"full, L2": 1 << 20, "full, HBM": 1 << 26}
LANES, REPEATS, BLOCK = 132 * 2048, 512, 1024
_PACKED_HARDWARE = ("ex2.approx.f16x2 $0, $1;", "=r,r")
_HARDWARE = ("{ ex2.approx.ftz.f32 $0, $2; ex2.approx.ftz.f32 $1, $3; }", "=r,=r,r,r")
PROTOCOL = {"graph": GRAPH_PROTOCOL, "repeated": f"{REPEATS} evaluations a lane, {LANES:,} lanes, each fed by the one before",
            "data": "fp32, uniform in [-20, 0); fractions uniform in [0, 1)"}  # fmt: skip


def measure(progress: Callable[..., None] = lambda *_: None) -> Measurement:
    """Every arm of core and full 2^x."""
    need_gpu()
    measurement = Measurement("exp2", PROTOCOL)
    cases = ("core, repeated", "core, packed fp16, repeated", "full, repeated", *SIZES)
    for done, case in enumerate(cases):
        progress(done, len(cases), case)
        elements = SIZES.get(case, LANES)
        packed = "packed" in case
        x = torch.rand(elements, device="cuda").to(torch.float16 if packed else torch.float32)
        x, out = (x if case.startswith("core") else -20 * x), torch.full_like(x, torch.nan)
        arms: dict[str, Call] = {name: partial(_run, asm, case, x, out) for name, asm in _arms(case).items()}
        measurement.timings += [Timing(case, "exp2", "forward", "fp16" if packed else "fp32", elements, arm, "graph", r, PROGRAMS.get(arm, (None,))[0])
                                for arm, r in graph_rounds(arms).items()]  # fmt: skip
    progress(len(cases), len(cases))
    return measurement


def _arms(case: str) -> dict[str, tuple[str, str]]:
    if "packed" in case:
        programs = {name: catalog.load(program) for name, (program, fp32) in PROGRAMS.items() if not fp32}
        return {"hardware": _PACKED_HARDWARE} | {name: triton_asm(p, get_architecture("sm_90"), "packed", tuple(p.outputs)) for name, p in programs.items()}
    made = {name: _assembly(catalog.load(program), fp32) for name, (program, fp32) in PROGRAMS.items()}
    if not case.startswith("core"):
        made = {name: (cody_waite(asm), constraints) for name, (asm, constraints) in made.items()}
    return {"hardware": _HARDWARE, **made}


@cache
def _assembly(program: Program, fp32: bool) -> tuple[str, str]:
    return triton_asm(in_fp32(program) if fp32 else program, get_architecture("sm_90"), "f32", tuple(program.outputs))


def cody_waite(core: str) -> str:
    """2^x of two fp32 lanes $2, $3 into $0, $1 around the assembly of a core: x = n + f, the core for f, n added to the exponent."""
    lines = ["{ .reg .f32 a0, a1, n0, n1, m0, m1, f0, f1, p0, p1; .reg .b32 e0, e1, q0, q1;"]
    for i in (0, 1):
        lines.append(f"max.ftz.f32 a{i}, ${2 + i}, 0fC2FE0000; add.rm.ftz.f32 n{i}, a{i}, 0f4B400000; sub.rn.ftz.f32 m{i}, n{i}, 0f4B400000;")
        lines.append(f"sub.rn.ftz.f32 f{i}, a{i}, m{i};")
    inner = core
    for old, new in (("$0", "p0"), ("$1", "p1"), ("$2", "f0"), ("$3", "f1")):
        inner = inner.replace(old, new)
    lines.append(inner)
    for i in (0, 1):
        lines.append(f"mov.b32 e{i}, n{i}; mov.b32 q{i}, p{i}; shl.b32 e{i}, e{i}, 23; add.s32 q{i}, q{i}, e{i}; mov.b32 ${i}, q{i};")
    return " ".join([*lines, "}"])


def _run(asm: tuple[str, str], case: str, x: Tensor, out: Tensor) -> None:
    repeats, core = (REPEATS if "repeated" in case else 1), case.startswith("core")
    _kernel[(triton.cdiv(x.numel(), BLOCK),)](x, out, x.numel(), asm[0], asm[1], repeats, core, BLOCK=BLOCK, num_warps=4)


@triton.jit
def _kernel(x_ptr, y_ptr, n, ASM: tl.constexpr, CONSTRAINTS: tl.constexpr, REPEATS: tl.constexpr, CORE: tl.constexpr, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at, mask=at < n)
    for _ in range(REPEATS - 1):
        y = tl.inline_asm_elementwise(ASM, CONSTRAINTS, [x], dtype=x.dtype, is_pure=True, pack=2)
        # A core's result less 1 is a fraction again; 2^x of x <= 0 lies in (0, 1], from which this makes an x in (-4, -1].
        x = (y - 1.0).to(x.dtype) if CORE else (y * 3.0 - 4.0).to(x.dtype)
    y = tl.inline_asm_elementwise(ASM, CONSTRAINTS, [x], dtype=x.dtype, is_pure=True, pack=2)
    tl.store(y_ptr + at, y, mask=at < n)
