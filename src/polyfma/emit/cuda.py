"""CUDA C++: a header with one struct a program, for device code on any architecture from sm_80 and for host tests.

Device code is the PTX of :mod:`polyfma.emit.lowering`, chosen by ``__CUDA_ARCH__`` where architectures differ;
host code is the portable C function, so that both give the same bits.
"""

from __future__ import annotations

from collections.abc import Sequence

from polyfma.emit.architecture import get_architecture
from polyfma.emit.c import arithmetic, c_function, c_name
from polyfma.emit.header import guarded, identifier
from polyfma.emit.lowering import LAYOUTS, Block, lower, needed_ops
from polyfma.errors import ProgramError
from polyfma.program import Program

# Where the instruction sets differ; the text of one holds up to the next.
LEVELS = (90, 86, 80)
_TYPES = {"bf16": ("__nv_bfloat16", "__nv_bfloat162", "cuda_bf16.h"), "fp16": ("__half", "__half2", "cuda_fp16.h")}
_SUFFIXES = {"packed": "", "f32-packed": "_packed", "f32": "_f32"}
_BITS = """
  __host__ __device__ static unsigned bits(packed x) { unsigned y; memcpy(&y, &x, 4); return y; }
  __host__ __device__ static packed pair(unsigned x) { packed y; memcpy((void*)&y, &x, 4); return y; }
"""


def cuda_source(program: Program, outputs: Sequence[str], layout: str | None, comments: Sequence[str]) -> str:
    """The header ``polyfma::NAME``. For each output O: ``O(packed)``, ``O(scalar)``, ``O_packed(float2)`` and ``O_f32(float2)``.

    ``all``, ``all_packed`` and ``all_f32`` give several outputs by reference. Raises ProgramError where no
    architecture has the instructions.
    """
    if program.fmt.width != 16:
        raise ProgramError(f"{program.name} is a {program.format} program; CUDA headers are emitted for bf16 and fp16")
    scalar, packed, include = _TYPES[program.format]
    head = "\n".join(f"// {line}" for line in comments)
    host = _has_host(program, outputs)
    layouts = (layout,) if layout else LAYOUTS
    methods = [_method(program, (output,), one, host) for output in outputs for one in layouts]
    if len(outputs) > 1:
        methods += [_method(program, tuple(outputs), one, host) for one in layouts]
    scalars = [_scalar(output, host) for output in outputs if "packed" in layouts]
    portable = "\n".join(c_function(program, output, single=False) for output in outputs) if host else ""
    body = (f"namespace polyfma {{\n{portable}\nstruct {identifier(program)} {{\n  using scalar = {scalar};\n  using packed = {packed};\n"
            f'  static constexpr const char* program = "{program.name}";\n  static constexpr const char* digest = "{program.digest}";\n'
            f"  static constexpr int instructions = {program.counts.instructions};  // for a pair of lanes\n"
            f"{_BITS}\n{''.join(methods)}{''.join(scalars)}}};\n}}  // namespace polyfma")  # fmt: skip
    return f"{head}\n#include <{include}>\n{arithmetic() if host else '#include <string.h>'}\n{guarded(identifier(program), program.digest, body, layout)}"


def method_name(output: str) -> str:
    """``value`` and ``derivative`` by themselves; any other output could be a word of C++ or of the struct."""
    return output if output in ("value", "derivative") else f"output_{output}"


def _has_host(program: Program, outputs: Sequence[str]) -> bool:
    return not any(op.op.endswith(".approx") for op in needed_ops(program, outputs))


def _where(host: bool) -> str:
    return "__host__ __device__" if host else "__device__"


def _scalar(output: str, host: bool) -> str:
    """One element by the same program, so that equal inputs give equal bits wherever they stand."""
    name = method_name(output)
    return (f"  {_where(host)} static scalar {name}(scalar x) {{\n    packed xx;\n    xx.x = x;\n    xx.y = x;\n"
            f"    return {name}(xx).x;\n  }}\n")  # fmt: skip


