"""Patching whole models: what is found, that nothing else changes, and that all of it can be undone."""

from __future__ import annotations

import copy
import io
import pickle
from collections import Counter
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

import polyfma as pf
from polyfma.errors import PolyfmaError, ProgramError, UnknownNameError
from polyfma.models import Config
from polyfma.models.activations import NATIVE, recognise
from polyfma.models.arms import published_silu
from polyfma.models.structure import gated

t = pytest.importorskip("transformers")
from transformers import activations  # noqa: E402

from families import CAUSAL, FAMILIES, build, inputs, output  # noqa: E402


def relative(a: torch.Tensor, b: torch.Tensor) -> float:
    """The median over tokens of the relative distance: a router may choose another expert for a few of them by a rounding."""
    a, b = (t.float().flatten(0, -2) for t in (a, b))
    return float(((a - b).norm(dim=-1) / b.norm(dim=-1).clamp_min(1e-6)).median())


@pytest.mark.parametrize("name", FAMILIES)
def test_families_are_patched_and_put_back(name: str) -> None:
    """Rows 23 and 26: the same keys and tensors before, while and after; a second model untouched; the outputs exactly back."""
    model, other, x = build(name), build(name), inputs(name)
    other.load_state_dict(model.state_dict())
    native = output(model, x)
    state = {k: v.data_ptr() for k, v in model.state_dict().items()}
    identity, text = [id(p) for p in model.parameters()], repr(model)
    with pf.patch(model) as handle:
        assert Counter(r.kind for r in handle.report().replaced) == FAMILIES[name][1]
        assert relative(output(model, x), native) < 0.05
        assert {k: v.data_ptr() for k, v in model.state_dict().items()} == state
        assert [id(p) for p in model.parameters()] == identity and repr(model) == text
        assert torch.equal(output(other, x), native)
    assert torch.equal(output(model, x), native)
    assert not any("forward" in m.__dict__ or "_apply_gate" in m.__dict__ for m in model.modules())


@pytest.mark.parametrize("name", FAMILIES)
def test_programs_are_what_runs(name: str) -> None:
    """A program that is wrong by much must be seen: fast degree-2 programs change the output, exact ones hardly."""
    model, x = build(name), inputs(name)
    native = output(model, x)
    with pf.patch(model, Config(program="exact")):
        exact = relative(output(model, x), native)
    with pf.patch(model, Config(program="fast")):
        assert relative(output(model, x), native) > max(exact, 1e-4)
    assert exact < 0.03


ROUTED = ("qwen3-moe", "mixtral", "gpt-oss", "deepseek-v3")


@pytest.mark.parametrize("name", [n for n in FAMILIES if n not in ROUTED])
def test_gradients_reach_every_parameter(name: str) -> None:
    model, x = build(name), inputs(name)

    def gradients() -> dict[str, torch.Tensor]:
        model.zero_grad()
        out = model(x)
        (out.logits if hasattr(out, "logits") else out.last_hidden_state).float().square().mean().backward()
        return {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}

    want = gradients()
    with pf.patch(model, Config(program="exact")):
        got = gradients()
    assert got.keys() == want.keys()
    largest = max(float(g.float().norm()) for g in want.values())
    for n, g in want.items():
        assert float((got[n].float() - g.float()).norm()) < 0.2 * float(g.float().norm()) + 1e-3 * largest, n


def test_copies_and_pickles_are_patched_models_of_their_own() -> None:
    for name in ("llama", "qwen3-moe", "gemma2", "gpt-oss", "bert"):
        model, x = build(name), inputs(name)
        native = output(model, x)
        handle = pf.patch(model, Config(program="fast"))
        patched = output(model, x)
        buffer = io.BytesIO()
        torch.save(model, buffer)
        buffer.seek(0)
        copies = [copy.deepcopy(model), pickle.loads(pickle.dumps(model)), torch.load(buffer, weights_only=False)]
        handle.unpatch()
        assert torch.equal(output(model, x), native) and not torch.equal(native, patched)
        for other in copies:
            assert torch.equal(output(other, x), patched)
            for parameter in model.parameters():
                parameter.data.zero_()  # a copy that still held the first model's modules would follow
            assert torch.equal(output(other, x), patched)


