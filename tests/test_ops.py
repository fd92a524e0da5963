"""Operators: the bits of every input against replay, layouts, special values, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import polyfma as pf
from polyfma.ops import execute, layout
from polyfma.ops.choice import choose, program_of
from tensors import DEVICES, DTYPES, GATED, UNARY, assert_bits, every_input, from_bits, product, random_bits, to_bits

pytestmark = pytest.mark.parametrize("device", DEVICES)
formats = pytest.mark.parametrize("fmt", DTYPES)
functions = pytest.mark.parametrize("function", UNARY)


def programs(function, fmt, given, backward=None):
    choice = choose(function, fmt, given, backward)
    return program_of(choice.forward), program_of(choice.backward)


@formats
@functions
@pytest.mark.parametrize(("given", "backward"), [(None, None), ("fast", "matched"), ("accurate", "direct"), ("hardware", "direct")])
def test_every_input_has_the_bits_of_replay(function, fmt, given, backward, device) -> None:
    if given == "hardware" and function == "gelu":
        pytest.skip("no hardware form of exact GELU")
    forward, slope = programs(function, fmt, given, backward)
    grad, f = random_bits(fmt, 65536, seed=1)
    x = every_input(fmt, device).requires_grad_()
    y = UNARY[function](x, program=given, backward=backward)
    y.backward(from_bits(grad, x.dtype, device))
    every = f.all_bits()
    assert_bits(to_bits(y), pf.replay(forward, every), forward.name)
    assert_bits(to_bits(x.grad), product(f, grad, pf.replay(slope, every)), slope.name)


@formats
@pytest.mark.parametrize("function", GATED)
@pytest.mark.parametrize("packed", ["separate", "halves", "interleaved"])
def test_gated_units_multiply_in_the_documented_order(function, fmt, packed, device) -> None:
    forward, slope = programs(function, fmt, None)
    up, f = random_bits(fmt, 65536, seed=2, std=6.0)
    grad, _ = random_bits(fmt, 65536, seed=3)
    gate = f.all_bits()
    want, want_gate, want_up = expected(f, function, forward, slope, gate, up, grad)
    tensors = [from_bits(b, DTYPES[fmt], device).view(256, 256) for b in (gate, up, grad)]
    y, d_gate, d_up = run_gated(GATED[function], packed, *tensors)
    for got, wanted, what in ((y, want, "value"), (d_gate, want_gate, "gate"), (d_up, want_up, "up")):
        assert_bits(to_bits(got).ravel(), wanted, f"{function} {what}")


def expected(f, function, forward, slope, gate, up, grad):
    """Value and gradients by the formulas in the documentation, on bit patterns."""
    limited, raised, gate_cut, up_cut = gate, up, np.zeros(gate.shape, bool), np.zeros(gate.shape, bool)
    if function == "silu-1.702":
        g, u = f.decode(gate), f.decode(up)
        limited = np.where(g > 7, f.encode(7.0), gate)
        raised = f.encode(np.clip(u, -7, 7) + 1)
        gate_cut, up_cut = g > 7, np.abs(u) > 7
    value, derivative = pf.replay(forward, limited), pf.replay(slope, limited)
    zero = f.dtype.type(0)
    d_gate = np.where(gate_cut, zero, product(f, product(f, grad, derivative), raised))
    return product(f, value, raised), d_gate, np.where(up_cut, zero, product(f, grad, value))


def run_gated(unit, packed, gate, up, grad):
    """Value and both gradients, from separate tensors or a packed one."""
    if packed == "separate":
        gate, up = gate.clone().requires_grad_(), up.clone().requires_grad_()
        y = unit(gate, up)
        y.backward(grad)
        return y, gate.grad, up.grad
    interleaved = packed == "interleaved"
    x = (torch.stack((gate, up), -1).flatten(-2) if interleaved else torch.cat((gate, up), -1)).requires_grad_()
    y = unit(x, interleaved=interleaved)
    y.backward(grad)
    d_gate, d_up = execute.halves(x.grad, interleaved)
    return y, d_gate, d_up


@formats
def test_reglu_is_exact(fmt, device) -> None:
    up, f = random_bits(fmt, 65536, seed=4)
    grad, _ = random_bits(fmt, 65536, seed=5)
    g, u, d = (from_bits(b, DTYPES[fmt], device) for b in (f.all_bits(), up, grad))
    gate, other = g.clone().requires_grad_(), u.clone().requires_grad_()
    pf.ops.reglu(gate, other).backward(d)
    x = f.decode(f.all_bits())
    positive = np.where(x > 0, f.all_bits(), np.where(np.isnan(x), f.nan_bits, 0)).astype(np.uint16)
    assert_bits(to_bits(pf.ops.reglu(g, u)), product(f, positive, up))
    assert_bits(to_bits(other.grad), product(f, grad, positive))
    slope = np.where(x <= 0, 0, int(f.encode(1.0))).astype(np.uint16)
    assert_bits(to_bits(gate.grad), product(f, product(f, grad, slope), up))


# -- exact ---------------------------------------------------------------------------------------------


def misrounded(got, want, f):
    return int(np.sum((got != want) & ~(f.is_nan(got) & f.is_nan(want)) & ~((f.decode(got) == 0) & (f.decode(want) == 0))))


@formats
@functions
@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_exact_is_correctly_rounded(function, fmt, direction, device) -> None:
    """The CPU against rigorous tables, the GPU against the CPU: no BF16 input is misrounded; of FP16 a GPU may miss a few."""
    f = pf.BF16 if fmt == "bf16" else pf.FP16

    def run(where):
        x = every_input(fmt, where).requires_grad_()
        y = UNARY[function](x, program="exact")
        if direction == "forward":
            return to_bits(y)
        y.backward(torch.ones_like(y))
        return to_bits(x.grad)

    if device == "cpu":
        assert misrounded(run("cpu"), pf.get_function(function, direction).table(fmt).rounded, f) == 0
    else:
        assert misrounded(run("cuda"), run("cpu"), f) <= (0 if fmt == "bf16" else 6)


@formats
@pytest.mark.parametrize("function", ["sigmoid", "tanh", "silu", "gelu"])
def test_exact_is_never_less_exact_than_torch(function, fmt, device) -> None:
    f = pf.BF16 if fmt == "bf16" else pf.FP16
    want = to_bits(UNARY[function](every_input(fmt, "cpu"), program="exact"))
    x = every_input(fmt, device)
    ours, theirs = to_bits(UNARY[function](x, program="exact")), to_bits(getattr(torch.nn.functional, function)(x))
    assert misrounded(ours, want, f) <= misrounded(theirs, want, f)


@formats
@pytest.mark.parametrize("function", GATED)
def test_exact_gated_units_round_once(function, fmt, device) -> None:
    """Against float64: almost always the nearest, and never more than two ulps off (where the slope of GELU nearly vanishes)."""
    f = pf.BF16 if fmt == "bf16" else pf.FP16
    gate, up, grad = (from_bits(random_bits(fmt, 40_000, seed=s, std=4.0)[0], DTYPES[fmt], device) for s in (6, 7, 8))
    got = run_gated(lambda *t, **k: GATED[function](*t, program="exact", **k), "separate", gate, up, grad)
    want = run_gated(lambda *t, **k: GATED[function](*t, program="exact", **k), "separate", gate.cpu(), up.cpu(), grad.cpu())
    for g, w in zip(got, want, strict=True):
        apart = np.abs(f.ordinal(to_bits(g)) - f.ordinal(to_bits(w)))
        assert apart.max() <= 2 and np.mean(apart > 0) < 0.01
    reference = torch.nn.functional.silu(gate.double()) * up.double() if function == "silu" else None
    if reference is not None:
        assert (got[0].double() - reference).abs().max() <= 2.0**-8 * reference.abs().max()


def test_exact_gate_of_zero_gives_zero(device) -> None:
    for fmt, dtype in DTYPES.items():
        gate = torch.tensor([0.0, -0.0], dtype=dtype, device=device)
        up = torch.full_like(gate, torch.finfo(dtype).max)
        for unit in (pf.ops.swiglu, pf.ops.geglu):
            assert_bits(to_bits(unit(gate, up, program="exact")), np.array([0, 0x8000], np.uint16), fmt)


# -- faults from the field -----------------------------------------------------------------------------------


@formats
@functions
@pytest.mark.parametrize("given", [None, "exact"])
def test_limits_zero_and_large_values(function, fmt, given, device) -> None:
    """Cases 1, 4, 5 and 14 of the field: limits at infinity in value and gradient, zeros with their sign, no NaN."""
    big = torch.finfo(DTYPES[fmt]).max
    x = torch.tensor([-np.inf, -big, -1e4, -0.0, 0.0, 1e4, big, np.inf], dtype=DTYPES[fmt], device=device).requires_grad_()
    y = UNARY[function](x, program=given)
    y.backward(torch.ones_like(y))
    assert not y.isnan().any() and not x.grad.isnan().any()
    cap = float(function.split("-")[1]) if function.startswith("softcap") else 1.0
    if function == "sigmoid":
        assert y.tolist() == [0, 0, 0, 0.5, 0.5, 1, 1, 1]
    elif function == "tanh" or function.startswith("softcap"):
        assert y.tolist() == [-cap] * 3 + [0, 0] + [cap] * 3
        assert torch.signbit(y[3]) and not torch.signbit(y[4])
    else:
        assert y.tolist() == [0, 0, 0, 0, 0, *x[5:].tolist()]
        assert x.grad[:3].tolist() == [0, 0, 0] and x.grad[5:].tolist() == [1, 1, 1]


@formats
@functions
@pytest.mark.parametrize("given", [None, "fast", "exact"])
@pytest.mark.parametrize("n", [5, 1025, 4099])
def test_nan_stays_where_it_was(function, fmt, given, n, device) -> None:
    """Case 2: in the vector body and in the tail, in value and gradient."""
    x = torch.randn(n).to(DTYPES[fmt])
    x[::5] = torch.nan
    x = x.to(device).requires_grad_()
    y = UNARY[function](x, program=given)
    y.backward(torch.ones_like(y))
    want = torch.arange(n) % 5 == 0
    assert torch.equal(y.isnan().cpu(), want) and torch.equal(x.grad.isnan().cpu(), want)


@formats
def test_small_negative_values_keep_their_sign(fmt, device) -> None:
    """Case 3, exact arithmetic: x in [-9, -5] through SiLU and GELU, relative error within half an ulp."""
    x = torch.linspace(-9, -5, 999).to(DTYPES[fmt]).to(device)
    eps = torch.finfo(DTYPES[fmt]).eps
    gelu = x.double() * torch.erfc(-x.double() / 2**0.5) / 2  # torch's own takes 1 + erf, of which nothing is left here
    for y, want in ((pf.ops.silu(x, program="exact"), torch.nn.functional.silu(x.double())), (pf.ops.gelu(x, program="exact"), gelu)):
        assert (y[want < -torch.finfo(DTYPES[fmt]).tiny] < 0).all()
        normal = want.abs() > torch.finfo(DTYPES[fmt]).tiny
        assert ((y.double() - want).abs() <= 0.51 * eps * want.abs())[normal].all()


@formats
def test_gelu_gradient_has_the_right_sign(fmt, device) -> None:
    """Case 6: wherever |f'| is above the certified error of the program."""
    _, slope = programs("gelu", fmt, None)
    x = every_input(fmt, device).requires_grad_()
    pf.ops.gelu(x).backward(torch.ones_like(x))
    exact = pf.get_function("gelu", "backward").table(fmt).exact
    clear = np.abs(exact) > pf.certify(slope).max_abs_error
    got = x.grad.double().cpu().numpy()
    assert (np.sign(got) == np.sign(exact))[clear].all()


