"""Models: by name or loaded, in float32 or bfloat16, with an adapter, with dropout."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM

from gymnast.trainer import GRPOTrainer

from .buttons import ROWS, Buttons, config, make_trainer, model, tokenizer
from .inspecting import step_logs


def test_old_logprobs_are_those_of_the_sampler_under_dropout(tmp_path: Path) -> None:
    dropping: Any = model()
    dropping.config.attention_dropout = 0.5
    for layer in dropping.model.layers:
        layer.self_attn.attention_dropout = 0.5
    with pytest.warns(UserWarning, match=r"dropout \(Qwen3Attention.attention_dropout=0.5\)"):
        trainer = make_trainer(tmp_path, agent=dropping, num_iterations=2, max_steps=2)
    trainer.train()
    first, _ = step_logs(trainer)
    assert first["sampling/sampling_logp_difference/max"] < 1e-4
    assert first["clip_ratio/region_mean"] > 0  # the training pass itself did drop


def test_a_model_by_name_is_loaded_in_float32(tmp_path: Path) -> None:
    saved = tmp_path / "model"
    model().to(torch.bfloat16).save_pretrained(saved)  # type: ignore[call-arg]
    tokenizer().save_pretrained(saved)
    trainer = GRPOTrainer(model=str(saved), environment=Buttons(), args=config(tmp_path), train_dataset=ROWS)
    assert next(trainer.model.parameters()).dtype == torch.float32  # type: ignore[union-attr]
    trainer.train()
    assert step_logs(trainer)[0]["stop/final_answer"] > 0.5
    with pytest.raises(ValueError, match=r"16 bits.*load the model with dtype=torch.float32, and set bf16=True"):
        make_trainer(tmp_path, agent=model().to(torch.bfloat16))  # type: ignore[call-arg]
    with pytest.raises(ValueError, match="16 bits"):
        GRPOTrainer(str(saved), Buttons(), config(tmp_path, model_init_kwargs={"dtype": "bfloat16"}), ROWS)


def test_a_frozen_model_in_bfloat16_may_carry_an_adapter(tmp_path: Path) -> None:
    adapted: Any = get_peft_model(model().to(torch.bfloat16), LoraConfig(r=4, target_modules=["q_proj"]))  # type: ignore[call-arg]
    trainer = make_trainer(tmp_path, agent=adapted)
    trainer.train()
    assert step_logs(trainer)[0]["tokens/drift"] == 0


def test_an_adapter_by_name_is_frozen_and_refused(tmp_path: Path) -> None:
    saved = str(tmp_path / "adapter")
    model().save_pretrained(saved)
    base = AutoModelForCausalLM.from_pretrained(saved)
    get_peft_model(base, LoraConfig(r=4, target_modules=["q_proj"])).save_pretrained(saved)
    tokenizer().save_pretrained(saved)
    with pytest.raises(ValueError, match=r"no weight of the model can be trained.*is_trainable=True"):
        GRPOTrainer(model=saved, environment=Buttons(), args=config(tmp_path), train_dataset=ROWS)


def test_dropout_is_warned_of(tmp_path: Path) -> None:
    lora = LoraConfig(r=4, target_modules=["q_proj"], lora_dropout=0.25)
    with pytest.warns(UserWarning, match=r"has dropout \(Dropout.p=0.25\)"):
        make_trainer(tmp_path, agent=get_peft_model(model(), lora))
