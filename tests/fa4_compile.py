"""Compiles attention kernels without a GPU and counts their machine code: ``python fa4_compile.py sm_90a`` prints JSON.

A script of its own, because the DSL reads the architecture from the environment once. {arm: {"forward" or "backward": {opcode: count}}}.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import warnings
from collections import Counter
from pathlib import Path

ARCH = sys.argv[1]
DUMP = tempfile.mkdtemp()
os.environ.update(FLASH_ATTENTION_ARCH=ARCH, CUTE_DSL_ARCH=ARCH, FLASH_ATTENTION_NUM_SMS="132", FLASH_ATTENTION_CUTE_DSL_CACHE_ENABLED="0",
                  CUTE_DSL_KEEP_CUBIN="1", CUTE_DSL_KEEP_PTX="1", CUTE_DSL_DUMP_DIR=DUMP)  # fmt: skip
warnings.filterwarnings("ignore")

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from polyfma import catalog
from polyfma.attention.fa4 import call, score_mod
from polyfma.attention.mix import parse
from polyfma.attention.problem import check
from polyfma.emit.tools import disassemble, find_tool

GAP, D6 = "tanh.forward.fp16.fp32-unit-gap-d7", "tanh.forward.fp16.unit-odd-d6"
COUPLED = "sigmoid.forward.bf16.coupled-d3.endpoint-ls"
S3 = "sigmoid.forward.bf16.odd-square-relu-d3.normal"
WIDE = "sigmoid.forward.bf16.fp32-fused-odd-limited-d6"  # its last operation is a conversion
OPCODE = re.compile(r"/\*[0-9a-f]{4,5}\*/\s+(?:@!?U?P[0-9T]+\s+)?([A-Z0-9_.]+)")


def counted() -> dict[str, int]:
    """Opcodes of the attention kernel that was just compiled: of those kept (it has neighbours that convert), the longest."""
    found = []
    for cubin in Path(DUMP).glob("*.cubin"):
        found.append(Counter(".".join(m.group(1).split(".")[:2]) if m.group(1).startswith("MUFU") else m.group(1).split(".")[0]
                             for m in OPCODE.finditer(disassemble(cubin))))  # fmt: skip
        cubin.unlink()
    serial = False
    for ptx in Path(DUMP).glob("*.ptx"):
        if ARCH == "sm_90a":  # ptxas says so where it makes the products wait for each other
            done = subprocess.run([find_tool("ptxas"), "-v", f"-arch={ARCH}", "-o", f"{DUMP}/again.bin", str(ptx)], capture_output=True, text=True, check=True)
            serial |= "serialized" in done.stderr
        ptx.unlink()
    longest = max(found, key=lambda c: c.total())
    return {name: longest[name] for name in ("MUFU.TANH", "MUFU.EX2", "MUFU.LG2", "MUFU.RCP", "HFMA2", "HMNMX2", "FMNMX", "STL") if longest[name]} | {"serialized": serial}


def main() -> None:
    scale = 128**-0.5
    softcaps = {text: call.softcap_call(mix, mix, 50.0, scale, "bf16") for text in ("hardware", GAP, f"hardware+hardware+{GAP}", f"hardware+{D6}")
                for mix in [parse(text, "tanh", ("hardware",))]}  # fmt: skip
    sigmoids = {text: call.sigmoid_call(mix, mix, "bf16") for text in ("hardware", "exponential", S3, f"hardware+{S3}", COUPLED, *([WIDE] if ARCH == "sm_90a" else []))
                for mix in [parse(text, "sigmoid", ("hardware", "exponential"))]}  # fmt: skip
    arms = {**{f"softcap {t}": (c, ()) for t, c in softcaps.items()}, **{f"sigmoid {t}": (c, (-8.0, 1.0)) for t, c in sigmoids.items()}}
    if ARCH == "sm_90a":
        arms |= {f"exp2 {n}": (call.exp2_call(catalog.load(n), fp32), ())
                 for n, fp32 in (("exp2.forward.fp16.pwl2.minimax", False), ("exp2.forward.fp16.d3.published", True))}  # fmt: skip
    with FakeTensorMode():
        q, k, v = (torch.empty(1, 4096, h, 128, dtype=torch.bfloat16, device="cuda") for h in (32, 8, 8))
        problem = check(q, k, v, causal=True, softmax_scale=None, window=None, cu_seqlens_q=None, cu_seqlens_k=None)
        results: dict[str, dict[str, dict[str, int]]] = {}
        for name, (hooks, scalars) in arms.items():
            out, lse = call.forward(problem, hooks, scalars)
            results[name] = {"forward": counted()}
            if ARCH == "sm_90a":
                call.backward(problem, hooks, out, torch.empty_like(q), lse, scalars)
                results[name]["backward"] = counted()
        for name, mods in (("softcap", (score_mod.reciprocal_softcap(50.0), score_mod.reciprocal_softcap_bwd(50.0))),
                           ("sigmoid", (score_mod.log_sigmoid(-8.0), score_mod.log_sigmoid_bwd(-8.0)))):  # fmt: skip
            out, lse = call.plain_forward(problem, score_mod=mods[0])
            results[f"{name} by score_mod"] = {"forward": counted()}
            call.plain_backward(problem, out, torch.empty_like(q), lse, score_mod=mods[0], score_mod_bwd=mods[1])
            results[f"{name} by score_mod"]["backward"] = counted()
    print(json.dumps(results))


main()
