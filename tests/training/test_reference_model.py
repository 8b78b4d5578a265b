"""The divergence from the reference model: in the loss, in the reward, and with adapters."""

from __future__ import annotations

import copy
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import TrainerCallback
from trl.trainer.callbacks import SyncRefModelCallback

from gymnast.trainer import AgentTrainer, GRPOTrainer, RLOOTrainer
from gymnast.trainer.models.internals import merged_state

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


@pytest.mark.parametrize(
    ("trainer_class", "options"),
    [(GRPOTrainer, {}), (RLOOTrainer, {"kl_in": "loss", "loss_type": "dapo"})],
    ids=["grpo", "rloo"],
)
def test_divergence_in_the_loss(trainer_class: type[AgentTrainer], options: dict[str, Any], tmp_path: Path) -> None:
    """The task's reward is 0, and so is every advantage, but the loss still has the term of the divergence."""

    class Keeps(KeepsBatches, trainer_class):  # type: ignore[misc, valid-type]
        config_class = trainer_class.config_class

    trainer = make_trainer(tmp_path, Keeps, rows=[{"good": "neither"}], beta=0.1, **options)
    trainer.train()
    [batch] = trainer.batches  # type: ignore[attr-defined]
    assert "ref_logprobs" in batch
    assert not batch["advantages"].any()
    assert batch["mask"].any()


@pytest.mark.parametrize(
    ("trainer_class", "options"), [(RLOOTrainer, {}), (GRPOTrainer, {"kl_in": "reward"})], ids=["rloo", "grpo"]
)
def test_divergence_in_the_reward(trainer_class: type[AgentTrainer], options: dict[str, Any], tmp_path: Path) -> None:
    """The task's reward is 0, so only the divergence gives advantages, once the weights differ from the reference."""

    nobody = [{"good": "neither"}]
    for beta, teaches in ((0.0, False), (1.0, True)):
        torch.manual_seed(0)
        trainer = make_trainer(tmp_path, trainer_class, rows=nobody, beta=beta, **(options if beta else {}))
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
    """The adapter was trained before, so the base model is not the reference. Only the adapter is copied."""
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


class Observer:
    """Its lock cannot be copied."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.layers: set[Any] = set()

    def observe(self, layer: Any, args: Any, output: Any) -> None:
        with self.lock:
            self.layers.add(layer)


def test_the_owner_of_a_hook_sees_the_policy_and_the_reference(tmp_path: Path) -> None:
    observer = Observer()
    agent: Any = get_peft_model(model(), LoraConfig(target_modules="all-linear", task_type="CAUSAL_LM"))
    agent.get_base_model().model.layers[0].self_attn.q_proj.register_forward_hook(observer.observe)
    make_trainer(tmp_path, agent=agent, beta=0.1).train()
    assert len(observer.layers) == 2
    assert merged_state(agent.get_base_model())  # it copies layers, too


def with_ref_adapter(wrap: Any) -> Any:
    """A model with an adapter in training, and an adapter `ref` of another rank."""
    options: dict[str, Any] = {"target_modules": "all-linear", "task_type": "CAUSAL_LM", "init_lora_weights": False}
    adapted = wrap(model(), LoraConfig(r=4, lora_alpha=1, **options))
    ref = LoraConfig(r=2, lora_alpha=4, **options)
    if wrap is attached:
        adapted.add_adapter(ref, adapter_name="ref")
        adapted.set_adapter("default")
    else:
        adapted.add_adapter("ref", ref)
    return adapted


@pytest.mark.filterwarnings("ignore:Already found a `peft_config` attribute")
@pytest.mark.parametrize("wrap", [get_peft_model, attached])
def test_an_adapter_called_ref_is_the_reference(wrap: Any, tmp_path: Path) -> None:
    torch.manual_seed(0)
    adapted = with_ref_adapter(wrap)
    before = {name: value.clone() for name, value in adapted.state_dict().items()}
    trainer = make_trainer(tmp_path, KeepsBatches, agent=adapted, beta=0.1)
    trainer.train()
    [batch] = trainer.batches  # type: ignore[attr-defined]
    adapted.eval()
    adapted.set_adapter("ref")
    keep = batch["mask"].shape[1]
    with torch.no_grad():
        logits = adapted(**batch["inputs"]).logits
    ids = batch["inputs"]["input_ids"][:, -keep:, None]
    logprobs = logits[:, -keep - 1 : -1].log_softmax(-1).gather(2, ids)[..., 0]
    torch.testing.assert_close(batch["ref_logprobs"], logprobs * batch["mask"], rtol=1e-4, atol=1e-4)
    changed = [name for name, value in adapted.state_dict().items() if not torch.equal(value, before[name])]
    assert changed
    assert all(".default." in name for name in changed)


@pytest.mark.filterwarnings("ignore:Already found a `peft_config` attribute")
@pytest.mark.parametrize("wrap", [get_peft_model, attached])
def test_a_training_with_a_ref_adapter_is_resumed(wrap: Any, tmp_path: Path) -> None:
    options: dict[str, Any] = {"beta": 0.1, "learning_rate": 2e-2, "save_strategy": "steps", "save_steps": 1}

    def trained(folder: Path, steps: int, checkpoint: Path | None = None) -> dict[str, Any]:
        torch.manual_seed(0)
        trainer: Any = make_trainer(folder, agent=with_ref_adapter(wrap), max_steps=steps, **options)
        trainer.train(resume_from_checkpoint=checkpoint and str(checkpoint))
        return trainer.model.state_dict()

    whole = trained(tmp_path, 2)
    rest = trained(tmp_path / "rest", 2, tmp_path / "checkpoint-1")
    assert not [name for name, value in rest.items() if not torch.equal(value, whole[name])]


def test_the_ref_adapter_cannot_be_the_one_in_training_nor_follow_it(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="sync_ref_model=True would move the adapter 'ref'"):
        make_trainer(tmp_path, agent=with_ref_adapter(get_peft_model), beta=0.1, sync_ref_model=True)
    adapted = with_ref_adapter(get_peft_model)
    adapted.set_adapter("ref")
    with pytest.raises(ValueError, match=r"the adapter 'ref' is the reference: call set_adapter\(\)"):
        make_trainer(tmp_path, agent=adapted, beta=0.1)


@pytest.mark.parametrize("adapt", [None, get_peft_model])
def test_a_reference_that_follows_is_mixed_as_in_trl(adapt: Any, tmp_path: Path) -> None:
    torch.manual_seed(0)
    agent: Any = model()
    if adapt is not None:
        agent = adapt(agent, LoraConfig(r=2, target_modules="all-linear", task_type="CAUSAL_LM"))
    expected = copy.deepcopy(agent)
    after: list[Any] = []

    class Keeps(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            after.append(copy.deepcopy(kwargs["model"]))

    options: dict[str, Any] = {"sync_ref_model": True, "ref_model_mixup_alpha": 0.3, "ref_model_sync_steps": 2}
    trainer = make_trainer(tmp_path, agent=agent, beta=0.1, max_steps=5, callbacks=[Keeps()], **options)
    trainer.train()
    for policy in (after[1], after[3]):  # steps 2 and 4
        SyncRefModelCallback.sync_target_model(policy, expected, 0.3)
    assert trainer.reference is not None
    with trainer.reference.model() as (reference, _):
        for (name, got), wanted in zip(reference.named_parameters(), expected.parameters(), strict=True):
            torch.testing.assert_close(got, wanted, rtol=1e-6, atol=1e-7, msg=name)
