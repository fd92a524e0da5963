"""The operators' kernels compiled without a GPU: widths of accesses, no double precision, and fusion by Inductor."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from types import SimpleNamespace
from unittest import mock

import pytest
import torch

import polyfma as pf
from polyfma.ops import dispatcher, inductor, layout
from polyfma.ops.choice import choose
from polyfma.ops.launch import Variant, compile_kernel
from polyfma.ops.operation import INPUTS
from tensors import DEVICES, every_input, to_bits

CAPABILITIES = (80, 90, 100, 120)


@pytest.fixture(autouse=True, scope="module")
def triton_cache(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_CACHE_DIR", str(tmp_path_factory.mktemp("triton")))
        yield


def variants():
    for given in (None, "exact"):
        for kind in INPUTS:
            for tile in ((), (2, 1024)):
                yield given, kind, False, tile
        for kind in ("gated", "gated_backward"):
            yield given, kind, True, ()


@pytest.mark.parametrize("capability", CAPABILITIES)
def test_kernels_move_16_bytes_at_a_time(capability) -> None:
    for number, (given, kind, interleaved, tile) in enumerate(variants()):
        fmt = ("bf16", "fp16")[number % 2]
        function = ("silu", "gelu", "tanh")[number % 3]
        built = compile_kernel(Variant(choose(function, fmt, given).key, kind, interleaved, tile, True), capability)
        text = built.asm["ptx"]
        what = (function, fmt, given, kind, interleaved, tile)
        assert "ld.global.v4" in text and "st.global.v4" in text, what
        assert "f64" not in text and ("prmt" in text) == interleaved, what
        assert not re.search(r"ld\.local|st\.local", text), what


def test_unaligned_kernels_move_single_elements() -> None:
    text = compile_kernel(Variant(choose("silu", "bf16").key, "gated", False, (2, 1024), False), 90).asm["ptx"]
    assert "ld.global.b16" in text and "v4" not in text


def test_kernels_compile_without_a_compiler_on_the_machine(tmp_path) -> None:
    """Nothing on the path: ptxas is Triton's own."""
    code = ("from polyfma.ops.launch import Variant, compile_kernel; from polyfma.ops.choice import choose; "
            "print(len(compile_kernel(Variant(choose('silu', 'bf16').key, 'unary', False, (), True), 90).asm['cubin']))")  # fmt: skip
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True,
                          env={"PATH": str(tmp_path), "HOME": str(tmp_path), "TRITON_CACHE_DIR": str(tmp_path / "cache")})  # fmt: skip
    assert int(done.stdout) > 1000


def test_a_cap_brings_no_double_precision() -> None:
    """Case 19: a Python float as cap."""
    for given in (None, "exact"):
        for fmt in ("bf16", "fp16"):
            key = choose("softcap-31.3", fmt, given).key
            for kind in ("unary", "unary_backward"):
                assert "f64" not in compile_kernel(Variant(key, kind, False, (), True), 90).asm["ptx"]


def test_an_operation_beyond_the_architecture_is_refused() -> None:
    with pytest.raises(pf.ProgramError, match="begins with sm_90"):
        compile_kernel(Variant(choose("tanh", "bf16", "hardware").key, "unary", False, (), True), 80)


@pytest.mark.parametrize("shape", [(5,), (3, 7), (2, 3, 4), (1, 1), (4, 1), (1, 6)])
def test_a_walk_visits_every_element_once(shape) -> None:
    """The plan's rows, columns and steps address exactly the elements of each tensor."""
    whole = torch.arange(2 * torch.Size(shape).numel()).view(*shape[:-1], 2 * shape[-1])
    gate, up = whole.chunk(2, -1)
    out = torch.empty_like(gate)
    walk = layout.plan([gate, up], [out])
    for tensor, source, step in zip(walk.tensors, (gate, up, out), walk.steps, strict=True):
        storage = torch.as_strided(tensor, (walk.rows, walk.columns), (step, 1) if not walk.flat else (walk.columns, 1))
        assert torch.equal(storage.flatten(), source.flatten()) or tensor is out
    for elements in (1024, 2048):
        tile_rows, tile_columns = walk.tile(elements) or (1, elements)
        assert tile_rows * tile_columns == elements and walk.blocks(elements) * elements >= out.numel()


# -- Inductor ---------------------------------------------------------------------------------------------


def inductor_source(function, tensors) -> str:
    """What Inductor writes for an sm_90 device that is not here."""
    from torch._inductor.debug import DebugContext
    from torch._inductor.graph import GraphLowering
    from torch._inductor.runtime.hints import DeviceProperties
    from torch._inductor.virtualized import V
    from torch._subclasses import FakeTensorMode
    from torch.fx.experimental.proxy_tensor import make_fx
    from torch.utils._triton import has_triton

    inductor.register()
    device = DeviceProperties(type="cuda", index=0, multi_processor_count=132, cc=90, major=9, regs_per_multiprocessor=65536,
                              max_threads_per_multi_processor=2048, max_threads_per_block=1024, warp_size=32)  # fmt: skip
    properties = SimpleNamespace(name="H200", major=9, minor=0, multi_processor_count=132, total_memory=1 << 37, warp_size=32, gcnArchName="",
                                 max_threads_per_multi_processor=2048, regs_per_multiprocessor=65536, L2_cache_size=50 << 20,
                                 max_threads_per_block=1024, shared_memory_per_block_optin=232448, shared_memory_per_block=49152)  # fmt: skip
    with (
        mock.patch.object(DeviceProperties, "create", classmethod(lambda cls, d: device)),
        mock.patch("torch.utils._triton.triton_hash_with_backend", return_value=""),
        mock.patch("torch.cuda.get_device_properties", return_value=properties),
        mock.patch("torch.cuda.get_device_capability", return_value=(9, 0)),
        mock.patch("torch.cuda.current_device", return_value=0),
        mock.patch("torch.cuda.is_available", return_value=True),
        mock.patch("torch.cuda.device_count", return_value=1),
        FakeTensorMode() as mode,
    ):
        has_triton.cache_clear()  # another test may have asked where there is no GPU
        given = [torch.empty(1024, 64, dtype=torch.bfloat16, device="cuda") for _ in range(tensors)]
        graph = GraphLowering(make_fx(function, tracing_mode="fake")(*given), example_inputs=given)
        with V.set_graph_handler(graph), V.set_fake_mode(mode), V.set_debug_handler(DebugContext()):
            graph.run(*given)
            return graph.codegen()[0].value


