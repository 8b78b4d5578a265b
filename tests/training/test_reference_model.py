"""The divergence from the reference model: in the loss, in the reward, and with adapters."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model

from gymnast.trainer import AgentTrainer, GRPOTrainer, RLOOTrainer

from .buttons import make_trainer, model
from .inspecting import BOTH, KeepsBatches, step_logs


@BOTH
def test_divergence_is_zero_at_first(trainer_class: type[AgentTrainer], tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, trainer_class, beta=0.1, max_steps=4)
    trainer.train()
    kl = [logs["kl"] for logs in step_logs(trainer)]
    assert kl[0] == pytest.approx(0, abs=1e-5)
    assert abs(kl[-1]) > 1e-4
    if trainer_class is GRPOTrainer:
        assert min(kl) >= 0  # the k3 estimator


def test_grpo_divergence_is_in_the_loss(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, KeepsBatches, beta=0.1)
    trainer.train()
    assert "ref_logprobs" in trainer.batches[0]  # type: ignore[attr-defined]


def test_rloo_divergence_is_in_the_reward(tmp_path: Path) -> None:
    """The task's reward is 0, so all advantage comes from the divergence once the weights differ from the reference."""

    nobody = [{"good": "neither"}]
    for beta, teaches in ((0.0, False), (1.0, True)):
        torch.manual_seed(0)
        trainer = make_trainer(tmp_path, RLOOTrainer, rows=nobody, beta=beta)
        with torch.no_grad():
            for parameter in trainer.model.parameters():  # type: ignore[union-attr]
                parameter += 0.05 * torch.randn_like(parameter)
        trainer.train()
        [logs] = step_logs(trainer)
        assert (logs["grad_norm"] > 0) is teaches
        assert logs["reward"] == 0  # the logged reward is the task's own


def attached(agent: Any, lora: LoraConfig) -> Any:
    agent.add_adapter(lora)
    return agent


@pytest.mark.parametrize("adapt", [get_peft_model, attached])
@BOTH
def test_the_reference_of_an_adapter_is_the_adapter_as_it_was_given(
    trainer_class: type[AgentTrainer], adapt: Any, tmp_path: Path
) -> None:
    """It has been trained before, so it is not the model without it; and only the adapter is copied."""
    torch.manual_seed(0)
    lora = LoraConfig(r=4, lora_alpha=1, target_modules="all-linear", task_type="CAUSAL_LM", init_lora_weights=False)
    adapted: Any = adapt(model(), lora)
    before = {name: value.clone() for name, value in adapted.state_dict().items()}
    trainer = make_trainer(tmp_path, trainer_class, agent=adapted, beta=0.1, max_steps=3, learning_rate=2e-2)
    trainer.train()
    kl = [logs["kl"] for logs in step_logs(trainer)]
    assert kl[0] == pytest.approx(0, abs=1e-6)
    assert abs(kl[-1]) > 1e-4
    assert step_logs(trainer)[-1]["tokens/drift"] == 0
    changed = [name for name, value in adapted.state_dict().items() if not torch.equal(value, before[name])]
    assert changed
    assert all("lora_" in name for name in changed)