def _method(program: Program, outputs: tuple[str, ...], layout: str, host: bool) -> str:
    taken = "packed" if layout == "packed" else "float2"
    given = "float2" if layout == "f32" else "packed"
    single = len(outputs) == 1
    name = (method_name(outputs[0]) if single else "all") + _SUFFIXES[layout]
    if single:
        head = f"  {_where(host)} static {given} {name}({taken} x) {{\n    {given} y_{outputs[0]};\n"
    else:
        head = f"  {_where(host)} static void {name}({taken} x, {', '.join(f'{given}& y_{o}' for o in outputs)}) {{\n"
    end = f"    return y_{outputs[0]};\n" if single else ""
    return head + _device(program, outputs, layout) + (_host(program, outputs, layout) if host else _no_host(outputs, layout)) + end + "  }\n"


def _device(program: Program, outputs: tuple[str, ...], layout: str) -> str:
    """The assembly of every level that differs from the one above it, between #if and #else."""
    texts: list[tuple[int, str]] = []
    refusal = ""
    for level in LEVELS:
        try:
            block = lower(program, get_architecture(f"sm_{level}"), layout, outputs)
        except ProgramError as error:
            refusal = str(error)
            break
        text = _asm(block, outputs, layout)
        if texts and texts[-1][1] == text:
            texts[-1] = (level, text)
        else:
            texts.append((level, text))
    if not texts:
        raise ProgramError(refusal)
    branches = [f"{'#if' if i == 0 else '#elif'} defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= {level}0\n{text}" for i, (level, text) in enumerate(texts)]
    least = texts[-1][0]
    wrong = f'#elif defined(__CUDA_ARCH__)\n#error "{program.name} needs sm_{least} or later"\n'
    return "".join(branches) + wrong


def _asm(block: Block, outputs: tuple[str, ...], layout: str) -> str:
    """Inline assembly with the block's registers as C++ variables."""
    ports = [name for name, _ in (*block.outputs, *block.inputs)]
    names = {name: f"%{i}" for i, name in enumerate(ports)}
    lines = block.text(names, indent="", separator="\n").split("\n")
    quoted = "\n        ".join(f'"{line} "' for line in lines)
    results = [f"y_{o}.{lane}" for o in outputs for lane in "xy"] if layout == "f32" else [f"bits_{o}" for o in outputs]
    declared = "" if layout == "f32" else f"    unsigned {', '.join(results)};\n"
    targets = ", ".join(f'"={"f" if kind == "f32" else "r"}"({result})' for result, (_, kind) in zip(results, block.outputs, strict=True))
    sources = '"r"(bits(x))' if layout == "packed" else '"f"(x.x), "f"(x.y)'
    stored = "" if layout == "f32" else "".join(f"    y_{o} = pair(bits_{o});\n" for o in outputs)
    return f"{declared}    asm({quoted}\n        : {targets} : {sources});\n{stored}"


def _no_host(outputs: tuple[str, ...], layout: str) -> str:
    """A device function is parsed in the host's pass too; it is never called there."""
    nothing = "make_float2(0.0f, 0.0f)" if layout == "f32" else "pair(0)"
    return "#else\n" + "".join(f"    y_{output} = {nothing};\n" for output in outputs) + "#endif\n"


def _host(program: Program, outputs: tuple[str, ...], layout: str) -> str:
    """Lane by lane through the portable function."""
    lines = ["#else"]
    if layout == "packed":
        lines.append("    const unsigned x0 = bits(x) & 0xffffu, x1 = bits(x) >> 16;")
    else:
        lines += [f"    const unsigned x{i} = pf_encode(pf_{program.format}, (double)x.{lane});" for i, lane in enumerate("xy")]
    for output in outputs:
        calls = [f"{c_name(program, output, single=False)}((uint16_t)x{i})" for i in (0, 1)]
        if layout == "f32":
            lines += [f"    y_{output}.{lane} = pf_to_f32(pf_{program.format}, {call});" for lane, call in zip("xy", calls, strict=True)]
        else:
            lines.append(f"    y_{output} = pair((unsigned){calls[0]} | (unsigned){calls[1]} << 16);")
    return "\n".join([*lines, "#endif", ""])