@pytest.mark.parametrize("columns", [1, 2, 3, 7, 8, 9, 3420, 8200, 16384])
def test_halves_of_a_chunk_need_no_copy(columns, device) -> None:
    """Cases 9 and 10: row views of any length equal the contiguous result, and are walked where they lie."""
    x = torch.randn(6, 2 * columns, dtype=torch.bfloat16, device=device)
    gate, up = x.chunk(2, -1)
    walk = layout.plan([gate, up], [torch.empty_like(gate)])
    assert walk.tensors[0] is gate and walk.tensors[1] is up and (walk.rows, walk.columns) == (6, columns)
    assert_bits(to_bits(pf.ops.swiglu(gate, up)), to_bits(pf.ops.swiglu(gate.contiguous(), up.contiguous())))
    assert_bits(to_bits(pf.ops.swiglu(x)), to_bits(pf.ops.swiglu(gate, up)))
    stacked = torch.stack((gate, up), -1).flatten(-2)
    assert_bits(to_bits(pf.ops.swiglu(stacked, interleaved=True)), to_bits(pf.ops.swiglu(gate, up)))


@formats
@pytest.mark.parametrize("given", [None, "exact"])
def test_equal_inputs_give_equal_bits_at_every_index(fmt, given, device) -> None:
    """Case 10: n = 1 to 33, and lengths about a tile."""
    for value in (0.731, -3.2):
        for n in (*range(1, 34), 1025, 2047, 2048, 2049, 4097):
            for x in (torch.full((n,), value, dtype=DTYPES[fmt], device=device), torch.full((n + 1,), value, dtype=DTYPES[fmt], device=device)[1:]):
                assert len(set(to_bits(pf.ops.silu(x, program=given)).tolist())) == 1
                assert len(set(to_bits(pf.ops.swiglu(x, x, program=given)).tolist())) == 1


