"""A model whose cache does not work is refused before it samples."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    Gemma3TextConfig,
    LlamaConfig,
    Mamba2Config,
    MambaConfig,
    Qwen3NextConfig,
    RecurrentGemmaConfig,
    RwkvConfig,
)

from gymnast.envs import ConfigurationError
from gymnast.trainer.generation.transformers_generator import TransformersGenerator

COMMON: dict[str, Any] = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "pad_token_id": 0}
HEADS: dict[str, Any] = {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16}
IGNORE_THEIR_CACHE: dict[str, Any] = {
    "mamba": MambaConfig(**COMMON, num_hidden_layers=1, state_size=8),
    "mamba2": Mamba2Config(**COMMON, num_hidden_layers=1, state_size=8, num_heads=4, head_dim=16, n_groups=1),
    "rwkv": RwkvConfig(**COMMON, num_hidden_layers=2, attention_hidden_size=32),
    "recurrent_gemma": RecurrentGemmaConfig(**COMMON, num_hidden_layers=3, num_attention_heads=2, lru_width=32),
}
USE_THEIR_CACHE: dict[str, Any] = {
    "llama": LlamaConfig(**COMMON, **HEADS, num_hidden_layers=1),
    "sliding windows": Gemma3TextConfig(**COMMON, **HEADS, num_hidden_layers=2, sliding_window=4),
    "recurrent states": Qwen3NextConfig(
        **COMMON,
        **HEADS,
        num_hidden_layers=4,
        linear_num_key_heads=2,
        linear_num_value_heads=2,
        linear_key_head_dim=8,
        linear_value_head_dim=8,
        num_experts=2,
        num_experts_per_tok=1,
        moe_intermediate_size=16,
        shared_expert_intermediate_size=16,
    ),
}


def load(config: Any, dtype: torch.dtype = torch.float32) -> None:
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config).to(dtype)
    TransformersGenerator(model).load_weights(model, version=0)
    assert model.training is False or any(module.training for module in model.modules())


@pytest.mark.parametrize("name", IGNORE_THEIR_CACHE)
def test_a_model_that_ignores_its_cache_is_refused(name: str) -> None:
    with pytest.raises(ConfigurationError, match=r"another distribution with a cache than without.*generator='vllm'"):
        load(IGNORE_THEIR_CACHE[name])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", USE_THEIR_CACHE)
def test_a_model_with_a_working_cache_is_accepted(name: str, dtype: torch.dtype) -> None:
    load(USE_THEIR_CACHE[name], dtype)


def test_frequencies_that_depend_on_the_length_are_refused() -> None:
    rope = {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 1e4, "original_max_position_embeddings": 8}
    with pytest.raises(ConfigurationError, match=r"'dynamic'.*set rope_type to 'yarn' or 'linear'"):
        load(LlamaConfig(**COMMON, **HEADS, num_hidden_layers=1, rope_parameters=rope))
