"""Log-probabilities of loss tokens are right, in float32, and cheap, with the head in the forward pass or apart."""

from __future__ import annotations

import gc
import warnings
import weakref
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from torch import Tensor, nn
from transformers import (
    AutoModelForCausalLM,
    CohereConfig,
    Gemma2Config,
    GPT2Config,
    GraniteConfig,
    HyperCLOVAXConfig,
    LlamaConfig,
    Qwen3ForCausalLM,
)

from gymnast.trainer.learning import logprobs
from gymnast.trainer.learning.logprobs import token_logprobs
from gymnast.trainer.models.output_head import OutputHead

from .rows import TEMPERATURE, VOCABULARY, Batch, gradients, make_batch, make_model, our_logprobs

SMALL: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 128,
    "initializer_range": 0.3,
    "pad_token_id": 0,
    "bos_token_id": None,
    "eos_token_id": 1,
}


class PlainModel(nn.Module):
    """A causal model whose forward knows neither `logits_to_keep` nor `use_cache`."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.inner = model

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> SimpleNamespace:
        return SimpleNamespace(logits=self.inner(input_ids=input_ids, attention_mask=attention_mask).logits)


def compiled(model: nn.Module) -> Any:
    return torch.compile(model, backend="eager")


def some_places(batch: Batch) -> Tensor:
    """About a third of the tokens, as if most tokens were tool results."""
    chosen = torch.rand(len(batch.rows) * batch.keep, generator=torch.Generator().manual_seed(1)) < 0.3
    return chosen.nonzero()[:, 0]


def expected_values(model: nn.Module, batch: Batch) -> tuple[Tensor, Tensor]:
    """Log-probabilities and entropies (B, keep) by their definition."""
    logits_BLV = model(**batch.inputs).logits / TEMPERATURE
    logprobs_BL = logits_BLV.log_softmax(dim=-1)[:, :-1].gather(2, batch.inputs["input_ids"][:, 1:, None])[..., 0]
    entropies_BT = torch.distributions.Categorical(logits=logits_BLV[:, -batch.keep - 1 : -1]).entropy()
    return logprobs_BL[:, -batch.keep :], entropies_BT


def assert_by_definition(model: nn.Module, wrapped: nn.Module, head: OutputHead | None) -> None:
    batch = make_batch()
    places_N = some_places(batch)
    mask_BT = torch.zeros(len(batch.rows) * batch.keep).index_fill(0, places_N, 1.0).view(len(batch.rows), batch.keep)
    expected_BT, expected_entropies_BT = expected_values(model, batch)
    weights_BT = torch.randn(mask_BT.shape, generator=torch.Generator().manual_seed(2)) * mask_BT
    expected_grads = gradients(model, (expected_BT * weights_BT).sum())

    logprobs_BT, entropies_BT = token_logprobs(
        wrapped, batch.inputs, places_N, keep=batch.keep, temperature=TEMPERATURE, head=head, entropy="value"
    )
    assert entropies_BT is not None
    assert not entropies_BT.requires_grad
    torch.testing.assert_close(logprobs_BT, expected_BT * mask_BT, atol=1e-5, rtol=0)
    torch.testing.assert_close(entropies_BT, expected_entropies_BT * mask_BT, atol=1e-5, rtol=0)
    found = gradients(model, (logprobs_BT * weights_BT).sum())
    assert found.keys() == expected_grads.keys()
    for name, grad in found.items():
        torch.testing.assert_close(grad, expected_grads[name], atol=1e-5, rtol=1e-5, msg=name)


@pytest.fixture(autouse=True)
def seven_tokens_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks of a size that does not divide the number of tokens."""
    monkeypatch.setattr(logprobs, "CHUNK_BYTES", 7 * 4 * VOCABULARY)


@pytest.mark.parametrize("wrap", [lambda model: model, PlainModel, nn.DataParallel])
def test_by_definition_with_the_head_in_the_forward_pass(wrap: Any) -> None:
    model = make_model()
    assert_by_definition(model, wrap(model), None)


