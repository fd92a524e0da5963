"""Emitted source against replay: PTX by an interpreter, C by the compiler, the rest compiled for every architecture.

The interpreter (``ptx.py``) and the compilers share nothing with the emitters or with replay.
"""

from __future__ import annotations

import ctypes
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import polyfma as pf
import ptx
from conftest import need_tool
from polyfma.emit.header import identifier
from polyfma.emit.lowering import LAYOUTS, lower
from polyfma.hardware import recorded

NAMES = pf.programs()
FORMS = list({pf.load(name).form: name for name in reversed(NAMES)}.values())  # one program of each form
PORTABLE = [n for n in NAMES if not pf.load(n).counts.mufu]
KIND = {"bf16": "bf16", "fp16": "f16"}
TABLES = {(op, KIND[f]): recorded(f"{op}.approx", f) for op in ("tanh", "ex2") for f in KIND}
ALL = np.arange(65536, dtype=np.uint16)


def expected(program: pf.Program, bits: np.ndarray) -> dict[str, np.ndarray]:
    y = pf.replay(program, bits)
    return y if isinstance(y, dict) else {next(iter(program.outputs)): y}


def interpreted(program: pf.Program, text: str, layout: str, low: np.ndarray, high: np.ndarray) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Both lanes of each output; fp32 results as patterns of the program's format (they are exact)."""
    kind = KIND[program.format]
    wide = [ptx.encode("f32", ptx.decode(kind, lane)) for lane in (low, high)]
    machine = ptx.Machine({"x": low | high << 16, "x0": wide[0], "x1": wide[1]}, TABLES)
    registers = machine.run(ptx.body(text))
    found = {}
    for output in program.outputs:
        stem = "y" if len(program.outputs) == 1 else f"y_{output}"
        if layout == "f32":
            found[output] = tuple(ptx.encode(kind, ptx.decode("f32", registers[f"{stem}{i}"])) for i in (0, 1))
        else:
            found[output] = (registers[stem] & 0xFFFF, registers[stem] >> 16)
    return found


def check(program: pf.Program, layout: str, arch: str, text: str | None = None) -> int:
    """How many results differ from replay, over all inputs in each lane, the other lane being another input.

    NaN patterns are compared too, except where the input went through fp32 (its payload is lost) or below the first
    architecture with the instructions (the sign of a NaN may differ).
    """
    low, high = ALL.astype(np.int64), np.random.default_rng(7).permutation(65536)
    found = interpreted(program, text or pf.emit(program, "ptx", arch=arch, layout=layout), layout, low, high)
    differ = 0
    for output, wanted in expected(program, ALL).items():
        for got, index in zip(found[output], (low, high), strict=True):
            wrong = got != wanted[index]
            if layout != "packed" or arch != "sm_90":
                wrong &= ~(program.fmt.is_nan(wanted[index]) & program.fmt.is_nan(got.astype(np.uint16)))
            differ += int(np.count_nonzero(wrong))
    return differ


@pytest.mark.parametrize("name", NAMES)
def test_ptx_of_every_program_gives_the_bits_of_replay(name: str) -> None:
    assert check(pf.load(name), "packed", "sm_90") == 0


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("arch", ["sm_80", "sm_86", "sm_90"])
def test_every_form_in_every_layout_and_lowering(name: str, layout: str, arch: str) -> None:
    program = pf.load(name)
    if program.counts.mufu and program.format == "bf16" and arch != "sm_90":
        with pytest.raises(pf.ProgramError, match=r"cannot run on sm_8\d: it uses (tanh|ex2)\.approx.*bf16x2, which begins with sm_90"):
            pf.emit(program, "ptx", arch=arch, layout=layout)
        return
    assert check(program, layout, arch) == 0


def test_the_interpreter_sees_a_changed_program() -> None:
    """A coefficient one bit off, an operand exchanged, a modifier lost: each shows."""
    program = pf.load("sigmoid.forward.bf16.d4")
    text = pf.emit(program, "ptx")
    coefficient = program.consts["c2"] * 2
    changed = f"{int(coefficient, 16) + 0x00010001:08x}"
    for old, new in ((coefficient, changed), ("min.NaN.xorsign.abs", "min.NaN"), ("fma.rn.relu", "fma.rn"), ("min.NaN.bf16x2", "max.NaN.bf16x2")):
        assert old in text, old
        assert check(program, "packed", "sm_90", text.replace(old, new)) > 0, (old, new)