@pytest.mark.parametrize("shape", [(0,), (0, 8), (8, 0), (2, 0, 4)])
def test_empty_tensors(shape, device) -> None:
    """Case 11: an empty result, and the next operator works."""
    x = torch.empty(shape, dtype=torch.bfloat16, device=device, requires_grad=True)
    for y in (pf.ops.silu(x), pf.ops.swiglu(x, x), pf.ops.swiglu(x) if shape[-1] % 2 == 0 else x, pf.ops.swiglu(x, interleaved=True)):
        y.sum().backward()
    assert x.grad.shape == x.shape and pf.ops.silu(torch.ones(3, dtype=torch.bfloat16, device=device)).isfinite().all()


@pytest.mark.gpu
def test_the_second_device(device) -> None:
    """Case 12: a tensor on another device than the current one."""
    if torch.cuda.device_count() < 2:
        pytest.skip("one GPU")
    x = torch.randn(1000, dtype=torch.bfloat16)
    with torch.cuda.device(0):
        other = x.to("cuda:1").requires_grad_()
        y = pf.ops.silu(other)
        y.backward(torch.ones_like(y))
    assert y.device.index == 1
    assert_bits(to_bits(y), to_bits(pf.ops.silu(x)))


@pytest.mark.parametrize("given", [None, "exact"])
def test_saved_tensors_are_never_overwritten(given, device) -> None:
    """Case 13: y = exp(x) saves its result, which swiglu gets twice."""
    x = torch.randn(300, dtype=torch.bfloat16, device=device, requires_grad=True)
    y = x.exp()
    kept = y.detach().clone()
    pf.ops.swiglu(y, y, program=given).backward(torch.ones_like(y))
    assert_bits(to_bits(y), to_bits(kept))
    leaf = kept.clone().requires_grad_()
    pf.ops.swiglu(leaf, leaf, program=given).backward(torch.ones_like(y))
    assert_bits(to_bits(x.grad), to_bits(leaf.grad * kept))
    z = kept.clone().requires_grad_()  # the same backward twice
    out = pf.ops.swiglu(z, z, program=given)
    first = torch.autograd.grad(out, z, torch.ones_like(z), retain_graph=True)[0]
    assert_bits(to_bits(first), to_bits(torch.autograd.grad(out, z, torch.ones_like(z))[0]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64, torch.complex64, torch.bool, torch.float8_e4m3fn])
