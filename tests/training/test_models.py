"""Models: by name or loaded, in float32 or bfloat16, with an adapter, with dropout."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM

from gymnast.trainer import GRPOTrainer
from gymnast.trainer.setup.loading import load_model

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


def lora(**options: Any) -> LoraConfig:
    return LoraConfig(**{"r": 4, "target_modules": ["q_proj"], **options})


@pytest.mark.parametrize("checkpointing", [False, True])
def test_peft_config_trains_an_adapter_only(checkpointing: bool, tmp_path: Path) -> None:
    options: dict[str, Any] = {"gradient_checkpointing": checkpointing, "save_strategy": "steps", "save_steps": 1}
    args = config(tmp_path, beta=0.1, max_steps=2, **options)
    trainer = GRPOTrainer(
        model(), Buttons(), args, ROWS, processing_class=tokenizer(), peft_config=lora(target_modules="all-linear")
    )
    agent: Any = trainer.model
    before = {name: value.clone() for name, value in agent.state_dict().items()}
    trainer.train()
    changed = {name for name, value in agent.state_dict().items() if not torch.equal(value, before[name])}
    assert changed == {name for name in before if "lora_" in name}
    first, last = step_logs(trainer)
    assert first["kl"] == pytest.approx(0, abs=1e-6)  # the reference is the model without the adapter
    assert last["kl"] > 0
    assert (tmp_path / "checkpoint-2" / "adapter_model.safetensors").is_file()
    assert not (tmp_path / "checkpoint-2" / "model.safetensors").exists()


def test_an_adapter_on_a_model_by_name(tmp_path: Path) -> None:
    model().save_pretrained(tmp_path / "model")
    tokenizer().save_pretrained(tmp_path / "model")
    name = str(tmp_path / "model")
    trainer = GRPOTrainer(name, Buttons(), config(tmp_path), ROWS, peft_config=lora())
    trainer.train()
    assert step_logs(trainer)[0]["grad_norm"] > 0


def quantised() -> Any:
    agent: Any = model()
    agent.is_quantized = True  # the mark of transformers; quantising itself needs a GPU
    return agent


def test_an_adapter_with_the_learning_rate_of_a_whole_model_warns(tmp_path: Path) -> None:
    args = config(tmp_path, learning_rate=1e-6)
    with pytest.warns(UserWarning, match=r"learning_rate=1e-06, the default, .* such as learning_rate=1e-05") as caught:
        GRPOTrainer(model(), Buttons(), args, ROWS, processing_class=tokenizer(), peft_config=lora())
    assert len(caught) == 1
    adapted: Any = get_peft_model(model(), lora())
    own = torch.optim.SGD([parameter for parameter in adapted.parameters() if parameter.requires_grad], lr=0.1)
    GRPOTrainer(adapted, Buttons(), args, ROWS, processing_class=tokenizer(), optimizers=(own, None))  # does not warn


@pytest.mark.parametrize(
    ("agent", "peft_config", "error", "message"),
    [
        (model, "lora", TypeError, "peft_config must be .*got 'lora'"),
        (lambda: get_peft_model(model(), lora()), lora(), ValueError, "has an adapter, and peft_config would add"),
        (quantised, None, ValueError, r"quantised weights cannot be trained: give peft_config=peft.LoraConfig"),
    ],
    ids=["wrong kind", "second adapter", "quantised without an adapter"],
)
def test_adapters_that_cannot_be(
    agent: Any, peft_config: Any, error: type[Exception], message: str, tmp_path: Path
) -> None:
    with pytest.raises(error, match=message):
        GRPOTrainer(agent(), Buttons(), config(tmp_path), ROWS, processing_class=tokenizer(), peft_config=peft_config)


def test_a_quantised_model_is_prepared_for_its_adapter() -> None:
    """Then its layers that are not quantised, such as norms, are in float32."""
    agent: Any = load_model(quantised().to(torch.bfloat16), peft_config=lora())
    assert {parameter.dtype for parameter in agent.parameters()} == {torch.float32}
    assert all("lora_" in name for name, parameter in agent.named_parameters() if parameter.requires_grad)