@pytest.mark.parametrize("wrap", [lambda model: model, nn.DataParallel, compiled])
@pytest.mark.parametrize("is_tied", [True, False])
def test_by_definition_with_the_head_apart(wrap: Any, is_tied: bool) -> None:
    model = AutoModelForCausalLM.from_config(LlamaConfig(**SMALL, tie_word_embeddings=is_tied))
    head = OutputHead.of(model)
    assert head is not None
    assert_by_definition(model, wrap(model), head)


@pytest.mark.parametrize(
    "config",
    [
        Gemma2Config(**SMALL, final_logit_softcapping=2.0),
        CohereConfig(**{name: value for name, value in SMALL.items() if name != "head_dim"}, logit_scale=0.25),
        GraniteConfig(**{name: value for name, value in SMALL.items() if name != "head_dim"}, logits_scaling=4.0),
        GPT2Config(vocab_size=VOCABULARY, n_embd=32, n_layer=2, n_head=2, bos_token_id=1, eos_token_id=1),
    ],
    ids=lambda config: config.model_type,
)
def test_heads_that_cap_or_scale(config: Any) -> None:
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        head = OutputHead.of(model)
    assert_by_definition(model, model, head)


@pytest.mark.parametrize("target", ["q_proj", "lm_head"])
def test_an_adapter_is_in_the_head_too(target: str) -> None:
    peft = pytest.importorskip("peft")
    torch.manual_seed(0)
    model = peft.get_peft_model(make_model(), peft.LoraConfig(target_modules=[target], init_lora_weights=False))
    assert_by_definition(model, model, OutputHead.of(model))


def test_a_model_with_unknown_logits_is_computed_whole_with_a_warning() -> None:
    options = {name: value for name, value in SMALL.items() if name != "head_dim"}
    model = AutoModelForCausalLM.from_config(HyperCLOVAXConfig(**options, logits_scaling=0.3))
    with pytest.warns(UserWarning, match="HyperCLOVAXForCausalLM.*known scaling"):
        head = OutputHead.of(model)
    assert head is None
    with pytest.warns(UserWarning, match="get_output_embeddings"):
        assert OutputHead.of(PlainModel(make_model())) is None


def test_other_forward_passes_keep_all_their_logits() -> None:
    model, batch = make_model(), make_batch()
    head = OutputHead.of(model)
    our_logprobs(model, batch, head)
    logits_BLV = model(**batch.inputs).logits
    assert logits_BLV.shape == (*batch.inputs["input_ids"].shape, VOCABULARY)


def with_lora(model: Qwen3ForCausalLM) -> nn.Module:
    peft = pytest.importorskip("peft")
    return peft.get_peft_model(model, peft.LoraConfig(target_modules=["q_proj"]))


@pytest.mark.parametrize("wrap", [lambda model: model, nn.DataParallel, with_lora, compiled])
@pytest.mark.parametrize("apart", [True, False])
def test_the_model_computes_no_more_logits_than_needed(wrap: Any, apart: bool) -> None:
    model, batch = make_model(), make_batch()
    head = OutputHead.of(model) if apart else None
    shapes: list[tuple[int, ...]] = []
    model.lm_head.register_forward_hook(lambda _module, _args, logits: shapes.append(tuple(logits.shape)))
    places_N = torch.tensor([0, 6, 13])  # columns 0, 2 and 1 of 4
    token_logprobs(wrap(model), batch.inputs, places_N, keep=4, temperature=1.0, head=head)
    assert shapes == ([(5, 1, VOCABULARY), (3, VOCABULARY)] if apart else [(5, 5, VOCABULARY)])


def in_bfloat16(model: Qwen3ForCausalLM) -> Any:
    return model.bfloat16()  # type: ignore[call-arg]