def test_the_interpreter_rounds_once() -> None:
    """Its fma against exact rationals of the tests' oracle, on triples near ties and at the ends of the range."""
    from fractions import Fraction

    import oracles

    rng = np.random.default_rng(11)
    for name, kind in (("bf16", "bf16"), ("fp16", "f16")):
        a, b, c = rng.integers(0, 65536, (3, 4000))
        c[::2] = ptx.arithmetic(["mul"], kind, [a, b])[::2] ^ rng.integers(0, 4, 2000) ^ 0x8000  # cancellation
        got = ptx.arithmetic(["fma"], kind, [a, b, c])
        for i in range(4000):
            values = [oracles.signed(name, int(v[i])) for v in (a, b, c)]
            if all(isinstance(v, Fraction) for v in values):
                exact = values[0] * values[1] + values[2]
                if exact:
                    n, d = abs(exact).numerator, abs(exact).denominator
                    assert int(got[i]) == oracles.pack(name, int(exact < 0), n, -(d.bit_length() - 1)), (name, i)


def test_counts_are_the_instructions_of_the_text() -> None:
    """The program's own count is what the PTX has, on an architecture with every instruction."""
    for name in NAMES:
        program = pf.load(name)
        assert lower(program, "sm_90").cost == program.counts.instructions, name


def test_outputs_can_be_chosen() -> None:
    program = pf.load("sigmoid.forward.bf16.coupled-d3.endpoint-ls")
    both = lower(program, "sm_90").cost
    for output in ("value", "derivative"):
        block = lower(program, "sm_90", outputs=(output,))
        assert block.cost < both and [r for r, _ in block.outputs] == ["y"]
        machine = ptx.Machine({"x": ALL.astype(np.int64)})
        machine.run(block.text())
        assert np.array_equal(machine.registers["y"] & 0xFFFF, expected(program, ALL)[output])
    with pytest.raises(pf.UnknownNameError, match=r"no output 'slope'; it has value, derivative"):
        pf.emit(program, "ptx", outputs=["slope"])


# -- C -------------------------------------------------------------------------------------------------


def test_c_of_every_program_gives_the_bits_of_replay(tmp_path: Path) -> None:
    """All in one C99 file, strictly compiled; every input."""
    need_tool("gcc")
    source, calls = [], []
    for i, name in enumerate(PORTABLE):
        program = pf.load(name)
        text = pf.emit(program, "c")
        source.append(text if i == 0 else text[text.index("#ifndef POLYFMA_" + identifier(program)) :])
        for output in program.outputs:
            function = f"polyfma_{identifier(program)}" + ("" if len(program.outputs) == 1 else f"_{output}")
            calls.append((program, output, f"void run_{i}_{output}(uint16_t *y) {{ for (long k = 0; k < 65536; ++k) y[k] = {function}((uint16_t)k); }}"))
    file, library = tmp_path / "all.c", tmp_path / "all.so"
    file.write_text("\n".join([*source, *(c for _, _, c in calls)]))
    subprocess.run(["gcc", "-O1", "-std=c99", "-pedantic", "-Wall", "-Wextra", "-Werror", "-ffp-contract=off", "-shared", "-fPIC", "-o",
                    str(library), str(file), "-lm"], check=True)  # fmt: skip
    loaded = ctypes.CDLL(str(library))
    index = {name: i for i, name in enumerate(PORTABLE)}
    for program, output, _ in calls:
        got = np.full(65536, 0xDEAD, dtype=np.uint16)
        getattr(loaded, f"run_{index[program.name]}_{output}")(got.ctypes.data_as(ctypes.c_void_p))
        assert np.array_equal(got, expected(program, ALL)[output]), (program.name, output)


def test_one_c_header_stands_alone(tmp_path: Path) -> None:
    need_tool("gcc")
    for name in ("silu.forward.bf16.d4", "tanh.forward.fp16.d4"):
        (tmp_path / f"{name}.h").write_text(pf.emit(pf.load(name), "c"))
    (tmp_path / "both.c").write_text('#include "silu.forward.bf16.d4.h"\n#include "tanh.forward.fp16.d4.h"\n'
                                     "int main(void) { return polyfma_silu_forward_bf16_d4(0x3f80) == 0 || polyfma_tanh_forward_fp16_d4(0) != 0; }\n")  # fmt: skip
    subprocess.run(["gcc", "-std=c99", "-Wall", "-Werror", "-o", "both", "both.c", "-lm"], check=True, cwd=tmp_path)
    assert subprocess.run([tmp_path / "both"], check=False).returncode == 0


# -- CUDA ----------------------------------------------------------------------------------------------