def test_programs_of_ones_own_travel_with_a_pickle() -> None:
    from polyfma.ops import choice

    program = published_silu("endpoint-ls").renamed("mine")
    model, x = build("llama"), inputs("llama")
    pf.patch(model, Config(program=program, inexact_tails=True))
    want, data = output(model, x), pickle.dumps(model)
    choice._registered.clear()
    choice.parse.cache_clear()
    assert torch.equal(output(pickle.loads(data), x), want)


@pytest.mark.parametrize("name", ["llama", "gemma2", "gpt-oss", "qwen3-moe"])
def test_gradient_checkpointing(name: str) -> None:
    """The same gradients, bit for bit, from a forward pass that is computed twice."""
    model, x = build(name).train(), inputs(name)

    def gradients() -> list[torch.Tensor]:
        model.zero_grad()
        model(x).logits.float().square().mean().backward()
        return [p.grad.clone() for p in model.parameters() if p.grad is not None]

    with pf.patch(model):
        want = gradients()
        model.gradient_checkpointing_enable()
        got = gradients()
    assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True))


@pytest.mark.parametrize("name", ["llama", "gpt2", "bert", "phi3"])
def test_compiled(name: str) -> None:
    """One graph, and the bits of eager code. The eager backend: what Inductor makes of an operator is tested with the operators."""
    model, x = build(name), inputs(name)
    with pf.patch(model, Config(program="fast")):
        want = output(model, x)
        torch._dynamo.reset()
        compiled = torch.compile(model, fullgraph=True, backend="eager")
        assert torch.equal(output(compiled, x), want)
    assert not torch.equal(output(model, x), want)


def test_compiled_softcapped_attention() -> None:
    """The graph breaks at the attention, which chooses its kernels outside."""
    model, x = build("gemma2"), inputs("gemma2")
    with pf.patch(model, Config(program="fast")):
        want = output(model, x)
        torch._dynamo.reset()
        assert relative(output(torch.compile(model, backend="eager"), x), want) < 1e-2


def test_autocast_and_fp32() -> None:
    """fp32 tensors go through torch as before, bit for bit; under autocast programs run."""
    model, x = build("llama", torch.float32), inputs("llama")
    native = output(model, x)
    with torch.autocast("cpu", torch.bfloat16):
        cast = output(model, x)
    with pf.patch(model, Config(program="fast")) as handle:
        assert "float32" in handle.report().note
        assert torch.equal(output(model, x), native)
        with torch.autocast("cpu", torch.bfloat16):
            assert 1e-4 < relative(output(model, x), cast) < 0.3


def test_wrapped_by_data_parallel(tmp_path: Any) -> None:
    """DDP and FSDP2 over one process: patched before wrapping, and the same output after it."""
    import torch.distributed as dist

    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/rendezvous", rank=0, world_size=1)
    try:
        model, x = build("llama"), inputs("llama")
        with pf.patch(model, Config(program="fast")):
            want = output(model, x)
            assert torch.equal(output(nn.parallel.DistributedDataParallel(model), x), want)
            from torch.distributed.device_mesh import init_device_mesh
            from torch.distributed.fsdp import fully_shard

            sharded = copy.deepcopy(model)
            mesh = init_device_mesh("cpu", (1,))
            for layer in sharded.model.layers:
                fully_shard(layer, mesh=mesh)
            fully_shard(sharded, mesh=mesh)
            assert torch.equal(output(sharded, x), want)
    finally:
        dist.destroy_process_group()


# -- activations by what they compute --------------------------------------------------------------------


def test_every_activation_of_transformers_is_its_own_function_or_left_alone() -> None:
    """Row 24: what is recognised gives torch's values in fp64; exact and tanh GELU are not interchanged."""
    x = torch.linspace(-6, 6, 4001, dtype=torch.float64)
    seen = {}
    for name in activations.ACT2CLS:
        module = activations.ACT2FN[name]
        found = recognise(module)
        assert found is not None, name
        if found.function is not None:
            seen[name] = found.function
            assert torch.allclose(module(x), NATIVE[found.function](x), atol=1e-7), name
        else:
            assert found.reason
    assert seen["gelu"] == seen["gelu_python"] == "gelu" and seen["gelu_new"] == seen["gelu_pytorch_tanh"] == seen["gelu_fast"] == "gelu-tanh"
    assert seen["silu"] == seen["swish"] == "silu" and seen["quick_gelu"] == "silu-1.702"
    assert "gelu_10" not in seen and "mish" not in seen and "relu" not in seen


