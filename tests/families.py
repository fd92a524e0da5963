"""Small random models of the families that are tested, in BF16, and their outputs. {name: (make, what is replaced)}."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import transformers as t
from torch import Tensor, nn

SIZES = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
         "head_dim": 16, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}  # fmt: skip
MOE = SIZES | {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
LATENT = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 4,
          "n_routed_experts": 8, "num_experts_per_tok": 2, "n_group": 2, "topk_group": 1, "moe_intermediate_size": 32, "q_lora_rank": 16,
          "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 16, "bos_token_id": 1, "eos_token_id": 2}  # fmt: skip
FAMILIES: dict[str, tuple[Callable[[], nn.Module], dict[str, int]]] = {
    "llama": (lambda: t.LlamaForCausalLM(t.LlamaConfig(**SIZES)), {"gated MLP": 2}),
    "mistral": (lambda: t.MistralForCausalLM(t.MistralConfig(**SIZES)), {"gated MLP": 2}),
    "qwen2": (lambda: t.Qwen2ForCausalLM(t.Qwen2Config(**SIZES)), {"gated MLP": 2}),
    "qwen3": (lambda: t.Qwen3ForCausalLM(t.Qwen3Config(**SIZES)), {"gated MLP": 2}),
    "qwen3-moe": (lambda: t.Qwen3MoeForCausalLM(t.Qwen3MoeConfig(**MOE)), {"experts": 2}),
    "mixtral": (lambda: t.MixtralForCausalLM(t.MixtralConfig(**SIZES, num_local_experts=4)), {"experts": 2}),
    "gemma2": (lambda: t.Gemma2ForCausalLM(t.Gemma2Config(**SIZES, sliding_window=4)), {"gated MLP": 2, "softcapped attention": 2}),
    "gemma3": (lambda: t.Gemma3ForCausalLM(t.Gemma3TextConfig(**SIZES, sliding_window=4)), {"gated MLP": 2}),
    "gpt-oss": (lambda: t.GptOssForCausalLM(t.GptOssConfig(**SIZES, num_local_experts=4, num_experts_per_tok=2)), {"experts": 2}),
    "deepseek-v3": (lambda: t.DeepseekV3ForCausalLM(t.DeepseekV3Config(**LATENT)), {"gated MLP": 4, "experts": 1}),
    "gpt2": (lambda: t.GPT2LMHeadModel(t.GPT2Config(vocab_size=64, n_embd=32, n_layer=2, n_head=4, bos_token_id=1, eos_token_id=2)), {"activation": 2}),
    "bert": (lambda: t.BertModel(t.BertConfig(vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4)),
             {"activation": 3}),
    "vit": (lambda: t.ViTModel(t.ViTConfig(hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, image_size=16, patch_size=4)),
            {"activation": 3}),
    "phi3": (lambda: t.Phi3ForCausalLM(t.Phi3Config(**{k: v for k, v in SIZES.items() if k != "head_dim"})), {"gated MLP": 2}),
}  # fmt: skip
CAUSAL = [name for name in FAMILIES if name not in ("bert", "vit")]


def build(name: str, dtype: torch.dtype = torch.bfloat16, **config: Any) -> nn.Module:
    """A fresh random model, its router and sinks too."""
    model = FAMILIES[name][0]().to(dtype).eval()
    for parameter in model.parameters():
        if parameter.ndim > 1:
            nn.init.normal_(parameter, std=0.2)
    for key, value in config.items():
        setattr(model.config, key, value)
    return model


def inputs(name: str, tokens: int = 9) -> Tensor:
    """Random tokens, or pixels for a vision model."""
    return torch.randn(2, 3, 16, 16, dtype=torch.bfloat16) if name == "vit" else torch.randint(3, 64, (2, tokens))


def output(model: nn.Module, x: Tensor, **options: Any) -> Tensor:
    with torch.no_grad():
        out = model(x, **options)
    return out.logits if hasattr(out, "logits") else out.last_hidden_state