def cuda_file(names: list[str], folder: Path) -> str:
    """Headers written to the folder, and a kernel for every entry point of each."""
    text = ""
    for i, name in enumerate(names):
        program = pf.load(name)
        (folder / f"{i}.cuh").write_text(pf.emit(program, "cuda"))
        struct = f"polyfma::{identifier(program)}"
        text += f'#include "{i}.cuh"\n__global__ void k{i}({struct}::packed* x, float2* f, {struct}::scalar* s) {{\n'
        for output in program.outputs:
            text += f"  x[0] = {struct}::{output}(x[0]); x[1] = {struct}::{output}_packed(f[0]); f[1] = {struct}::{output}_f32(f[0]); s[0] = {struct}::{output}(s[0]);\n"
        if len(program.outputs) > 1:
            text += f"  {struct}::all(x[2], x[3], x[4]); {struct}::all_packed(f[2], x[5], x[6]); {struct}::all_f32(f[2], f[3], f[4]);\n"
        text += "}\n"
    return text


@pytest.mark.parametrize("arch", ["sm_80", "sm_90", "sm_100", "sm_120"])
def test_cuda_headers_compile(arch: str, nvcc: None, tmp_path: Path) -> None:
    names = [n for n in FORMS if arch != "sm_80" or not (pf.load(n).counts.mufu and pf.load(n).format == "bf16")]
    (tmp_path / "all.cu").write_text(cuda_file(names, tmp_path))
    done = subprocess.run(["nvcc", f"-arch={arch}", "-Xcompiler", "-Wall,-Wextra", "-Werror", "all-warnings", "-c", "-o", "all.o", "all.cu"],
                          cwd=tmp_path, capture_output=True, text=True, check=False)  # fmt: skip
    assert done.returncode == 0, done.stderr


