"""Operators inside torch: opcheck, torch.compile, transforms, modules, DTensor, and what runs with little installed."""

from __future__ import annotations

import copy
import os
import pickle
import subprocess
import sys

import pytest
import torch
from torch import library

import polyfma as pf
from polyfma.ops import dispatcher
from polyfma.ops.choice import choose, parse
from tensors import DEVICES, DTYPES, assert_bits, every_input, from_bits, random_bits, to_bits

devices = pytest.mark.parametrize("device", DEVICES)
givens = pytest.mark.parametrize("given", [None, "fast", "exact"])
INPUTS = {
    "contiguous": lambda d: torch.randn(6, 10, dtype=torch.bfloat16, device=d),
    "transposed": lambda d: torch.randn(10, 6, dtype=torch.bfloat16, device=d).t(),
    "padded": lambda d: torch.randn(6, 16, dtype=torch.bfloat16, device=d)[:, :10],
    "broadcast": lambda d: torch.randn(1, 10, dtype=torch.bfloat16, device=d).expand(6, 10),
    "broadcast columns": lambda d: torch.randn(6, 1, dtype=torch.bfloat16, device=d).expand(6, 10),
    "empty": lambda d: torch.randn(0, 10, dtype=torch.bfloat16, device=d),
}


@devices
@pytest.mark.parametrize("name", INPUTS)
def test_opcheck(name, device) -> None:
    """Case 15: schema, fake kernel with its strides, autograd registration, dynamic shapes."""
    key = choose("silu", "bf16").key
    x, u = (INPUTS[name](device) for _ in range(2))
    leaf, other = x.detach().requires_grad_(), u.detach().requires_grad_()
    library.opcheck(dispatcher.unary, (leaf, key))
    library.opcheck(dispatcher.gated, (leaf, other, key))
    library.opcheck(dispatcher.unary_backward, (u.detach(), x.detach(), key))
    library.opcheck(dispatcher.gated_backward, (u.detach(), x.detach(), u.detach(), key))


UNITS = {
    "unary": (lambda x, u, **given: pf.ops.silu(x, **given), 1),
    "gated": (lambda x, u, **given: pf.ops.swiglu(x, u, **given), 2),
    "halves": (lambda x, u, **given: pf.ops.geglu(torch.cat((x, u), -1), **given), 2),
    "interleaved": (lambda x, u, **given: pf.ops.clamped_swiglu(torch.cat((x, u), -1), interleaved=True, **given), 2),
}


@devices
@givens
@pytest.mark.parametrize("unit", UNITS)
def test_compiled_bits_are_eager_bits(unit, given, device) -> None:
    """Case 18: every BF16 input, forward and backward; one graph without a break, and none again for another batch."""
    call, count = UNITS[unit]
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    compiled = torch.compile(lambda x, u: call(x, u, program=given), fullgraph=True, dynamic=True)
    every, up, grad = every_input("bf16", device).view(512, 128), random_like(1, device), random_like(2, device)
    for rows in (512, 100, 33):
        results = []
        for function in (compiled, lambda x, u: call(x, u, program=given)):
            leaves = [t[:rows].clone().requires_grad_() for t in (every, up)]
            y = function(*leaves)
            gradients = torch.autograd.grad(y, leaves[:count], grad[:rows, : y.shape[1]].contiguous())
            results.append([to_bits(t) for t in (y, *gradients)])
        for a, b in zip(*results, strict=True):
            assert_bits(a, b, f"{rows} rows")
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1


def random_like(seed, device):
    bits, _ = random_bits("bf16", 65536, seed)
    return from_bits(bits, torch.bfloat16, device).view(512, 128)


@devices
def test_a_number_that_torch_compile_makes_symbolic(device) -> None:
    """Case 19: caps as Python floats, the second of which torch.compile traces as a symbol."""
    compiled = torch.compile(lambda x, cap: pf.ops.softcap(x, cap), fullgraph=True)
    x = every_input("bf16", device)
    for cap in (20.0, 30.0, 31.5, 50.0):
        assert_bits(to_bits(compiled(x, cap)), to_bits(pf.ops.softcap(x, cap)), str(cap))


