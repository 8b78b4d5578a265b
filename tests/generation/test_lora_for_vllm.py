"""Which adapters vLLM gets as adapters, and which are merged."""

from __future__ import annotations

from typing import Any

import pytest
from peft import IA3Config, LoraConfig, get_peft_model

from gymnast.trainer.vllm.lora import lora_options, lora_rank

from .test_named_weights import attached, lora, small


@pytest.mark.parametrize(
    ("config", "rank"),
    [
        (lora(), 4),
        (lora(r=12, use_rslora=True), 12),
        (lora(rank_pattern={"q_proj": 20}), 20),
        (lora(r=1024), None),
        (lora(use_dora=True), None),
        (lora(target_modules=["q_proj"], modules_to_save=["norm"]), None),
        (lora(target_modules=["embed_tokens"], ensure_weight_tying=True), None),
        (lora(target_modules=["lm_head"], ensure_weight_tying=True), None),
        (lora(init_lora_weights="olora"), None),
        (IA3Config(target_modules=["k_proj"], feedforward_modules=[]), None),
    ],
    ids=lambda item: "",
)
def test_plain_lora_on_linear_layers_is_sent(config: LoraConfig, rank: int | None) -> None:
    assert lora_rank(get_peft_model(small(), config)) == rank


def test_an_adapter_that_is_merged_or_attached_is_no_adapter_to_send() -> None:
    merged: Any = get_peft_model(small(), lora())
    merged.merge_adapter()
    assert lora_rank(merged) is lora_rank(attached(small(), lora())) is lora_rank(small()) is None


def test_the_engine_has_room_for_the_rank() -> None:
    assert [lora_options(rank)["max_lora_rank"] for rank in (1, 4, 8, 12, 500)] == [1, 8, 8, 16, 512]