def under_autocast(model: Qwen3ForCausalLM) -> Any:
    """A model in float32, prepared as `bf16=True` does it."""
    AcceleratorState._reset_state(reset_partial_state=True)
    try:
        return Accelerator(cpu=True, mixed_precision="bf16").prepare_model(model)
    finally:
        AcceleratorState._reset_state(reset_partial_state=True)


def compiled_under_autocast(model: Qwen3ForCausalLM) -> Any:
    return compiled(under_autocast(model))


def saved_for_backward(model: nn.Module, batch: Batch, head: OutputHead | None) -> tuple[Tensor, list[Tensor]]:
    kept: list[Tensor] = []

    def keep(tensor: Tensor) -> Tensor:
        kept.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        return our_logprobs(model, batch, head), kept


@pytest.mark.parametrize("wrap", [in_bfloat16, under_autocast, compiled_under_autocast])
def test_float32_without_float32_logits_kept_for_backward(wrap: Any) -> None:
    model, batch = wrap(make_model()), make_batch()
    logprobs_BT, kept = saved_for_backward(model, batch, None)
    assert logprobs_BT.dtype == torch.float32
    positions = {len(batch.rows) * (batch.keep + 1), batch.keep + 1, len(batch.rows) * batch.keep}
    logits = [
        tensor
        for tensor in kept
        if tensor.ndim >= 2 and tensor.shape[-1] == VOCABULARY and tensor.shape[-2] in positions
    ]
    assert {tensor.dtype for tensor in logits} <= {torch.bfloat16}


@pytest.mark.parametrize("wrap", [in_bfloat16, under_autocast, compiled_under_autocast])
def test_with_the_head_apart_no_logits_are_kept_and_its_precision_is_the_models(wrap: Any) -> None:
    model, batch = make_model(), make_batch()
    head = OutputHead.of(model)
    wrapped = wrap(model)
    dtypes: list[torch.dtype] = []
    model.lm_head.register_forward_hook(lambda _module, _args, logits: dtypes.append(logits.dtype))
    logprobs_BT, kept = saved_for_backward(wrapped, batch, head)
    assert logprobs_BT.dtype == torch.float32
    assert set(dtypes) == {torch.bfloat16}
    hidden_size = 32  # the only tensor with this size and the vocabulary's is the head's weight
    assert not [tensor for tensor in kept if tensor.shape[-1] == VOCABULARY and tensor.shape[-2] != hidden_size]
    torch.testing.assert_close(logprobs_BT, our_logprobs(wrapped, batch), atol=2e-2, rtol=2e-2)


def test_the_head_of_another_model_is_refused() -> None:
    head, ids = OutputHead(make_model()), torch.ones(1, 4, dtype=torch.long)
    with pytest.raises(ValueError, match="this Qwen3ForCausalLM did not run the output head of the policy"):
        head.hidden_states(make_model(1), {"input_ids": ids, "attention_mask": ids})


def test_the_head_keeps_no_hidden_states_between_batches() -> None:
    model, batch = make_model(), make_batch()
    seen: list[weakref.ref[Tensor]] = []
    model.lm_head.register_forward_pre_hook(lambda _layer, args: seen.append(weakref.ref(args[0])))
    our_logprobs(model, batch, OutputHead.of(model)).sum().backward()
    gc.collect()
    assert seen
    assert not [reference for reference in seen if reference() is not None]


@pytest.mark.parametrize(
    ("options", "message"), [({"keep": 0}, "keep"), ({"keep": 17}, "keep"), ({"temperature": 0.0}, "temperature")]
)
def test_values_out_of_range_are_refused(options: dict[str, Any], message: str) -> None:
    batch = make_batch()
    assert batch.inputs["input_ids"].shape[1] == 17
    options = {"keep": 2, "temperature": 1.0, **options}
    with pytest.raises(ValueError, match=message):
        token_logprobs(make_model(), batch.inputs, torch.tensor([0]), **options)