@pytest.mark.parametrize("given", [None, "exact"])
def test_inductor_fuses_the_operators_with_their_neighbours(given, tmp_path) -> None:
    """One kernel for an addition, the activation, a product and both gradients of a gated unit; it compiles for sm_90 and sm_100."""
    key = choose("silu", "bf16", given).key

    def model(grad, x, u):
        y = dispatcher.unary(x + u, key) * 2
        return (y, *dispatcher.gated_backward(grad, x, u, key))

    source = inductor_source(model, 3)
    kernels = re.findall(r"async_compile\.triton\('(\w+)', '''(.*?)'''", source, re.DOTALL)
    assert len(kernels) == 1 and "torch.ops.polyfma" not in source.split("async_compile.wait")[1]
    name, text = kernels[0]
    assert text.count("tl.inline_asm_elementwise(") == 3 and text.count("tl.store(") == 3
    for capability in (90, 100):
        ptx = compiled_inductor_kernel(name, text, tmp_path, capability)
        assert "ld.global.v4" in ptx and "st.global.v4" in ptx and "f64" not in ptx


def compiled_inductor_kernel(name, text, folder, capability) -> str:
    """The PTX of a kernel that Inductor wrote, without its launcher."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    body = re.sub(r"@triton_heuristics\..*?\n\)\n", "", text, flags=re.DOTALL).replace("triton_helpers.set_driver_to_gpu()", "")
    path = folder / f"{name}_{capability}.py"
    path.write_text(body)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    function = getattr(module, name)
    signature = {a: "*bf16" if "ptr" in a else "i32" if a.endswith("numel") else "constexpr" for a in function.arg_names}
    aligned = {(i,): [["tt.divisibility", 16]] for i, a in enumerate(function.arg_names) if "ptr" in a or a.endswith("numel")}
    source = ASTSource(fn=function, signature=signature, constexprs={(function.arg_names.index("XBLOCK"),): 1024}, attrs=aligned)
    return triton.compile(source, target=GPUTarget("cuda", capability, 32), options={"num_warps": 4}).asm["ptx"]


# -- on a GPU -----------------------------------------------------------------------------------------------


@pytest.mark.gpu
def test_offsets_beyond_32_bits() -> None:
    """The last elements of a tensor of more than 2^31, in the flat kernel and by rows."""
    n = (1 << 31) + 4096 + 3
    x = torch.zeros(n, dtype=torch.bfloat16, device="cuda")
    tail = torch.randn(5000, device="cuda").bfloat16()
    x[-5000:] = tail
    assert (to_bits(pf.ops.silu(x)[-5000:]) == to_bits(pf.ops.silu(tail))).all()
    rows = torch.zeros(1 << 15, (1 << 16) + 64, dtype=torch.bfloat16, device="cuda")[:, : 1 << 16]
    rows[-1] = every_input("bf16", "cuda")
    assert (to_bits(pf.ops.silu(rows)[-1]) == to_bits(pf.ops.silu(every_input("bf16", "cuda")))).all()


@pytest.mark.gpu
def test_kernels_can_be_captured_in_a_graph_and_run_on_a_stream() -> None:
    x = torch.randn(5000, dtype=torch.bfloat16, device="cuda")
    want = to_bits(pf.ops.silu(x))
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        y = pf.ops.silu(x)
    stream.synchronize()
    assert (to_bits(y) == want).all()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        z = pf.ops.silu(x)
    z.fill_(7)
    x.neg_()
    graph.replay()
    torch.cuda.synchronize()
    assert (to_bits(z) == to_bits(pf.ops.silu(x))).all()


@pytest.mark.parametrize("device", DEVICES)
def test_a_compiled_model_has_one_kernel_for_the_gate(device) -> None:
    """Fusion in a running model: bits of the fused graph equal the operator on the rounded sum."""
    if device == "cpu":
        pytest.skip("on the CPU the operator itself is called")
    x, u = (torch.randn(512, 256, dtype=torch.bfloat16, device=device) for _ in range(2))
    compiled = torch.compile(lambda a, b: pf.ops.swiglu(a + b, b), fullgraph=True)
    (code,) = torch._inductor.utils.run_and_get_code(compiled, x, u)[1]
    assert code.count("@triton.jit") == 1 and "torch.ops.polyfma" not in re.sub(r"#.*", "", code)
    assert (to_bits(compiled(x, u)) == to_bits(pf.ops.swiglu(x + u, u))).all()