def test_cuda_header_refuses_an_architecture_without_the_instruction(nvcc: None, tmp_path: Path) -> None:
    (tmp_path / "one.cu").write_text(cuda_file(["tanh.forward.bf16.hardware"], tmp_path))
    done = subprocess.run(["nvcc", "-arch=sm_86", "-cubin", "-o", "one.cubin", "one.cu"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode != 0 and "needs sm_90 or later" in done.stderr


def test_cuda_headers_run_on_the_host(nvcc: None, tmp_path: Path) -> None:
    """Host code of the header, every input, packed, scalar and from fp32."""
    names = [n for n in FORMS if n in PORTABLE and len(pf.load(n).outputs) == 1]
    main = cuda_file(names, tmp_path) + "#include <cstdio>\nint main() {\n"
    for name in names:
        struct = f"polyfma::{identifier(pf.load(name))}"
        main += (f"  for (unsigned k = 0; k < 65536; ++k) {{ unsigned h = (k * 40503u + 77u) & 0xffffu;\n"
                 f"    unsigned y = {struct}::bits({struct}::value({struct}::pair(k | h << 16))); {struct}::scalar s; unsigned short u = k;\n"
                 f"    memcpy(&s, &u, 2); s = {struct}::value(s); memcpy(&u, &s, 2); unsigned short v[3] = {{(unsigned short)y, (unsigned short)(y >> 16), u}};\n"
                 f"    fwrite(v, 2, 3, stdout); }}\n")  # fmt: skip
    (tmp_path / "host.cu").write_text(main + "}\n")
    subprocess.run(["nvcc", "-arch=sm_90", "-O1", "-o", "host", "host.cu"], cwd=tmp_path, check=True)
    results = np.frombuffer(subprocess.run([tmp_path / "host"], capture_output=True, check=True).stdout, dtype=np.uint16).reshape(len(names), 65536, 3)
    high = (ALL.astype(np.uint32) * 40503 + 77 & 0xFFFF).astype(np.uint16)
    for name, got in zip(names, results, strict=True):
        wanted = expected(pf.load(name), ALL)["value"]
        assert np.array_equal(got[:, 0], wanted) and np.array_equal(got[:, 1], wanted[high]) and np.array_equal(got[:, 2], wanted), name


# -- Triton and CuTe -----------------------------------------------------------------------------------

TRITON_KERNEL = """

@triton.jit
def kernel(x_ptr, y_ptr, z_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i, mask=i < n)
{body}
"""


def triton_kernel(program: pf.Program, suffix: str) -> str:
    call = f"{identifier(program)}{suffix}(x)"
    if len(program.outputs) == 1:
        return TRITON_KERNEL.format(body=f"    tl.store(y_ptr + i, {call}, mask=i < n)")
    return TRITON_KERNEL.format(body=f"    y, z = {call}\n    tl.store(y_ptr + i, y, mask=i < n)\n    tl.store(z_ptr + i, z, mask=i < n)")


@pytest.mark.parametrize("capability", [80, 90, 100])
def test_triton_functions_compile(capability: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    triton = pytest.importorskip("triton")
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "cache"))
    for number, name in enumerate(FORMS):
        program = pf.load(name)
        if program.counts.mufu and program.format == "bf16" and capability < 90:
            continue
        for suffix, taken, given in (("", program.format, program.format), ("_f32_packed", "fp32", program.format), ("_f32", "fp32", "fp32")):
            if suffix and number % 5:
                continue
            source = pf.emit(program, "triton", arch=f"sm_{capability}") + triton_kernel(program, suffix)
            module = imported(tmp_path / f"m{number}{suffix}.py", source)
            signature = {"x_ptr": f"*{taken}", "y_ptr": f"*{given}", "z_ptr": f"*{given}", "n": "i32", "BLOCK": "constexpr"}
            aligned = {(i,): [["tt.divisibility", 16]] for i in range(4)}
            built = triton.compile(ASTSource(fn=module.kernel, signature=signature, constexprs={(4,): 1024}, attrs=aligned),
                                   target=GPUTarget("cuda", capability, 32))  # fmt: skip
            text = built.asm["ptx"]
            assert built.asm["cubin"] and "prmt" not in text and "ld.global.v4" in text, (name, suffix)


def imported(path: Path, source: str):
    import importlib.util

    path.write_text(source)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


CUTE_SCORE_MOD = '''

import cutlass
import cutlass.cute as cute
from cutlass import Float32


@cute.jit
def score_mod(scores, batch_idx, head_idx, q_idx, kv_idx, seqlen_info, aux_tensors):
    out = cute.make_rmem_tensor(scores.shape, Float32)
    out.store(scores)
    for i in cutlass.range_constexpr(0, cute.size(scores.shape), 2):
        a, b = out[i], out[i + 1]
        {body}
        out[i] = a
        out[i + 1] = b
    return out.load()


score_mod.__vec_size__ = 2
'''
CUTE_COMPILE = """
import importlib, sys
sys.path.insert(0, sys.argv[1])
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from flash_attn.cute.interface import _flash_attn_fwd
module = importlib.import_module("mods")
with FakeTensorMode():
    q, k, v = (torch.empty(1, 256, 2, 64, dtype=torch.bfloat16, device="cuda") for _ in range(3))
    _flash_attn_fwd(q, k, v, causal=True, score_mod=module.score_mod)
"""


def cute_calls(program: pf.Program) -> list[str]:
    """Both layouts that an attention kernel has: fp32 pairs in, packed or fp32 pairs out."""
    name = identifier(program)
    if len(program.outputs) > 1:
        return [f"a, b, c, d = {name}_f32(a, b)", "a, b = a + c, b + d"]
    return [f"a, b = {name}_f32(Float32({name}(a, b) & 1) + a, b)"]


# All forms in one kernel of sm_90a; those of sm_100a take the square of their number, so they go in groups.
CUTE_GROUPS = [("sm_90a", FORMS), *(("sm_100a", FORMS[i::6]) for i in range(6))]


@pytest.mark.parametrize(("arch", "names"), CUTE_GROUPS, ids=[f"{a}-{i}" for i, (a, _) in enumerate(CUTE_GROUPS)])
def test_cute_functions_compile_inside_flash_attention(arch: str, names: list[str], tmp_path: Path) -> None:
    pytest.importorskip("flash_attn.cute")
    programs = [pf.load(n) for n in names]
    body = "\n        ".join(line for p in programs for line in cute_calls(p))
    (tmp_path / "mods.py").write_text("\n\n".join(pf.emit(p, "cute", arch=arch) for p in programs) + CUTE_SCORE_MOD.format(body=body))
    (tmp_path / "run.py").write_text(CUTE_COMPILE)
    env = os.environ | {"FLASH_ATTENTION_ARCH": arch, "CUTE_DSL_ARCH": arch, "FLASH_ATTENTION_NUM_SMS": "132" if arch == "sm_90a" else "148",
                        "CUTE_DSL_KEEP_PTX": "1", "CUTE_DSL_KEEP_CUBIN": "1", "CUTE_DSL_DUMP_DIR": str(tmp_path),
                        "FLASH_ATTENTION_CUTE_DSL_CACHE_ENABLED": "0"}  # fmt: skip
    done = subprocess.run([sys.executable, "run.py", str(tmp_path)], cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    (text,) = [p.read_text() for p in tmp_path.glob("*.ptx")]
    assert list(tmp_path.glob("*.cubin"))
    for p in programs:
        for constant in list(p.consts.values())[:1]:
            assert (constant * 2 if len(constant) == 4 else constant).lower() in text.lower(), p.name


# -- programs of one's own -------------------------------------------------------------------------------


def own(consts: dict, ops: list[tuple[str, str, str]], outputs: dict | None = None, name: str = "own", fmt: str = "bf16") -> pf.Program:
    """ops are (operation, result, operands separated by spaces)."""
    made = tuple(pf.Op(op, dst, tuple(src.split()), fmt) for op, dst, src in ops)
    return pf.Program(name, "tanh", "forward", fmt, 1, "odd", ("x",), consts, made, outputs or {"value": ops[-1][1]})


AWKWARD = {
    "constants named as stand-ins": own({"minus_one": "3f00", "plus_one": "4000", "minus_zero": "bf80"}, [
        ("mul", "a", "x minus_one"), ("sub", "b", "a x"), ("add", "c", "b plus_one"), ("mul", "y", "c minus_zero")]),
    "the input is an output": own({"c": "3f00"}, [("fma", "a", "x x c")], {"value": "a", "same": "x"}),
    "names like registers": own({"k": "3f00"}, [("mul", "b", "x k"), ("add", "a", "b b"), ("add", "r_b", "a k")], {"r_b": "a", "value": "b", "x": "r_b"}),
    "names like lanes": own({"x0": "3f80", "y0": "4000"}, [("add", "x1", "x x0"), ("mul", "y_value", "x1 y0")], {"y": "x1", "x": "y_value"}),
    "two outputs, one source": own({"c": "3f00"}, [("add", "a", "x c")], {"value": "a", "derivative": "a"}),
    "three outputs": own({"c": "3f00"}, [("add", "a", "x c"), ("mul", "b", "a a"), ("neg", "d", "b")], {"value": "a", "derivative": "b", "third": "d"}),
    "unused operations": own({"c": "3f00", "d": "7f80"}, [("add", "u", "x d"), ("add", "a", "x c")], {"value": "a"}),
    "nothing but the input": own({}, [("abs", "a", "x")], {"value": "x"}),
    "words of C++": own({"int": "3f00"}, [("add", "class", "x int"), ("mul", "float", "class class")], {"register": "float", "asm": "class"}, "int"),
    "words of Python": own({"lambda": "3f00"}, [("add", "import", "x lambda")], {"value": "import"}, "class"),
    "infinite and negative constants": own({"i": "ff80", "n": "bf80", "z": "8000"}, [
        ("min.nan.xorsign.abs", "a", "x n"), ("max", "b", "a i"), ("fma", "c", "b n z"), ("copysign", "y", "c n")]),
}  # fmt: skip


@pytest.mark.parametrize("label", AWKWARD)
def test_awkward_programs_give_the_bits_of_replay(label: str) -> None:
    for layout in LAYOUTS:
        for arch in ("sm_80", "sm_86", "sm_90"):
            assert check(AWKWARD[label], layout, arch) == 0, (layout, arch)


def test_awkward_programs_compile_for_every_target(nvcc: None, tmp_path: Path) -> None:
    from polyfma.emit.tools import find_tool

    text = ""
    for i, (label, program) in enumerate(AWKWARD.items()):
        program = program.renamed(f"{program.name}{i}" if program.name == "own" else program.name)
        for layout in LAYOUTS:
            (tmp_path / "p.ptx").write_text(pf.emit(program, "ptx", layout=layout))
            done = subprocess.run([find_tool("ptxas"), "-arch=sm_90", "-o", "p.o", "p.ptx"], cwd=tmp_path, capture_output=True, text=True, check=False)
            assert done.returncode == 0, (label, layout, done.stderr)
        (tmp_path / f"{i}.cuh").write_text(pf.emit(program, "cuda"))
        text += f'#include "{i}.cuh"\n#include "{i}.cuh"\n'
        (tmp_path / "p.h").write_text(pf.emit(program, "c"))
        (tmp_path / "p.c").write_text('#include "p.h"\n#include "p.h"\nint main(void) { return 0; }\n')
        subprocess.run(["gcc", "-std=c99", "-pedantic", "-Wall", "-Wextra", "-Wno-unused-function", "-Werror", "-c", "p.c"], cwd=tmp_path, check=True)
        subprocess.run(["g++", "-std=c++17", "-x", "c++", "-Wall", "-Wno-unused-function", "-Werror", "-c", "p.c"], cwd=tmp_path, check=True)
        for target in ("triton", "cute"):
            compile(pf.emit(program, target), label, "exec")
    (tmp_path / "all.cu").write_text(text + "int main() { return 0; }\n")
    done = subprocess.run(["nvcc", "-arch=sm_90", "-c", "all.cu"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", ["silu.forward.bf16.d4", "sigmoid.forward.bf16.coupled-d3.endpoint-ls", "tanh.forward.fp16.hardware"])
def test_a_header_alone_gives_no_warning(name: str, nvcc: None, tmp_path: Path) -> None:
    (tmp_path / "one.cuh").write_text(pf.emit(pf.load(name), "cuda"))
    (tmp_path / "one.cu").write_text('#include "one.cuh"\n')
    done = subprocess.run(["nvcc", "-arch=sm_90", "-Xcompiler", "-Wall,-Wextra", "-Werror", "all-warnings", "-c", "one.cu"], cwd=tmp_path,
                          capture_output=True, text=True, check=False)  # fmt: skip
    assert done.returncode == 0 and done.stderr == "", done.stderr


def test_headers_stand_together_and_never_hide_one_another(nvcc: None, tmp_path: Path) -> None:
    hardware = pf.load("tanh.forward.bf16.hardware")
    d3, d4 = pf.load("tanh.forward.bf16.d3"), pf.load("tanh.forward.bf16.d4")
    for i, source in enumerate((pf.emit(pf.Hybrid(hardware, d3, 2), "cuda"), pf.emit(pf.Hybrid(hardware, d4, 2), "cuda"), pf.emit(d4, "cuda"),
                                pf.emit(hardware, "cuda"))):  # fmt: skip
        (tmp_path / f"{i}.cuh").write_text(source)
    (tmp_path / "all.cu").write_text("".join(f'#include "{i}.cuh"\n' for i in range(4)))
    subprocess.run(["nvcc", "-arch=sm_90", "-c", "all.cu"], cwd=tmp_path, check=True)
    a, b = own({"c": "3f00"}, [("add", "a", "x c")], name="a.b"), own({"c": "3f80"}, [("add", "a", "x c")], name="a-b")
    (tmp_path / "two.c").write_text(pf.emit(a, "c") + pf.emit(b, "c"))
    done = subprocess.run(["gcc", "-c", "two.c"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode != 0 and "two polyfma programs, or two layouts of one, have the identifier program_a_b" in done.stderr
    (tmp_path / "p.c").write_text(pf.emit(a, "c"))
    done = subprocess.run(["gcc", "-Ofast", "-c", "p.c"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert "compile without -ffast-math" in done.stderr


@pytest.mark.parametrize("arch", ["sm_80", "sm_86", "sm_87", "sm_89", "sm_90", "sm_90a", "sm_100", "sm_100a", "sm_100f", "sm_103a", "sm_120", "sm_120f", "sm_121"])
def test_ptx_assembles_for_every_architecture(arch: str, tmp_path: Path) -> None:
    from polyfma.emit.architecture import get_architecture
    from polyfma.emit.tools import assemble, find_tool, version_of

    if float(version_of(find_tool("ptxas")) or 0) < 13:
        pytest.skip("ptxas older than 13.0 does not know every architecture")
    for name in ("silu.forward.bf16.d4", "sigmoid.forward.bf16.coupled-d3.endpoint-ls", "tanh.forward.fp16.fp32-fused-odd-limited-d8"):
        for layout in LAYOUTS:
            (tmp_path / "p.ptx").write_text(pf.emit(pf.load(name), "ptx", arch=arch, layout=layout))
            assemble(tmp_path / "p.ptx", tmp_path / "p.cubin", get_architecture(arch))


def test_a_scaled_source_says_what_it_was_measured_against() -> None:
    """The function of the scaled program is another one: no certificate of the base stands over it."""
    base = pf.load("sigmoid.forward.bf16.d4")
    text = pf.emit(base, "cuda", output_scale=2.0**-12)
    assert f"folded from {base.name}, digest {base.digest}" in text and "certified" not in text
    assert "computes 0.000244140625 f(1 x), f = sigmoid forward" in text and "0 results are not the scaled bits" in text
    error = float(re.search(r"max \|error\| (\S+) against the scaled function", text)[1])
    assert error == pytest.approx(pf.certify(base).max_abs_error / 4096, rel=1e-3)
    half = pf.emit(pf.load("silu.forward.fp16.times-sigmoid-d4"), "ptx", output_scale=0.25)
    differ = int(re.search(r"; (\d+) results are not the scaled bits", half)[1])
    assert differ > 0  # intermediate results are subnormal there, and the source says so


# -- headers, refusals, hybrids --------------------------------------------------------------------------


@pytest.mark.parametrize("target", ["ptx", "cuda", "triton", "cute", "c"])
def test_every_source_says_what_it_is(target: str) -> None:
    program = pf.load("silu.forward.bf16.d4")
    head = "\n".join(pf.emit(program, target).splitlines()[:9])
    for part in (program.name, program.digest, "8 instructions", "all 65536 inputs", "exact tails", "polyfma certify silu.forward.bf16.d4"):
        assert part in head, part
    assert pf.emit(program, target) == pf.emit(program, target)


def test_a_program_of_ones_own_is_certified_in_its_header(tmp_path: Path) -> None:
    program = pf.load("silu.forward.bf16.d4").renamed("mine")
    text = pf.emit(program, "ptx")
    assert "max |error| 0.02314" in text and "polyfma certify PROGRAM.json" in text


def test_names_of_a_program_cannot_clash_in_ptx() -> None:
    """Results, constants, lanes and stand-ins have name spaces of their own."""
    ops = (pf.Op("min.nan.xorsign.abs", "k_c", ("x", "c"), "bf16"), pf.Op("cvt", "r0_c", ("k_c",), "fp32"), pf.Op("mul", "s0_k_c", ("r0_c", "r0_c"), "fp32"),
           pf.Op("cvt", "y", ("s0_k_c",), "bf16"), pf.Op("add", "mov", ("y", "k_c"), "bf16"))  # fmt: skip
    program = pf.Program("clash", "tanh", "forward", "bf16", 1, "odd", ("x",), {"c": "3f80"}, ops, {"value": "mov"})
    for arch in ("sm_80", "sm_90"):
        for layout in LAYOUTS:
            assert check(program, layout, arch) == 0


def test_every_operation_lowers() -> None:
    """Operations that no catalogue program uses, in every format and lowering."""
    from polyfma.program import OPERATIONS

    for fmt in ("bf16", "fp16", "fp32"):
        for name, operation in OPERATIONS.items():
            if (name, fmt) in (("fma.sat", "bf16"), ("fma.relu", "fp32")) or name == "cvt" or name.endswith(".approx"):
                continue
            program = one_operation(name, operation.arity, fmt)
            for arch in ("sm_80", "sm_86", "sm_90"):
                assert check(program, "packed", arch) == 0, (fmt, name, arch)


def one_operation(name: str, arity: int, fmt: str) -> pf.Program:
    """op(x, negative constant, x) between conversions, with a compare before a select."""
    outer, wide = "fp16" if fmt == "fp32" else fmt, fmt == "fp32"
    consts = {"c": {"bf16": "bfc0", "fp16": "be00", "fp32": "bfc00000"}[fmt]}
    ops = [pf.Op("cvt", "v", ("x",), "fp32")] if wide else []
    v = "v" if wide else "x"
    operands = (v, "c", v)[:arity]
    if name == "select":
        ops.append(pf.Op("set.gt", "m", (v, "c"), fmt))
        operands = ("m", v, "c")
    ops.append(pf.Op(name, "r", operands, fmt))
    last = "r"
    if name.startswith("set."):
        ops.append(pf.Op("select", "s", ("r", v, "c"), fmt))
        last = "s"
    if wide:
        ops.append(pf.Op("cvt", "y", (last,), outer))
        last = "y"
    used = consts if any("c" in op.src for op in ops) else {}
    return pf.Program("one", "tanh", "forward", outer, 1, "odd", ("x",), used, tuple(ops), {"value": last})


def test_refusals() -> None:
    program = pf.load("tanh.forward.bf16.d4")
    for arguments, message in (
        ({"target": "hip"}, r"unknown target 'hip'; known: ptx, cuda, triton, cute, c"),
        ({"target": "ptx", "arch": "sm_91"}, r"unknown architecture 'sm_91'; known: sm_70"),
        ({"target": "ptx", "arch": "hopper"}, r"unknown architecture 'hopper'"),
        ({"target": "ptx", "arch": "sm_86a"}, r"unknown architecture 'sm_86a'"),
        ({"target": "ptx", "arch": "sm_90f"}, r"unknown architecture 'sm_90f'"),
        ({"target": "ptx", "arch": ""}, r"unknown architecture ''"),
        ({"target": "ptx", "outputs": "value"}, r"outputs 'value' must be a list of names; tanh.forward.bf16.d4 has value"),
        ({"target": "ptx", "outputs": 5}, r"outputs 5 must be a list of names"),
        ({"target": "ptx", "arch": "sm_75"}, r"uses min.NaN.xorsign.abs.bf16x2, which begins with sm_86 \(with a longer sequence: sm_80\)"),
        ({"target": "ptx", "layout": "f64"}, r"unknown layout 'f64'; known: packed, f32-packed, f32"),
        ({"target": "c", "layout": "f32"}, r"target c takes no layout"),
        ({"target": "cuda", "arch": "sm_90"}, r"target cuda takes no arch"),
        ({"target": "ptx", "input_scale": 0.0}, r"input_scale 0.0 must be a positive number"),
    ):
        with pytest.raises(pf.PolyfmaError, match=message):
            pf.emit(program, **arguments)
    with pytest.raises(pf.ProgramError, match=r"emit takes a Program, not str"):
        pf.emit("tanh.forward.bf16.d4", "ptx")
    with pytest.raises(pf.ProgramError, match=r"uses tanh.approx, the GPU's own function, which has no portable C form"):
        pf.emit(pf.load("tanh.forward.bf16.hardware"), "c")


def test_hybrid_alternates_lane_pairs(nvcc: None, tmp_path: Path) -> None:
    hardware, polynomial = pf.load("tanh.forward.bf16.hardware"), pf.load("tanh.forward.bf16.d4")
    hybrid = pf.Hybrid(hardware, polynomial, 4, 3)
    assert [hybrid.program_of(i) is hardware for i in range(5)] == [True, True, True, False, True]
    (tmp_path / "h.cuh").write_text(pf.emit(hybrid, "cuda"))
    (tmp_path / "h.cu").write_text('#include "h.cuh"\nusing h = polyfma::tanh_forward_bf16_d4_hybrid_3_of_4;\n'
                                   "__global__ void k(h::packed* x, float2* f) { x[0] = h::value<0>(x[0]); x[3] = h::value<3>(x[3]); f[0] = h::value_f32<5>(f[0]); }\n")  # fmt: skip
    subprocess.run(["nvcc", "-arch=sm_90", "-ptx", "-o", "h.ptx", "h.cu"], cwd=tmp_path, check=True)
    text = (tmp_path / "h.ptx").read_text()
    assert text.count("tanh.approx.bf16x2") == 2 and text.count("min.NaN.xorsign.abs.bf16x2") == 1
    cute = pf.emit(hybrid, "cute")
    assert "def tanh_forward_bf16_d4_hybrid_3_of_4_f32(pair: int, x0, x1):" in cute and "pair % 4 < 3" in cute
    compile(cute, "cute", "exec")


def test_hybrid_refusals() -> None:
    hardware, polynomial = pf.load("tanh.forward.bf16.hardware"), pf.load("tanh.forward.bf16.d4")
    for arguments, message in (
        (("a", "b", 2), r"a hybrid takes two Programs, not str"),
        ((hardware, polynomial, 2000), r"period <= 1024"),
        ((hardware.renamed("a.b"), polynomial.renamed("a-b"), 2), r"a.b and a-b have one identifier in source; rename one"),
        ((polynomial, hardware, 2), r"a program of the special-function unit and one without it, in this order"),
        ((hardware, pf.load("tanh.forward.fp16.d4"), 2), r"one function, direction and format"),
        ((hardware, polynomial, 1), r"0 < hardware_pairs < period"),
        ((hardware, polynomial, 2, 2), r"0 < hardware_pairs < period"),
        ((hardware, polynomial, 2.5), r"whole numbers"),
    ):
        with pytest.raises(pf.ProgramError, match=message):
            pf.Hybrid(*arguments)
    with pytest.raises(pf.UnknownNameError, match=r"hybrids are emitted for cuda and cute, not 'triton'"):
        pf.emit(pf.Hybrid(hardware, polynomial, 2), "triton")
    with pytest.raises(pf.ProgramError, match=r"tanh.approx.bf16x2, which begins with sm_90"):
        pf.emit(pf.Hybrid(hardware, polynomial, 2), "cute", arch="sm_80")


def test_identifiers_are_identifiers() -> None:
    for name in NAMES:
        assert re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", identifier(pf.load(name)))
    assert len({identifier(pf.load(n)) for n in NAMES}) == len(NAMES)
