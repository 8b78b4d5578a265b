"""The weights for an inference engine, and the private names of transformers and PEFT behind them."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from peft.tuners.tuners_utils import BaseTunerLayer
from peft.utils.other import ModulesToSaveWrapper
from transformers import DynamicCache, Qwen3ForCausalLM
from transformers.cache_utils import Cache, DynamicLayer
from transformers.core_model_loading import revert_weight_conversion

from gymnast.envs import ConfigurationError
from gymnast.trainer.models.internals import append_rows, drop_columns, is_plain, keep_rows
from gymnast.trainer.models.named_weights import named_weights
from gymnast.trainer.models.output_head import OutputHead
from gymnast.trainer.testing.tiny import make_tiny_model, make_tiny_tokenizer


def small(*, tied: bool = True) -> Qwen3ForCausalLM:
    torch.manual_seed(0)
    model = make_tiny_model(make_tiny_tokenizer(["a b c"]), hidden_size=32, num_layers=1)
    if not tied:
        model.config.tie_word_embeddings = False
        model = Qwen3ForCausalLM(model.config)
    return model.eval()


def lora(**options: Any) -> LoraConfig:
    return LoraConfig(**{"target_modules": ["q_proj", "down_proj"], "r": 4, "init_lora_weights": False, **options})


def attached(model: Qwen3ForCausalLM, config: LoraConfig) -> Any:
    """Attach the adapter by `model.add_adapter`: the model keeps its class and has no `merge_adapter`."""
    model.add_adapter(config)
    return model


CONFIGS = {
    "linear layers": lora(),
    "whole layers": lora(target_modules=["q_proj"], modules_to_save=["norm"]),
    "embeddings": lora(target_modules=["embed_tokens"]),
    "dora": lora(use_dora=True),
}


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("wrap", [get_peft_model, attached])
def test_an_engine_gets_the_merged_weights_and_the_model_is_not_changed(name: str, wrap: Any) -> None:
    plain = small(tied=False)
    names = set(named_weights(plain))
    adapted: Any = wrap(small(tied=False), CONFIGS[name]).eval()
    before = {key: (value.clone(), value._version) for key, value in adapted.state_dict().items()}
    weights = named_weights(adapted)
    assert set(weights) == names
    for key, value in adapted.state_dict().items():
        assert value.equal(before[key][0])
        assert value._version == before[key][1]
    inputs = {"input_ids": torch.arange(5, 25)[None] % plain.config.vocab_size}
    without = plain(**inputs).logits
    plain.load_state_dict(weights)
    assert plain(**inputs).logits.allclose(adapted(**inputs).logits, atol=1e-4)
    assert not without.allclose(adapted(**inputs).logits, atol=1e-2)
    plain.load_state_dict(named_weights(adapted, merge=False))
    assert plain(**inputs).logits.equal(without)


def test_merging_an_adapter_of_the_output_head_copies_no_other_layer() -> None:
    """The model may be running: its other layers are large, and hold tensors that cannot be copied."""

    def copied(memo: Any) -> None:
        raise AssertionError("another layer is copied")

    adapted: Any = get_peft_model(small(tied=False), lora(target_modules=["lm_head"]))
    OutputHead(adapted)
    adapted.get_input_embeddings().__deepcopy__ = copied
    assert "lm_head.weight" in named_weights(adapted)


def test_a_disabled_adapter_is_not_merged() -> None:
    adapted = attached(small(), lora())
    adapted.disable_adapters()
    assert all(value.equal(named_weights(small())[name]) for name, value in named_weights(adapted).items())


@pytest.mark.parametrize("trained", [{"target_modules": ["embed_tokens"]}, {"modules_to_save": ["lm_head"]}])
@pytest.mark.filterwarnings("ignore:.*tie_word_embeddings", "ignore:.*tied", "ignore:.*ensure_weight_tying")
def test_half_of_a_tie_cannot_be_trained(trained: dict[str, Any]) -> None:
    """This also holds for a new adapter, whose output is still 0."""
    options = {"target_modules": ["q_proj"], "r": 4} | trained
    adapted: Any = get_peft_model(small(), LoraConfig(**options))
    with pytest.raises(ConfigurationError, match=r"ties lm_head.weight to model.embed_tokens.weight, but only one"):
        named_weights(adapted)


@pytest.mark.filterwarnings("ignore:.*tie_word_embeddings")
def test_both_ends_of_a_tie_can_be_trained() -> None:
    config = lora(target_modules=["embed_tokens"], ensure_weight_tying=True)
    adapted: Any = get_peft_model(small(), config).eval()
    plain = small()
    plain.load_state_dict(named_weights(adapted), strict=False)
    inputs = {"input_ids": torch.arange(5, 25)[None] % plain.config.vocab_size}
    assert plain(**inputs).logits.allclose(adapted(**inputs).logits, atol=1e-4)


def test_private_names_of_transformers_and_peft() -> None:
    """`internals.py` uses these names. If this fails with a new release, change that file."""
    assert list(inspect.signature(Cache.reorder_cache).parameters) == ["self", "beam_idx"]
    assert list(inspect.signature(revert_weight_conversion).parameters) == ["model", "state_dict"]
    assert {"get_base_layer", "merge", "disable_adapters", "active_adapters"} <= set(dir(BaseTunerLayer))
    assert "active_adapters" in dir(ModulesToSaveWrapper)
    model = small()
    assert model.all_tied_weights_keys == {"lm_head.weight": "model.embed_tokens.weight"}
    cache = DynamicCache(config=model.config)
    assert not is_plain(cache)
    model(input_ids=torch.ones(2, 5, dtype=torch.long), past_key_values=cache)
    assert is_plain(cache)
    assert isinstance(cache.layers[0], DynamicLayer)
    layer: Any = cache.layers[0]
    assert layer.keys.shape[::2] == layer.values.shape[::2] == (2, 5)
    keep_rows(cache, torch.tensor([1]))
    drop_columns(cache, 2)
    assert layer.keys.shape[::2] == layer.values.shape[::2] == (1, 3)
    other = DynamicCache(config=model.config)
    model(input_ids=torch.ones(3, 4, dtype=torch.long), past_key_values=other)
    append_rows(cache, other)
    assert layer.keys.shape[::2] == layer.values.shape[::2] == (4, 4)