def test_other_dtypes_are_refused(dtype, device) -> None:
    """Case 14: a clear error that names the supported dtypes."""
    x = torch.zeros(4, device=device).to(dtype)
    for call in (lambda: pf.ops.silu(x), lambda: pf.ops.swiglu(x, x), lambda: pf.ops.swiglu(x)):
        with pytest.raises(pf.DtypeError, match=r"torch\.bfloat16 and torch\.float16, not"):
            call()


def test_mixed_inputs_are_refused(device) -> None:
    x = torch.zeros(4, dtype=torch.bfloat16, device=device)
    for call, message in ((lambda: pf.ops.swiglu(x, x.half()), "give both one dtype"), (lambda: pf.ops.swiglu(x, x[:2]), "must be equal"),
                          (lambda: pf.ops.swiglu(x[:3]), "must be even"), (lambda: pf.ops.swiglu(x[0]), "must be even"),
                          (lambda: pf.ops.swiglu(x, x, interleaved=True), "one packed tensor"), (lambda: pf.ops.silu([1.0]), "not list"),
                          (lambda: pf.ops.softcap(x, 0.0), "from 0.01 to"), (lambda: pf.ops.softcap(x, "50"), "from 0.01 to"),
                          (lambda: pf.ops.clamped_swiglu(x, limit=-1.0), "from 0.01 to"), (lambda: pf.ops.softcap(x, 10**400), "from 0.01 to"), (lambda: pf.ops.gelu(x, approximate="erf"), "'none'"),
                          (lambda: pf.ops.swiglu(x, x.to("meta")), "must be on one device")):  # fmt: skip
        with pytest.raises(pf.PolyfmaError, match=message):
            call()


