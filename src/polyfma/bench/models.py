"""Whole models on a GPU: a Llama MLP's training step against torch.compile and Liger, and the prefill of every tested family.

Models are random and of real shapes; weights and inputs are BF16. Every arm has parameters of its own, copied from one.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from polyfma.bench.result import Measurement, Timing, check_cases
from polyfma.bench.timing import Call, EagerProtocol, eager_rounds, need_gpu
from polyfma.errors import MissingToolError
from polyfma.models import Config, patch

CASES = ("mlp", "prefill")
HIDDEN, INTERMEDIATE, TOKENS = 4096, 14336, 16384
MLP = EagerProtocol(warmups=5, rounds=15, calls=4)
PREFILL = EagerProtocol(warmups=3, rounds=9, calls=4)
BATCH, PROMPT = 4, 2048
PROTOCOL = {
    "mlp": f"LlamaMLP of {HIDDEN} x {INTERMEDIATE}, {TOKENS} tokens, BF16, forward and backward to input and weights; {MLP}",
    "prefill": f"forward pass without gradient of {BATCH} x {PROMPT} tokens (BERT: {BATCH * 4} x {PROMPT}, ViT: {BATCH * 32} images of 224 x 224; Gemma 2's native attention is eager, which has the softcap), logits of the last token; {PREFILL}",
}
_SIZES = {"vocab_size": 32000, "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 4, "num_attention_heads": 16, "num_key_value_heads": 8,
          "head_dim": 128, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}  # fmt: skip
_MOE = {**_SIZES, "num_experts": 16, "num_experts_per_tok": 4, "moe_intermediate_size": 1024}
_LATENT = {"vocab_size": 32000, "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 5, "num_attention_heads": 16, "num_key_value_heads": 16,
           "n_routed_experts": 16, "num_experts_per_tok": 4, "n_group": 4, "topk_group": 2, "moe_intermediate_size": 1024, "q_lora_rank": 768,
           "kv_lora_rank": 512, "bos_token_id": 1, "eos_token_id": 2}  # fmt: skip
_ENCODER = {"hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 8, "num_attention_heads": 16}
# family: (model class, config class, its sizes)
FAMILIES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "Llama": ("LlamaForCausalLM", "LlamaConfig", _SIZES),
    "Mistral": ("MistralForCausalLM", "MistralConfig", _SIZES),
    "Qwen2": ("Qwen2ForCausalLM", "Qwen2Config", _SIZES),
    "Qwen3": ("Qwen3ForCausalLM", "Qwen3Config", _SIZES),
    "Qwen3-MoE": ("Qwen3MoeForCausalLM", "Qwen3MoeConfig", _MOE),
    "Mixtral": ("MixtralForCausalLM", "MixtralConfig", {**_SIZES, "intermediate_size": 2048, "num_local_experts": 8}),
    "Gemma 2": ("Gemma2ForCausalLM", "Gemma2Config", {**_SIZES, "query_pre_attn_scalar": 128}),
    "Gemma 3": ("Gemma3ForCausalLM", "Gemma3TextConfig", {**_SIZES, "query_pre_attn_scalar": 128}),
    "GPT-OSS": ("GptOssForCausalLM", "GptOssConfig", {**_SIZES, "intermediate_size": 2048, "num_local_experts": 16, "num_experts_per_tok": 4}),
    "DeepSeek-V3": ("DeepseekV3ForCausalLM", "DeepseekV3Config", _LATENT),
    "GPT-2": ("GPT2LMHeadModel", "GPT2Config", {"vocab_size": 32000, "n_embd": 1600, "n_layer": 8, "n_head": 25, "n_positions": PROMPT, "bos_token_id": 1, "eos_token_id": 2}),
    "BERT": ("BertModel", "BertConfig", {**_ENCODER, "vocab_size": 32000, "max_position_embeddings": PROMPT}),
    "ViT": ("ViTModel", "ViTConfig", _ENCODER),
}  # fmt: skip


def measure(cases: Sequence[str] = CASES, progress: Callable[..., None] = lambda *_: None) -> Measurement:
    """Every arm of the cases. Raises PolyfmaError without a GPU, MissingToolError without transformers."""
    need_gpu()
    check_cases(cases, CASES)
    measurement = Measurement("models", {case: PROTOCOL[case] for case in cases})
    if "mlp" in cases:
        progress(0, 1 + len(FAMILIES), "mlp")
        _measure_mlp(measurement)
    if "prefill" in cases:
        for done, family in enumerate(FAMILIES, 1):
            progress(done, 1 + len(FAMILIES), f"prefill {family}")
            _measure_prefill(measurement, family)
            torch.cuda.empty_cache()
    return measurement


# -- a training step of one MLP --------------------------------------------------------------------------


def _measure_mlp(measurement: Measurement) -> None:
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaMLP

    torch.manual_seed(0)
    mlp = LlamaMLP(LlamaConfig(hidden_size=HIDDEN, intermediate_size=INTERMEDIATE)).to("cuda", torch.bfloat16)
    x = torch.randn(1, TOKENS, HIDDEN, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    grad = torch.randn(1, TOKENS, HIDDEN, device="cuda", dtype=torch.bfloat16)
    arms = {name: partial(_step, module, x, grad) for name, module in _mlp_arms(mlp).items()}
    for name, rounds in eager_rounds(arms, MLP).items():
        measurement.timings.append(Timing("mlp", "silu", "forward+backward", "bf16", TOKENS * INTERMEDIATE, name, "eager", rounds))


def _mlp_arms(mlp: nn.Module) -> dict[str, Any]:
    arms: dict[str, Any] = {"torch": copy.deepcopy(mlp), "torch.compile": torch.compile(copy.deepcopy(mlp))}
    try:
        from liger_kernel.ops.swiglu import LigerSiLUMulFunction
    except ImportError:
        pass
    else:
        liger: Any = copy.deepcopy(mlp)
        liger.forward = lambda x: liger.down_proj(LigerSiLUMulFunction.apply(liger.gate_proj(x), liger.up_proj(x)))
        arms["liger"] = liger
    for name, config in (("patched", Config()), ("patched, operators' default", Config(program=None)), ("patched, exact", Config(program="exact"))):
        module = copy.deepcopy(mlp)
        patch(module, config)
        arms[f"{name}, compiled"] = torch.compile(module)
        if name == "patched":
            arms[name] = module
    return arms


def _step(module: nn.Module, x: Tensor, grad: Tensor) -> None:
    """Gradients of the input and of the module's weights; none is kept, so none is added to."""
    x.grad = None
    module.zero_grad(set_to_none=True)
    module(x).backward(grad)