@pytest.mark.parametrize("act", ["gelu", "gelu_pytorch_tanh", "gelu_new", "quick_gelu", "silu", "swish", "gelu_fast"])
def test_hidden_act_of_a_model(act: str) -> None:
    model = t.LlamaForCausalLM(t.LlamaConfig(vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=4, hidden_act=act))
    model = model.to(torch.bfloat16).eval()
    for parameter in model.parameters():
        if parameter.ndim > 1:
            nn.init.normal_(parameter, std=0.5)
    x = inputs("llama")
    native = output(model, x)
    with pf.patch(model, Config(program="exact")) as handle:
        assert handle.report().replaced[0].function == recognise(activations.ACT2FN[act]).function
        assert relative(output(model, x), native) < 0.02


def test_unknown_activations_are_left_alone_with_the_reason() -> None:
    class Own(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return functional.silu(x) + 1

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.act, self.mish, self.silu = nn.Linear(4, 4), Own(), nn.Mish(), nn.SiLU()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.silu(self.mish(self.act(self.first(x))))

    class Derived(nn.SiLU):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x

    net = Net().bfloat16()
    report = pf.patch(net, dry_run=True).report()
    assert [r.name for r in report.replaced] == ["silu"]
    assert {entry.name: entry.reason for entry in report.left} == {"act": "an unknown activation, Own", "mish": "Mish has no program"}
    assert recognise(Derived()) is None and recognise(nn.GELU("tanh")).function == "gelu-tanh" and recognise(functional.silu).function == "silu"
    assert recognise(nn.Linear(1, 1)) is None and recognise([]) is None and recognise(abs) is None


def test_structures_that_are_no_gated_mlp() -> None:
    class Base(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.c, self.act = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4), nn.SiLU()

    class Plain(Base):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.c(self.b(x) * self.act(self.a(x)))

    class Functional(Base):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.c(functional.gelu(self.a(x), approximate="tanh") * self.b(x))

    class Packed(Base):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            up, gate = self.a(x).chunk(2, dim=-1)
            return self.c(self.act(gate) * up)

    class Clamped(Base):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.c(self.act(self.a(x).clamp(max=7.0)) * (self.b(x) + 1))

    class Residual(Base):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + self.c(self.act(self.a(x)) * self.b(x))

    class Same(Base):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.c(self.act(self.a(x)) * self.a(x))

    class Branching(Base):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.c(self.act(self.a(x)) * self.b(x)) if x.sum() > 0 else x

    class Chunked(Base):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            gate, up = self.a(x).chunk(2, dim=0)
            return self.c(self.act(gate) * up)

    plain = gated(Plain())
    assert plain is not None and (plain.gate, plain.up, plain.tail) == ("a", "b", ("c",))
    functional_one, packed = gated(Functional()), gated(Packed())
    assert functional_one is not None and functional_one.recognised.function == "gelu-tanh"
    assert packed is not None and packed.up is None and not packed.gate_first
    for other in (Clamped, Residual, Same, Branching, Chunked):
        assert gated(other()) is None, other
    for kind in (Plain, Functional):
        net = kind().bfloat16()
        x = torch.randn(3, 4).bfloat16()
        want = net(x)
        with pf.patch(net, Config(program="exact")):
            assert relative(net(x), want) < 0.02


def test_clamped_swiglu_is_not_plain_swiglu() -> None:
    """Row 25: GPT-OSS's experts get the clamped unit; a gate that is neither is left alone."""
    model = build("gpt-oss")
    report = pf.patch(model, dry_run=True).report()
    assert {(r.kind, r.program) for r in report.replaced} == {("experts", "silu-1.702.forward.bf16.fp32-times-sigmoid-limited-d7")}
    experts = model.model.layers[0].mlp.experts
    kind = type(experts)
    other = type("Other", (kind,), {"_apply_gate": lambda self, x: x[..., ::2] * torch.sigmoid(x[..., ::2]) * x[..., 1::2].clamp(-5, 5)})
    experts.__class__ = other
    report = pf.patch(model, dry_run=True).report()
    assert len(report.replaced) == 1 and any(entry.reason == "its gate is no unit that has programs" for entry in report.left)


def test_routers_and_final_softcaps_are_left_alone() -> None:
    """Row 26."""
    for name, router in (("qwen3-moe", "model.layers.0.mlp.gate"), ("gpt-oss", "model.layers.0.mlp.router"), ("deepseek-v3", "model.layers.3.mlp.gate")):
        left = {entry.name: entry.reason for entry in pf.patch(build(name), dry_run=True).report().left}
        assert left[router].startswith("a router"), name
    assert any(entry.name == "final logits" for entry in pf.patch(build("gemma2"), dry_run=True).report().left)

    class TinyRouter(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.project, self.score = nn.Linear(4, 2), nn.Sigmoid()

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.router, self.act = TinyRouter(), nn.SiLU()

    net = Net().bfloat16()
    assert [r.name for r in pf.patch(net, dry_run=True).report().replaced] == ["act"]
    assert [r.name for r in pf.patch(net, Config(include=("router.*",)), dry_run=True).report().replaced] == ["router.score", "act"]


@pytest.mark.parametrize("implementation", ["eager", "grouped_mm", "batched_mm"])
@pytest.mark.parametrize("name", ["qwen3-moe", "mixtral", "gpt-oss", "deepseek-v3"])
def test_experts_implementations(name: str, implementation: str) -> None:
    model, x = build(name), inputs(name)
    model.set_experts_implementation(implementation)
    native = output(model, x)
    with pf.patch(model, Config(program="exact")):
        exact = output(model, x)
    with pf.patch(model, Config(program="fast")):
        fast = output(model, x)
    assert relative(exact, native) < 0.03 < 1.0 and not torch.equal(fast, exact)
    assert model.config._experts_implementation == implementation and torch.equal(output(model, x), native)


@pytest.mark.parametrize("implementation", ["eager", "grouped_mm", "batched_mm"])
@pytest.mark.parametrize("name", ROUTED)
def test_gradients_of_experts(name: str, implementation: str) -> None:
    """With the routing given: what a router chooses is discrete."""
    model = build(name)
    model.set_experts_implementation(implementation)
    experts = next(m for m in model.modules() if hasattr(type(m), "_apply_gate"))
    x = torch.randn(7, 32, dtype=torch.bfloat16, requires_grad=True)
    index = torch.stack([torch.randperm(4)[:2] for _ in range(7)])
    weights = torch.rand(7, 2, dtype=torch.bfloat16)

    def gradients() -> list[torch.Tensor]:
        wanted = [x, *experts.parameters()]
        return [g for g in torch.autograd.grad(experts(x, index, weights).float().square().sum(), wanted, allow_unused=True) if g is not None]

    want = gradients()
    with pf.patch(model, Config(program="exact")):
        got = gradients()
    for a, b in zip(got, want, strict=True):
        assert float((a.float() - b.float()).norm() / b.float().norm()) < 0.05


def test_rows_past_the_offsets_do_not_leak() -> None:
    """Row 27: experts of others leave rows uninitialised. NaN there reaches no other row, forward or backward."""
    from transformers.integrations.moe import grouped_mm_experts_forward

    model = build("qwen3-moe")
    experts = model.model.layers[0].mlp.experts
    experts._is_expert_parallel = True
    x = torch.randn(6, 32, dtype=torch.bfloat16, requires_grad=True)
    index = torch.tensor([[0, 1], [4, 4], [2, 4], [4, 3], [1, 4], [4, 4]])  # 4 is no expert of this rank
    weights = torch.rand(6, 2, dtype=torch.bfloat16) * (index < 4)
    want = grouped_mm_experts_forward(experts, x, index, weights)
    (wanted,) = torch.autograd.grad(want.float().square().sum(), x)
    with pf.patch(model, Config(program="exact")):
        poison = experts._apply_gate

        def poisoned(gate_up: torch.Tensor) -> torch.Tensor:
            past = int((index < 4).sum())
            return poison(torch.cat([gate_up[:past], torch.full_like(gate_up[past:], torch.nan)]))

        experts.__dict__["_apply_gate"] = poisoned
        got = grouped_mm_experts_forward(experts, x, index, weights)
        (gradient,) = torch.autograd.grad(got.float().square().sum(), x)
        experts.__dict__["_apply_gate"] = poison
    assert relative(got, want) < 0.02 and relative(gradient, wanted) < 0.05
    assert torch.isfinite(got).all() and torch.isfinite(gradient).all()


# -- attention -----------------------------------------------------------------------------------------


def padded(sides: str) -> torch.Tensor:
    seen = torch.ones(2, 9, dtype=torch.long)
    if sides == "left":
        seen[0, :3] = 0
    elif sides == "right":
        seen[0, -3:] = 0
    return seen


@pytest.mark.parametrize("sides", ["none", "left", "right"])
@pytest.mark.parametrize("name", ["gemma2", "gemma3", "llama"])
def test_attention_implementation(name: str, sides: str) -> None:
    """Windows, softcaps and padding by name, against eager; a future token changes nothing before it (row 28)."""
    pf.models.register_attention()
    model, x, seen = build(name), inputs(name), padded(sides)
    model.set_attn_implementation("eager")
    native = output(model, x, attention_mask=seen)
    model.set_attn_implementation("polyfma")
    got = output(model, x, attention_mask=seen)
    kept = seen.bool()
    assert relative(got[kept], native[kept]) < 0.03
    later = x.clone()
    later[:, -1] = (later[:, -1] + 1) % 61 + 3
    assert torch.equal(output(model, later, attention_mask=seen)[:, :-1][kept[:, :-1]], got[:, :-1][kept[:, :-1]])


def test_attention_without_a_mask_function_is_causal() -> None:
    """Row 28: an implementation whose mask function is missing gets no mask; causality is the layer's own."""
    from polyfma.models.attention import attention

    model = build("gemma2")
    layer = model.model.layers[0].self_attn
    q, k, v = (torch.randn(2, h, 9, 16, dtype=torch.bfloat16) for h in (4, 2, 2))
    first = attention(layer, q, k, v, None, scaling=0.25, softcap=50.0)[0]
    k[:, :, -1], v[:, :, -1] = 1.0, 1.0
    assert torch.equal(attention(layer, q, k, v, None, scaling=0.25, softcap=50.0)[0][:, :-1], first[:, :-1])


@pytest.mark.parametrize("name", ["gemma2", "llama"])
@pytest.mark.parametrize("cache", ["dynamic", "static"])
def test_generation_is_that_of_eager_attention(name: str, cache: str) -> None:
    """Prefill and decode through the model's cache, a static one too, past the window."""
    pf.models.register_attention()
    model, x = build(name), inputs(name)
    options: dict[str, Any] = {"max_new_tokens": 8, "do_sample": False, "cache_implementation": cache, "output_logits": True, "return_dict_in_generate": True}
    if cache == "static":
        options |= {"disable_compile": True}
    found = {}
    for implementation in ("eager", "polyfma"):
        model.set_attn_implementation(implementation)
        with torch.no_grad():
            found[implementation] = torch.stack(model.generate(x, attention_mask=torch.ones_like(x), **options).logits)
    assert relative(found["polyfma"][0], found["eager"][0]) < 0.03
    same = relative(found["polyfma"][:2], found["eager"][:2])
    assert same < 0.05


def test_masks_of_other_kinds_are_made_whole() -> None:
    """Packed sequences: one mask function over another, which no flag says; the whole mask is used."""
    pf.models.register_attention()
    model, x = build("gemma2"), inputs("gemma2")
    positions = torch.tensor([[0, 1, 2, 3, 0, 1, 2, 3, 4]]).expand(2, -1)
    found = {}
    for implementation in ("eager", "polyfma"):
        model.set_attn_implementation(implementation)
        found[implementation] = output(model, x, position_ids=positions, use_cache=False)
    assert relative(found["polyfma"], found["eager"]) < 0.03


def test_attention_sinks_are_refused() -> None:
    pf.models.register_attention()
    model = build("gpt-oss")
    x = inputs("gpt-oss")
    model.set_attn_implementation("polyfma")
    with pytest.raises(PolyfmaError, match="no attention sinks"):
        output(model, x)


def test_a_config_shared_by_two_models_stays_the_others() -> None:
    config = t.Gemma2Config(vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=4, num_key_value_heads=2, head_dim=16)
    one, two = (t.Gemma2ForCausalLM(config).to(torch.bfloat16).eval() for _ in range(2))
    before = config._attn_implementation
    with pf.patch(one):
        assert one.config._attn_implementation == "polyfma" and one.config is one.model.config
        assert two.config._attn_implementation == before and two.config is config
    assert one.config is config


# -- refusals ------------------------------------------------------------------------------------------


REFUSED: dict[str, tuple[Any, type[Exception], str]] = {
    "nothing to patch": (lambda m: pf.patch(nn.Linear(2, 2)), PolyfmaError, "nothing to patch in Linear"),
    "only relu": (lambda m: pf.patch(nn.Sequential(nn.Linear(2, 2), nn.ReLU())), PolyfmaError, "ReLU is exact without a program"),
    "no module": (lambda m: pf.patch("llama"), PolyfmaError, "takes a torch.nn.Module, not str"),
    "a name as config": (lambda m: pf.patch(m, "fast"), PolyfmaError, r"Config\(program='fast'\)"),
    "unknown program": (lambda m: pf.patch(m, Config(program="no-such")), UnknownNameError, "no-such"),
    "program of another function": (lambda m: pf.patch(m, Config(program="gelu.forward.bf16.d4")), ProgramError, "gelu"),
    "program of another format": (lambda m: pf.patch(m, Config(program="silu.forward.fp16.d4")), ProgramError, "fp16"),
    "inexact tails": (lambda m: pf.patch(m, Config(program="silu.forward.bf16.d4.free")), PolyfmaError, "no exact tails"),
    "published": (lambda m: pf.patch(m, Config(program=published_silu("endpoint-ls"))), PolyfmaError, "no exact tails"),
    "layer pattern": (lambda m: pf.patch(m, Config(layers={"model.layer.*": "exact"})), UnknownNameError, "matches no place of this model; there are: model.layers.0.mlp"),
    "include pattern": (lambda m: pf.patch(m, Config(include=("router",))), UnknownNameError, "include pattern 'router'"),
    "function": (lambda m: pf.patch(m, Config(programs={"gelu": "exact"})), UnknownNameError, "it has: silu"),
    "everything filtered": (lambda m: pf.patch(m, filter_fn=lambda module, name: False), PolyfmaError, "filter_fn leaves it"),
    "programs as a list": (lambda m: pf.patch(m, Config(programs=["silu"])), PolyfmaError, "must map names to programs"),
    "layers by number": (lambda m: pf.patch(m, Config(layers={1: "exact"})), PolyfmaError, "must map names to programs"),
    "include as text": (lambda m: pf.patch(m, Config(include="g*")), PolyfmaError, "must be a tuple of patterns"),
    "a word for a switch": (lambda m: pf.patch(m, Config(attention="no")), PolyfmaError, "must be True or False"),
    "filter as text": (lambda m: pf.patch(m, filter_fn="g*"), PolyfmaError, "must be a function of"),
    "a hidden program": (lambda m: pf.patch(m, Config(layers={"*": "exact", "model.*": "nonsense"})), UnknownNameError, "nonsense"),
    "every layer native": (lambda m: pf.patch(m, Config(layers={"*": "native"})), PolyfmaError, "config leaves it native"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_refusals_change_nothing(case: str) -> None:
    model, x = build("llama"), inputs("llama")
    native = output(model, x)
    run, kind, message = REFUSED[case]
    with pytest.raises(kind, match=message) as refused:
        run(model)
    assert "\n" not in str(refused.value)
    assert torch.equal(output(model, x), native)


def test_patching_twice_and_other_peoples_forwards() -> None:
    model, x = build("llama"), inputs("llama")
    native = output(model, x)
    handle = pf.patch(model)
    with pytest.raises(PolyfmaError, match="patched already"):
        pf.patch(model)
    handle.unpatch()
    other = pf.patch(model)
    with pytest.raises(PolyfmaError, match="patched by another handle"):
        handle.repatch()
    other.unpatch()
    handle.unpatch()
    assert torch.equal(output(model, x), native)
    mlp = model.model.layers[0].mlp
    mlp.forward = lambda x: x
    report = pf.patch(model, dry_run=True).report()
    assert [r.name for r in report.replaced] == ["model.layers.1.mlp"]
    assert "its forward was replaced already" in report.left[0].reason


def test_a_patch_that_fails_is_undone(monkeypatch: pytest.MonkeyPatch) -> None:
    from polyfma.models import patching

    model, x = build("gemma2"), inputs("gemma2")
    native = output(model, x)
    monkeypatch.setattr(patching.attention, "register", lambda: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        pf.patch(model)
    assert torch.equal(output(model, x), native)


def test_layers_programs_filters_and_dry_runs() -> None:
    model = build("llama")
    config = Config(program="exact", layers={"model.layers.0.*": "silu.forward.bf16.d5"})
    assert [r.program for r in pf.patch(model, config, dry_run=True).report().replaced] == ["silu.forward.bf16.d5", "exact"]
    assert not any("forward" in m.__dict__ for m in model.modules())
    report = pf.patch(model, filter_fn=lambda module, name: name.endswith("1.mlp"), dry_run=True).report()
    assert [r.name for r in report.replaced] == ["model.layers.1.mlp"]
    assert "2 places replaced" in str(pf.patch(model, config, dry_run=True).report())
    assert set(report.to_dict()) == {"replaced", "left", "note"}


def test_generation_with_the_patched_model() -> None:
    for name in CAUSAL:
        model, x = build(name), inputs(name)
        with pf.patch(model), torch.no_grad():
            assert model.generate(x, max_new_tokens=3, do_sample=False).shape == (2, 12), name


def test_a_handle_patches_again() -> None:
    model, x = build("gemma2"), inputs("gemma2")
    native = output(model, x)
    handle = pf.patch(model, Config(program="fast"))
    patched = output(model, x)
    handle.repatch()
    assert torch.equal(output(model, x), patched)
    for _ in range(2):
        handle.unpatch()
        assert torch.equal(output(model, x), native)
        handle.repatch()
        assert torch.equal(output(model, x), patched)
    handle.unpatch()
    assert torch.equal(output(model, x), native)


def test_a_cap_that_native_attention_drops_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    model = build("gemma2")
    assert "softcap" not in pf.patch(model, dry_run=True).report().note
    model.config._attn_implementation_internal = "sdpa"
    assert "leaves the softcap out" in pf.patch(model, dry_run=True).report().note


class Base(nn.Module):
    """Projections and an activation, for forwards that do more than a gated MLP's."""

    def __init__(self, act: nn.Module | None = None) -> None:
        super().__init__()
        self.g, self.u, self.d = (nn.Linear(8, 8, dtype=torch.bfloat16) for _ in range(3))
        self.a = act or nn.SiLU()
        self.drop, self.lora, self.n = nn.Dropout(), False, 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.d(self.a(self.g(x)) * self.u(x))


class Training(Base):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.a(self.g(x)) * self.u(x)
        if self.training:
            y = self.drop(y)
        return self.d(y)


class Branch(Base):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.d(self.a(self.g(x)) * self.u(x)) if not self.lora else x


class Context(Base):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", enabled=False):
            return self.d(self.a(self.g(x)) * self.u(x))


class Decorated(Base):
    @torch.no_grad()
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.d(self.a(self.g(x)) * self.u(x))


class Counting(Base):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.n += 1
        return self.d(self.a(self.g(x)) * self.u(x))


@pytest.mark.parametrize("kind", [Training, Branch, Context, Decorated, Counting])
def test_what_a_trace_would_lose_is_not_traced(kind: type[Base]) -> None:
    """Only the activation is replaced, and the forward is the model's own."""
    model, x = kind().eval(), torch.randn(4, 8, dtype=torch.bfloat16)
    with pf.patch(model) as handle:
        assert [r.kind for r in handle.report().replaced] == ["activation"] and "forward" not in model.__dict__
        assert model.n == 0
        y = model(x)
        assert y.requires_grad is (kind is not Decorated) and model.n == (1 if kind is Counting else 0)
        model.train()
        assert not torch.equal(model(x), model(x)) or kind is not Training


def test_a_root_is_replaced_once() -> None:
    with pf.patch(Base()) as handle:
        assert [r.kind for r in handle.report().replaced] == ["gated MLP"]


def test_hooked_activations_are_called() -> None:
    model, x = build("llama"), inputs("llama")
    for layer in model.model.layers:
        layer.mlp.act_fn.register_forward_hook(lambda module, given, out: out * 0)
    native = output(model, x)
    with pf.patch(model) as handle:
        assert {r.kind for r in handle.report().replaced} == {"activation"}
        assert torch.equal(output(model, x), native)


def test_activations_in_place_are_left_alone() -> None:
    report = pf.patch(nn.ModuleList([nn.SiLU(inplace=True), nn.SiLU()]), dry_run=True).report()
    assert [r.name for r in report.replaced] == ["1"] and "changes its input" in report.left[0].reason
    with pytest.raises(PolyfmaError, match="changes its input"):
        pf.patch(Base(nn.SiLU(inplace=True)))


def test_what_a_router_uses_is_left_alone_everywhere() -> None:
    class Routed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.SiLU()
            self.router = nn.Sequential(nn.Linear(8, 8), self.a, nn.Linear(8, 2))
            self.moe_router, self.gate = nn.Sequential(nn.Linear(8, 2), nn.GELU()), Base()
            self.act = nn.SiLU()

    report = pf.patch(Routed(), dry_run=True).report()
    assert [r.name for r in report.replaced] == ["act"]
    left = {entry.name: entry.reason for entry in report.left}
    assert left["a"] == "a router uses the same activation module" and {"router", "moe_router", "gate"} <= left.keys()


def test_edits_of_a_config_while_patched_stay() -> None:
    model, x = build("gemma2"), inputs("gemma2")
    native, implementation = output(model, x), model.config._attn_implementation
    with pf.patch(model):
        model.config.use_cache = False
    assert model.config.use_cache is False and model.config._attn_implementation == implementation
    assert torch.equal(output(model, x), native)
    moe = build("mixtral")
    moe.set_experts_implementation("eager")
    with pf.patch(moe):
        moe.set_experts_implementation("grouped_mm")
    assert moe.config._experts_implementation == "grouped_mm"
    with pf.patch(moe, Config(program="fast")):
        moe.set_experts_implementation("eager")
        got = output(moe, x)
    moe.set_experts_implementation("eager")
    assert not torch.equal(output(moe, x), got)


def test_unpatch_refuses_to_take_other_peoples_wrappers_away() -> None:
    model, x = build("llama"), inputs("llama")
    native, handle = output(model, x), pf.patch(model)
    mlp = model.model.layers[0].mlp
    ours = mlp.forward
    mlp.forward = lambda h: ours(h) * 2
    with pytest.raises(PolyfmaError, match="was replaced since"):
        handle.unpatch()
    mlp.forward = ours
    handle.unpatch()
    assert torch.equal(output(model, x), native)


def test_copies_are_unpatched_without_a_handle() -> None:
    for name in ("llama", "gemma2", "qwen3-moe"):
        model, x = build(name), inputs(name)
        native, handle = output(model, x), pf.patch(model)
        for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
            pf.models.unpatch(other)
            assert torch.equal(output(other, x), native)
            pf.patch(other).unpatch()
        for copied in (copy.deepcopy, pickle.dumps):
            with pytest.raises(PolyfmaError, match="not copied"):
                copied(handle)


def test_arguments_by_name() -> None:
    class Named(Base):
        def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
            return self.d(self.a(self.g(hidden_states)) * self.u(hidden_states))

    for model, name in ((Named(), "hidden_states"), (nn.SiLU(), "input"), (activations.NewGELUActivation(), "input")):
        x = torch.randn(3, 8, dtype=torch.bfloat16)
        with pf.patch(model):
            assert torch.equal(model(**{name: x}), model(x))


def test_formats_are_those_of_each_place() -> None:
    model = nn.ModuleList([Base(), Base().half()])
    assert [r.program.split(".")[2] for r in pf.patch(model, dry_run=True).report().replaced] == ["bf16", "fp16"]
    with pytest.raises(ProgramError, match="fp16"):
        pf.patch(model, Config(program="silu.forward.bf16.d5"))