@devices
def test_a_program_of_ones_own(device) -> None:
    own = pf.load("silu.forward.bf16.d3").renamed("mine")
    x = every_input("bf16", device)
    want = to_bits(pf.ops.silu(x, program="silu.forward.bf16.d3"))
    key = pf.ops.register(own)
    for given in (own, key):
        assert_bits(to_bits(pf.ops.silu(x, program=given)), want)
    assert_bits(to_bits(torch.compile(lambda x: pf.ops.silu(x, program=key), fullgraph=True)(x)), want)
    module = pf.nn.SiLU(program=own)
    for same in (module, copy.deepcopy(module), pickle.loads(pickle.dumps(module)), torch.compile(module, fullgraph=True)):
        assert_bits(to_bits(same(x)), want)


def test_a_pickled_module_brings_its_program(tmp_path) -> None:
    file = tmp_path / "module.pkl"
    file.write_bytes(pickle.dumps(pf.nn.SiLU(program=pf.load("silu.forward.bf16.d3").renamed("mine"))))
    code = f"import pickle, torch; m = pickle.load(open({str(file)!r}, 'rb')); print(m, float(m(torch.ones(1, dtype=torch.bfloat16))))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("SiLU(program=mine#")


@devices
def test_autocast_compiles(device) -> None:
    gate, up = torch.randn(64, device=device), torch.randn(64, dtype=torch.bfloat16, device=device)
    with torch.autocast(device, dtype=torch.bfloat16):
        assert_bits(to_bits(torch.compile(pf.ops.swiglu, fullgraph=True)(gate, up)), to_bits(pf.ops.swiglu(gate, up)))


# -- transforms --------------------------------------------------------------------------------------------


@devices
def test_vmap(device) -> None:
    """Case 17: any batch dimension, one or both inputs batched, alone and around a gradient."""
    x, u = (torch.randn(5, 8, dtype=torch.bfloat16, device=device) for _ in range(2))
    vmap, grad = torch.func.vmap, torch.func.grad
    assert_bits(to_bits(vmap(pf.ops.silu, in_dims=1, out_dims=1)(x)), to_bits(pf.ops.silu(x)))
    assert_bits(to_bits(vmap(pf.ops.swiglu, in_dims=(0, None))(x, u[0])), to_bits(pf.ops.swiglu(x, u[:1].expand(x.shape))))
    assert_bits(to_bits(vmap(pf.ops.swiglu)(x)), to_bits(pf.ops.swiglu(x)))
    leaf = x.clone().requires_grad_()
    pf.ops.silu(leaf).float().sum().backward()
    assert_bits(to_bits(grad(lambda t: pf.ops.silu(t).float().sum())(x)), to_bits(leaf.grad))
    assert_bits(to_bits(vmap(grad(lambda t: pf.ops.silu(t).float().sum()))(x)), to_bits(leaf.grad))
    gates, ups = x.clone().requires_grad_(), u.clone().requires_grad_()
    pf.ops.swiglu(gates, ups).float().sum().backward()
    both = vmap(grad(lambda g, v: pf.ops.swiglu(g, v).float().sum(), argnums=(0, 1)))(x, u)
    assert_bits(to_bits(both[0]), to_bits(gates.grad))
    assert_bits(to_bits(both[1]), to_bits(ups.grad))


@devices
def test_forward_mode_is_the_gradient_times_the_tangent(device) -> None:
    x, u, t, v = (torch.randn(64, dtype=torch.bfloat16, device=device) for _ in range(4))
    key = choose("silu", "bf16").key
    _, tangent = torch.func.jvp(pf.ops.silu, (x,), (t,))
    assert_bits(to_bits(tangent), to_bits(dispatcher.unary_backward(t, x, key)))
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(x, t)
        assert_bits(to_bits(torch.autograd.forward_ad.unpack_dual(pf.ops.silu(dual)).tangent), to_bits(tangent))
    _, tangent = torch.func.jvp(pf.ops.swiglu, (x, u), (t, v))
    want = dispatcher.gated_backward(t, x, u, key)[0] + dispatcher.gated_backward(v, x, u, key)[1]
    assert_bits(to_bits(tangent), to_bits(want))
    _, tangent = torch.func.jvp(lambda g: pf.ops.swiglu(g, u), (x,), (t,))
    assert_bits(to_bits(tangent), to_bits(dispatcher.gated_backward(t, x, u, key)[0]))


@devices
def test_a_second_derivative_is_refused(device) -> None:
    """Case 17: never a silent zero, in eager code, torch.func, forward over reverse, packed and compiled."""
    x = torch.randn(8, dtype=torch.bfloat16, device=device, requires_grad=True)
    for call in (pf.ops.silu, pf.ops.swiglu, lambda t: pf.ops.swiglu(t, t), lambda t: pf.ops.silu(t, program="exact")):
        (first,) = torch.autograd.grad(call(x).sum(), x, create_graph=True)
        with pytest.raises(NotImplementedError, match="no second derivative"):
            first.sum().backward()

        def once(t, call=call):
            return call(t).float().sum()

        with pytest.raises(NotImplementedError, match="no second derivative"):
            torch.func.grad(lambda t, once=once: torch.func.grad(once)(t).float().sum())(x.detach())
        with pytest.raises(NotImplementedError, match="no second derivative"):
            torch.func.hessian(once)(x.detach())
    (first,) = torch.autograd.grad(dispatcher.unary(x, choose("silu", "bf16").key).sum(), x, create_graph=True)
    with pytest.raises(NotImplementedError, match="no second derivative"):
        first.sum().backward()


@devices
def test_forward_mode_through_the_dispatcher_and_compiled(device) -> None:
    """Where the operator itself differentiates: compiled and exported code, in both modes, never a silent zero."""
    x, t = (torch.randn(8, dtype=torch.bfloat16, device=device) for _ in range(2))
    key = choose("silu", "bf16").key
    want, slope = to_bits(dispatcher.unary_backward(t, x, key)), to_bits(dispatcher.unary_backward(torch.ones_like(x), x, key))
    exported = torch.export.export(pf.nn.SiLU(), (x,)).module()

    def jvp(function):
        return lambda a, b: torch.func.jvp(function, (a,), (b,))[1]

    for function in (jvp(pf.ops.silu), torch.compile(jvp(pf.ops.silu)), jvp(exported)):
        assert_bits(to_bits(function(x, t)), want)
    loss = {"compiled": torch.compile(torch.func.grad(lambda a: pf.ops.silu(a).float().sum()), fullgraph=True),
            "exported": torch.func.grad(lambda a: exported(a).float().sum())}  # fmt: skip
    for function in loss.values():
        assert_bits(to_bits(function(x)), slope)
    assert_bits(to_bits(torch.compile(torch.func.jacfwd(pf.ops.silu))(x).diagonal()), slope)


@devices
def test_batched_backward_passes(device) -> None:
    x = torch.randn(8, dtype=torch.bfloat16, device=device, requires_grad=True)
    identity = torch.eye(8, dtype=torch.bfloat16, device=device)
    slope = to_bits(dispatcher.unary_backward(torch.ones_like(x), x.detach(), choose("silu", "bf16").key))
    (batched,) = torch.autograd.grad(pf.ops.silu(x), x, identity, is_grads_batched=True)
    assert_bits(to_bits(batched.diagonal()), slope)
    assert_bits(to_bits(torch.autograd.functional.jacobian(pf.ops.silu, x.detach(), vectorize=True).diagonal()), slope)
    assert torch.autograd.functional.jacobian(pf.ops.swiglu, x.detach(), vectorize=True).shape == (4, 8)


@devices
def test_forward_over_forward_is_refused(device) -> None:
    x, one = torch.randn(8, dtype=torch.bfloat16, device=device), torch.ones(8, dtype=torch.bfloat16, device=device)

    def once(a):
        return torch.func.jvp(pf.ops.silu, (a,), (one,))[1]

    for call in (lambda: torch.func.jvp(once, (x,), (one,)), lambda: torch.func.grad(lambda a: once(a).float().sum())(x),
                 lambda: torch.func.jacfwd(torch.func.jacfwd(lambda z: pf.ops.swiglu(z).float().sum()))(x)):  # fmt: skip
        with pytest.raises(NotImplementedError, match="no second derivative"):
            call()


@devices
def test_the_registered_operator_checks_its_arguments(device) -> None:
    x = torch.ones(4, dtype=torch.float16, device=device)
    key = choose("silu", "bf16").key
    for call in (lambda: dispatcher.unary(x, key), lambda: dispatcher.unary(x.bfloat16(), "silu"),
                 lambda: dispatcher.gated(x.bfloat16(), x.bfloat16()[:2], key)):  # fmt: skip
        with pytest.raises(pf.PolyfmaError):
            call()


@devices
def test_modes_and_subclasses_see_the_operator(device) -> None:
    from torch.utils._python_dispatch import TorchDispatchMode

    seen = []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            seen.append(str(function))
            return function(*args, **(kwargs or {}))

    with Watch():
        pf.ops.silu(torch.ones(4, dtype=torch.bfloat16, device=device))
    assert "polyfma.unary.default" in seen
    graph = torch.fx.experimental.proxy_tensor.make_fx(lambda t: pf.ops.silu(t))(torch.ones(4, dtype=torch.bfloat16, device=device))
    assert any("polyfma.unary" in str(node.target) for node in graph.graph.nodes)
    meta = pf.ops.swiglu(torch.empty(3, 8, dtype=torch.bfloat16, device="meta"))
    assert meta.shape == (3, 4) and meta.is_meta
    exported = torch.export.export(pf.nn.SwiGLU(), (torch.ones(4, 8, dtype=torch.bfloat16, device=device),))
    assert exported.module()(torch.ones(4, 8, dtype=torch.bfloat16, device=device)).shape == (4, 4)


# -- modules and arguments ---------------------------------------------------------------------------------


def test_modules() -> None:
    x = torch.randn(4, 8, dtype=torch.bfloat16)
    pairs = ((pf.nn.Sigmoid(), pf.ops.sigmoid), (pf.nn.Tanh(), pf.ops.tanh), (pf.nn.SiLU(), pf.ops.silu), (pf.nn.QuickGELU(), pf.ops.quick_gelu),
             (pf.nn.GELU("tanh"), lambda t: pf.ops.gelu(t, approximate="tanh")), (pf.nn.Softcap(30.0), lambda t: pf.ops.softcap(t, 30.0)),
             (pf.nn.SwiGLU(), pf.ops.swiglu), (pf.nn.GeGLU("tanh"), lambda t: pf.ops.geglu(t, approximate="tanh")), (pf.nn.ReGLU(), pf.ops.reglu),
             (pf.nn.ClampedSwiGLU(), lambda t: pf.ops.clamped_swiglu(t, interleaved=True)), (pf.nn.SwiGLU(interleaved=True), lambda t: pf.ops.swiglu(t, interleaved=True)))  # fmt: skip
    for module, function in pairs:
        assert_bits(to_bits(module(x)), to_bits(function(x)), repr(module))
        assert not module.state_dict() and "object at" not in repr(module)
    assert_bits(to_bits(pf.nn.ClampedSwiGLU()(x, x)), to_bits(pf.ops.clamped_swiglu(x, x)))
    for wrong in (lambda: pf.nn.Softcap(-1.0), lambda: pf.nn.Softcap("x"), lambda: pf.nn.GELU("erf"), lambda: pf.nn.ClampedSwiGLU(limit=0)):
        with pytest.raises(pf.PolyfmaError):
            wrong()
    assert repr(pf.nn.GELU("tanh", program="exact")) == "GELU(approximate=tanh, program=exact)"


def test_choices_are_explained_when_refused() -> None:
    x = torch.zeros(4, dtype=torch.bfloat16)
    for call, message in ((lambda: pf.ops.silu(x, program="gelu.forward.bf16.d4"), "this call needs silu forward in bf16"),
                          (lambda: pf.ops.silu(x, program="silu.forward.fp16.d4"), "in fp16; this call needs"),
                          (lambda: pf.ops.silu(x, program="silu.backward.bf16.d4"), "silu backward program"),
                          (lambda: pf.ops.silu(x, program="quick"), "no program 'quick'"), (lambda: pf.ops.silu(x, program=3), "must be a name"),
                          (lambda: pf.ops.silu(x, backward="approximate"), "no program"), (lambda: pf.ops.silu(x, program="exact", backward="matched"), "exact forward has none"),
                          (lambda: pf.ops.silu(x, backward="silu.forward.bf16.d4"), "this call needs silu backward"),
                          (lambda: pf.ops.gelu(x, program="hardware"), "no hardware form"),
                          (lambda: pf.ops.gelu(x, approximate="tanh", program="hardware", backward="matched"), "not finite everywhere"),
                          (lambda: pf.ops.sigmoid(x, program="sigmoid.forward.bf16.coupled-d3.endpoint-ls"), "one output"),
                          (lambda: pf.ops.silu(x, program="other#0123456789abcdef"), "not known in this process"),
                          (lambda: pf.ops.clamped_swiglu(x, alpha=1.5), "no default program for 'silu-1.5'")):  # fmt: skip
        with pytest.raises(pf.PolyfmaError, match=message):
            call()
    assert pf.ops.clamped_swiglu(x, alpha=1.5, program="exact").shape == (2,)


def test_the_choice_is_the_documented_default() -> None:
    """Never by size: the key holds function, format, programs and limit alone, and reads back."""
    choice = choose("silu", "bf16", limit=7.0)
    assert parse(choice.key) == choice
    for fmt in DTYPES:
        for function in ("sigmoid", "tanh", "silu", "silu-1.702", "gelu", "gelu-tanh"):
            chosen = choose(function, fmt)
            for name in (chosen.forward, chosen.backward):
                c = pf.certify(pf.load(name))
                assert c.exact_tails and c.nan == "propagates"


def test_operators_need_only_torch_triton_and_numpy() -> None:
    code = """
import sys
for blocked in ("flint", "scipy", "numba", "typer", "rich", "matplotlib"):
    sys.modules[blocked] = None
import torch, polyfma as pf
x = torch.randn(64, dtype=torch.bfloat16, requires_grad=True)
for y in (pf.ops.silu(x), pf.ops.swiglu(x, x, program="exact"), pf.ops.softcap(x, 30.0, backward="matched"), pf.nn.GELU()(x), pf.ops.tanh(x, program="fast")):
    y.sum().backward()
print(float(x.grad.abs().max()) > 0, "torch._dynamo" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "False"]


def test_without_torch_the_error_says_what_to_install() -> None:
    code = "import sys; sys.modules['torch'] = None\nimport polyfma as pf\ntry: pf.ops\nexcept pf.MissingToolError as e: print(e)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "pip install 'polyfma[torch]'" in done.stdout


def test_another_torch_inside_is_named() -> None:
    code = """
import torch
from torch import library
del torch._C._functorch.is_legacy_batchedtensor
import polyfma as pf
try: pf.ops
except pf.MissingToolError as e: print(e)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "is not inside as polyfma.ops knows it" in done.stdout and "tested: torch 2.11, 2.13" in done.stdout


# -- DTensor ---------------------------------------------------------------------------------------------------

DTENSOR = """
import os, sys, torch, torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
import polyfma as pf
rank = int(sys.argv[1])
os.environ |= dict(MASTER_ADDR="127.0.0.1", MASTER_PORT=sys.argv[2], RANK=sys.argv[1], WORLD_SIZE="2")
dist.init_process_group("gloo")
mesh = init_device_mesh("cpu", (2,))
torch.manual_seed(0)
full, other, grad = (torch.randn(6, 8, dtype=torch.bfloat16) for _ in range(3))
same = lambda a, b: torch.equal(a.view(torch.int16), b.view(torch.int16))
for placement in (Shard(0), Shard(1), Replicate()):
    x, u = (distribute_tensor(t, mesh, [placement]).requires_grad_() for t in (full, other))
    a, b = full.clone().requires_grad_(), other.clone().requires_grad_()
    for f, args, plain in ((pf.ops.silu, (x,), (a,)), (pf.ops.swiglu, (x, u), (a, b)), (pf.ops.swiglu, (x,), (a,))):
        y, z = f(*args), f(*plain)
        g = grad[:, : z.shape[1]].contiguous()
        got = torch.autograd.grad(y, args, distribute_tensor(g, mesh, y.placements))
        want = torch.autograd.grad(z, plain, g)
        assert same(y.full_tensor(), z) and all(same(p.full_tensor(), q) for p, q in zip(got, want)), (f, placement)
        if len(args) == 2 or f is pf.ops.silu:
            assert y.placements == (placement,) and got[0].placements == (placement,)
mixed = pf.ops.swiglu(distribute_tensor(full, mesh, [Shard(0)]), distribute_tensor(other, mesh, [Shard(1)]))
assert same(mixed.full_tensor(), pf.ops.swiglu(full, other))
try:
    pf.ops.swiglu(distribute_tensor(full, mesh, [Shard(0)]), other)
    print("no error")
except RuntimeError as error:
    print("refused:", "DTensor" in str(error))
dist.barrier()
dist.destroy_process_group()
sys.stdout.flush()
os._exit(0)  # gloo's threads may still run when Python tears the library down, which now and then aborts an otherwise good process
"""


def test_dtensor_on_two_processes() -> None:
    """Case 20: sharded on the first and the last dimension, on different ones, and beside a plain tensor: an error, never a hang."""
    import socket

    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = str(s.getsockname()[1])
    processes = [subprocess.Popen([sys.executable, "-c", DTENSOR, str(rank), port], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                  env=os.environ | {"OMP_NUM_THREADS": "1"}) for rank in (0, 1)]  # fmt: skip
    try:
        for process in processes:
            out, err = process.communicate(timeout=120)
            assert process.returncode == 0 and "refused: True" in out, err[-2000:]
    finally:
        for process in processes:
            process.kill()