# -- prefill -------------------------------------------------------------------------------------------


def _measure_prefill(measurement: Measurement, family: str) -> None:
    model = _build(family)
    if family == "Gemma 2":  # SDPA, which some versions take, leaves the softcap out
        model.set_attn_implementation("eager")
    encoder = family in ("BERT", "ViT")
    if family == "ViT":
        inputs = torch.randn(BATCH * 32, 3, 224, 224, device="cuda", dtype=torch.bfloat16)
    else:
        inputs = torch.randint(3, 32000, (BATCH * 4 if encoder else BATCH, PROMPT), device="cuda")
    options = {} if encoder else {"logits_to_keep": 1, "use_cache": False}
    with patch(copy.deepcopy(model)) as handle:
        arms: dict[str, Call] = {"native": partial(_prefill, model, inputs, options), "patched": partial(_prefill, handle.model, inputs, options)}
        measurement.facts[family] = {"attention": model.config._attn_implementation, "replaced": sorted({f"{r.kind}: {r.program}" for r in handle.report().replaced})}
        for name, rounds in eager_rounds(arms, PREFILL).items():
            measurement.timings.append(Timing(f"prefill {family}", "model", "forward", "bf16", inputs.numel(), name, "eager", rounds))


def _build(family: str) -> Any:
    try:
        import transformers
    except ImportError as error:
        raise MissingToolError("polyfma bench models needs transformers; pip install 'polyfma[models]'") from error
    model, config, sizes = FAMILIES[family]
    torch.manual_seed(0)
    with torch.device("cuda"):
        return getattr(transformers, model)(getattr(transformers, config)(**sizes)).to(torch.bfloat16).eval()


def _prefill(model: Any, inputs: Tensor, options: dict[str, Any]) -> None:
    with torch.no_grad():
        model(inputs, **options)