def test_autocast_casts_both_to_one_dtype(device) -> None:
    """Case 16: an fp32 gate with a bf16 up; the gradient returns to each input's dtype."""
    gate, up = torch.randn(64, device=device, requires_grad=True), torch.randn(64, dtype=torch.bfloat16, device=device, requires_grad=True)
    with torch.autocast(device, dtype=torch.bfloat16):
        y = pf.ops.swiglu(gate, up)
        alone = pf.ops.silu(gate)
    y.backward(torch.ones_like(y))
    assert y.dtype == alone.dtype == torch.bfloat16 and gate.grad.dtype == torch.float32 and up.grad.dtype == torch.bfloat16
    assert_bits(to_bits(y), to_bits(pf.ops.swiglu(gate.detach().bfloat16(), up.detach())))
    with torch.autocast(device, dtype=torch.bfloat16), pytest.raises(pf.DtypeError):
        pf.ops.silu(torch.zeros(2, dtype=torch.float64, device=device))


LAYOUTS = {
    "transposed": lambda t: t.t(),
    "padded": lambda t: torch.cat((t, t), 1)[:, : t.shape[1]],
    "offset": lambda t: torch.cat((t.flatten()[:1], t.flatten()))[1:].view(t.shape),
    "broadcast rows": lambda t: t[:1].expand(t.shape),
    "broadcast columns": lambda t: t[:, :1].expand(t.shape),
    "every other": lambda t: torch.stack((t, t), -1).flatten(-2)[:, ::2],
    "permuted": lambda t: t.view(4, -1, t.shape[1]).permute(1, 0, 2),
    "channels last": lambda t: t.view(2, -1, 4, 3).to(memory_format=torch.channels_last),
    "scalar": lambda t: t[0, 0],
}


@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.parametrize("given", [None, "exact"])
def test_any_layout_equals_the_contiguous_result(name, given, device) -> None:
    """Case 15: and the result has the layout of torch.empty_like, gradients too."""
    x, u = (LAYOUTS[name](torch.randn(24, 36, dtype=torch.float16, device=device)) for _ in range(2))
    y = pf.ops.silu(x, program=given)
    assert y.stride() == torch.empty_like(x).stride()
    assert_bits(to_bits(y), to_bits(pf.ops.silu(x.contiguous(), program=given)))
    results = []
    for gate, up in ((x, u), (x.contiguous(), u.contiguous()), (x, u.contiguous())):
        gate, up = gate.detach().requires_grad_(), up.detach().requires_grad_()
        z = pf.ops.swiglu(gate, up, program=given)
        gradients = torch.autograd.grad(z, (gate, up), torch.ones_like(z))
        results.append([to_bits(t) for t in (z, *gradients)])
    for other in results[1:]:
        for a, b in zip(results[0], other, strict=True):
            assert_bits(a, b, name)


def test_no_second_tensor_is_allocated(device) -> None:
    if device == "cpu":
        pytest.skip("the CPU's allocator does not count")
    gate, up, grad = (torch.randn(512, 2048, dtype=torch.bfloat16, device=device) for _ in range(3))
    key = choose("silu", "bf16").key
    one = gate.numel() * 2
    for call, results in ((lambda: execute.gated(gate, up, key), 1), (lambda: execute.gated_backward(grad, gate, up, key), 2)):
        call()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        kept = call()
        assert torch.cuda.max_memory_allocated() - before == results * one, kept


def test_results_do_not_depend_on_what_was_in_memory(device) -> None:
    """Outputs are poisoned by an allocation of NaN that is freed before: every element is written."""
    x = torch.randn(3, 4099, dtype=torch.bfloat16, device=device)
    for _ in range(3):
        poison = torch.full_like(x, torch.nan)
        del poison
        assert pf.ops.silu(x).isfinite().all() and pf.ops.swiglu(x[:, 1:]).isfinite().all()


def test_threads_share_kernels(device) -> None:
    """Launch memory is a thread's own: many threads at once get their own results."""
    from concurrent.futures import ThreadPoolExecutor

    inputs = [torch.randn(2000 + i, dtype=torch.bfloat16, device=device) for i in range(16)]
    want = [to_bits(pf.ops.silu(x)) for x in inputs]
    with ThreadPoolExecutor(8) as pool:
        for _ in range(5):
            for got, wanted in zip(pool.map(lambda x: to_bits(pf.ops.silu(x)), inputs), want, strict=True):
                assert_bits(got, wanted)


# -- found by attacking the operators ------------------------------------------------------------------------


def test_tensors_without_dimensions(device) -> None:
    x = torch.tensor(1.5, dtype=torch.bfloat16, device=device)
    for y in (pf.ops.reglu(x, x), pf.ops.clamped_swiglu(x, x), pf.ops.swiglu(x, x), pf.ops.clamped_swiglu(x, x, program="exact")):
        assert y.shape == () and y.isfinite()


def test_what_is_not_dense_is_refused(device) -> None:
    x = torch.ones(4, 4, dtype=torch.bfloat16, device=device)
    nested = torch.nested.nested_tensor([x, x[:2]])
    for given in (x.to_sparse(), x.to_sparse_csr(), nested):
        for call in (lambda t=given: pf.ops.silu(t), lambda t=given: pf.ops.swiglu(t, t), lambda t=given: pf.ops.swiglu(x, t)):
            with pytest.raises(pf.PolyfmaError):
                call()


def test_negative_views_keep_their_sign(device) -> None:
    """A view that says "negated" stores its values without the sign."""
    x = torch.randn(16, dtype=torch.float16, device=device)
    for given in (None, "exact"):
        assert_bits(to_bits(pf.ops.silu(torch._neg_view(x), program=given)), to_bits(pf.ops.silu(-x, program=given)))
        assert_bits(to_bits(pf.ops.swiglu(x, torch._neg_view(x), program=given)), to_bits(pf.ops.swiglu(x, -x, program=given)))


@formats
def test_matched_is_one_sided_at_both_zeros(fmt, device) -> None:
    """At -0 and 0 every operation takes the right side: one slope, that of the program from 0 on."""
    for function, call in UNARY.items():
        for given in (None, "fast"):
            x = torch.tensor([-0.0, 0.0], dtype=DTYPES[fmt], device=device).requires_grad_()
            call(x, program=given, backward="matched").backward(torch.ones_like(x))
            assert x.grad[0] == x.grad[1], (function, given)


@formats
def test_a_softcap_is_x_where_x_is_small(fmt, device) -> None:
    """Gain within 0.4 percent, for caps that the constants hold and caps that they do not."""
    x = torch.tensor([0.01, 0.1, 1.0], dtype=DTYPES[fmt], device=device)
    for cap in (50.0, 30.0, 1000.0, 15000.0):
        y = pf.ops.softcap(x, cap).double() / (cap * torch.tanh(x.double() / cap))
        assert (y - 1).abs().max() < 4e-3 + torch.finfo(DTYPES[fmt]).eps / 2, cap


def test_matched_of_a_scaled_program_scales_the_derivative(device) -> None:
    """c tanh'(x/c)/c: the small scale must not multiply a slope before the large one does."""
    x = torch.linspace(-60000, 60000, 1001, device=device).half().requires_grad_()
    pf.ops.softcap(x, 15000.0, program="fast", backward="matched").backward(torch.ones_like(x))
    want = 1 / torch.cosh(x.double() / 15000) ** 2
    assert (x.grad.double() - want).abs().max() < 0.12 and (x.grad > -0.01).all()


@pytest.mark.parametrize("limit", [7.3, 0.1, 5.9999, 80000.0])
def test_exact_clamps_at_the_limit_itself(limit, device) -> None:
    """A limit that the format does not hold: gate, up and both gradients are cut at the number given."""
    for dtype in DTYPES.values():
        near = torch.tensor([min(limit, 100.0)], dtype=dtype)
        values = torch.cat((near * 0.99, near, near * 1.01)).to(device)
        gate, up = values.clone().requires_grad_(), values.clone().requires_grad_()
        y = pf.ops.clamped_swiglu(gate, up, limit=limit, program="exact")
        y.backward(torch.ones_like(y))
        g, u = gate.detach().double().requires_grad_(), up.detach().double().requires_grad_()
        inside = g.clamp(max=limit)
        want = inside * torch.sigmoid(1.702 * inside) * (u.clamp(-limit, limit) + 1)
        want.backward(torch.ones_like(want))
        for got, exact in ((y, want), (gate.grad, g.grad), (up.grad, u.grad)):
            assert torch.allclose(got.double(), exact, rtol=2 * torch.finfo(dtype).eps, atol=0), limit


def test_a_program_file_is_read_at_every_call(device, tmp_path, monkeypatch) -> None:
    """Its path may name another program the next time."""
    monkeypatch.chdir(tmp_path)
    program = pf.load("silu.forward.bf16.d5").renamed("mine")
    other = pf.load("silu.forward.bf16.d3").renamed("mine")
    x = every_input("bf16", device)
    for given in (program, other):
        (tmp_path / "p.json").write_text(given.to_json())
        for name in ("p.json", tmp_path / "p.json"):
            assert_bits(to_bits(pf.ops.silu(x, program=name)), pf.replay(given, np.arange(65536, dtype=np.uint16)))
    (tmp_path / "p#1.json").write_text(other.to_json())
    assert_bits(to_bits(pf.ops.silu(x, program="p#1.json")), pf.replay(other, np.arange(65536, dtype=np.uint16)))


def test_softcaps_take_programs_of_another_cap(device) -> None:
    """By name or as a Program; and where FP16 cannot hold the scale of a cap, the default gradient is exact."""
    x = torch.randn(64, dtype=torch.bfloat16, device=device) * 30
    given = pf.fold(pf.load("softcap-50.forward.bf16.d6"), input_scale=50 / 30, output_scale=30 / 50)
    want = pf.replay(given, to_bits(x))
    for program in ("softcap-50.forward.bf16.d6", pf.load("softcap-50.forward.bf16.d6")):
        assert_bits(to_bits(pf.ops.softcap(x, 30.0, program=program)), want)
    half = x.half().requires_grad_()
    default = pf.ops.softcap(half, 30.0)
    assert_bits(to_bits(default), to_bits(pf.ops.softcap(half, 30.0, program="softcap-50.forward.bf16.fp32-fused-odd-limited-d7")))
    pf.ops.softcap(half, 30000.0).backward(torch.ones_like(half))
    assert (half.grad == 1).all()
    every = every_input("fp16", device)
    every = every[(every >= 0.01) & every.isfinite()]
    for program, most, small in ((None, 3.3e-3, 2.8e-3), ("tanh.forward.fp16.unit-odd-d6", 7.5e-3, 1.1e-3)):  # as documented
        error = (pf.ops.softcap(every, 50.0, program=program).double() / (50 * torch.tanh(every.double() / 50)) - 1).abs()
        assert error.max() <= most and error[every < 1].max() <= small
    with pytest.raises(pf.ProgramError, match="this call needs softcap-30 forward in fp16"):
        pf.ops.softcap(half, 30.0, program="softcap-50.forward.bf16.d6")


def test_numbers_of_any_kind_and_alpha_of_one(device) -> None:
    x = torch.randn(8, dtype=torch.bfloat16, device=device)
    for cap in (30, np.float64(30), np.float32(30), np.int64(30)):
        assert_bits(to_bits(pf.ops.softcap(x, cap)), to_bits(pf.ops.softcap(x, 30.0)))
    wide = pf.ops.clamped_swiglu(x, x, alpha=1.0, limit=100.0, program="silu.forward.bf16.d5")
    assert_bits(to_bits(wide), to_bits(pf.ops.silu(x, program="silu.forward.bf16.d5") * (x + 1)))


def test_packed_results_have_the_layout_of_their_gate(device) -> None:
    x = torch.randn(8, 6, dtype=torch.bfloat16, device=device).t()
    for interleaved in (False, True):
        assert pf.ops.swiglu(x, interleaved=interleaved).stride() == torch.empty_like(execute.halves(x, interleaved)[0]).stride()
        assert_bits(to_bits(pf.ops.swiglu(x, interleaved=interleaved)), to_bits(pf.ops.swiglu(x.contiguous(), interleaved=interleaved)))


def test_long_names_and_identity_programs(device) -> None:
    x = torch.randn(8, dtype=torch.bfloat16, device=device)
    assert pf.ops.silu(x, program=pf.load("silu.forward.bf16.d5").renamed("n" * 300)).shape == x.shape
    same = pf.Program.from_dict({"name": "same", "function": "silu", "direction": "forward", "format": "bf16", "degree": 0, "form": "identity",
                                 "inputs": ["x"], "consts": {}, "ops": [], "outputs": {"value": "x"}})  # fmt: skip
    with pytest.raises(pf.ProgramError, match="gives back its input"):
        pf.ops.silu(x, program=same)
    for given in ([], {}, 3.5):
        with pytest.raises(pf.PolyfmaError, match="must be a name"):
            pf.ops.silu(x, program=given)
