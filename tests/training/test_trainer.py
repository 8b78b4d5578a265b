"""Training through the public trainers: learning, logs, and the effect of each option."""

from __future__ import annotations

import asyncio
import json
import math
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset
from peft import LoraConfig, get_peft_model
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, HfArgumentParser, TrainerCallback

from gymnast.envs import (
    Calculator,
    Episode,
    EpisodeSpec,
    StopReason,
    Task,
    ToolCallRecord,
    ToolEnv,
    Turn,
    matches,
    tool,
)
from gymnast.envs.calculator import random_tasks
from gymnast.trainer import LOSSES, AgentTrainer, GRPOConfig, GRPOTrainer, RLOOConfig, RLOOTrainer, read_episodes
from gymnast.trainer.records.metrics import episode_metrics
from gymnast.trainer.tiny import make_tiny_model, make_tiny_tokenizer

from .buttons import ROWS, Buttons, Gradients, ScriptedGenerator, call_ids, config, ids, make_trainer, model, tokenizer

BOTH = pytest.mark.parametrize("trainer_class", [GRPOTrainer, RLOOTrainer], ids=["grpo", "rloo"])
TRL_METRICS = {
    "reward",
    "reward_std",
    "completions/mean_length",
    "completions/clipped_ratio",
    "tools/call_frequency",
    "tools/failure_frequency",
    "entropy",
    "clip_ratio/region_mean",
    "clip_ratio/low_mean",
    "clip_ratio/high_mean",
    "rewards/environment/mean",
}
OWN_METRICS = {
    *(f"stop/{reason.value}" for reason in StopReason),
    *(f"tools/left/{what}" for what in ("calls", "failures", "seconds")),
    "episodes/failed",
    "groups/dropped",
    "turns/mean",
    "tokens/drift",
    "time/generation",
    "time/environment",
    "time/update",
}


def step_logs(trainer: AgentTrainer) -> list[dict[str, float]]:
    return [logs for logs in trainer.state.log_history if "loss" in logs]


def weights(trained: nn.Module) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in trained.named_parameters()}


def assert_same(first: dict[str, Tensor], second: dict[str, Tensor]) -> None:
    assert first.keys() == second.keys()
    different = [name for name in first if not torch.equal(first[name], second[name])]
    assert not different


def differ(first: dict[str, Tensor], second: dict[str, Tensor]) -> bool:
    return any(not torch.equal(first[name], second[name]) for name in first)


class KeepsBatches(GRPOTrainer):
    """Keeps the batches that the loss was computed from."""

    def compute_loss(self, model: nn.Module, inputs: dict[str, Tensor], *args: Any, **kwargs: Any) -> Any:
        self.batches = [*getattr(self, "batches", []), inputs]
        return super().compute_loss(model, inputs, *args, **kwargs)


# The slice, end to end.


@BOTH
def test_the_calculator_trains_with_tools_and_logs_everything(
    trainer_class: type[AgentTrainer], tmp_path: Path
) -> None:
    tasks = random_tasks(4, seed=0)
    schemas = Calculator().tool_schemas()
    answer = '<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": 2}}\n</tool_call>'
    plain = make_tiny_tokenizer([answer] * 4 + [json.dumps(schemas)])

    def calls(request: Any) -> list[int]:
        """Adds, and then answers right in every second episode."""
        text = answer
        if "tool_response" in plain.decode(request.prompt_ids[-30:]):
            result = tasks[0]["answer"] if request.seed % 2 else -1
            text = f'<tool_call>\n{{"name": "final_answer", "arguments": {{"answer": {result}}}}}\n</tool_call>'
        return plain.encode(text + "<|im_end|>", add_special_tokens=False)

    trainer = trainer_class(
        model=make_tiny_model(plain, hidden_size=32, num_layers=1),
        environment=Calculator(),
        args=config(tmp_path, trainer_class, max_completion_length=200),
        train_dataset=tasks[:1],
        processing_class=plain,
        generator=ScriptedGenerator(calls),
    )
    before = weights(trainer.model)  # type: ignore[arg-type]
    trainer.train()
    [logs] = step_logs(trainer)
    assert logs["tools/add/calls"] == 1
    assert logs["tools/call_frequency"] == 2
    assert logs["stop/final_answer"] == 1
    assert 0 < logs["reward"] < 1
    assert logs["reward_std"] > 0
    assert logs["environment/success"] == logs["reward"]
    assert logs["tokens/drift"] == 0
    assert differ(before, weights(trainer.model))  # type: ignore[arg-type]


@BOTH
def test_metrics_have_their_names(trainer_class: type[AgentTrainer], tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, trainer_class, max_steps=2, beta=0.1)
    trainer.train()
    for logs in step_logs(trainer):
        assert TRL_METRICS | OWN_METRICS | {"kl"} <= logs.keys()
        assert all(math.isfinite(value) for value in logs.values())
        assert logs["tokens/drift"] == 0
        assert logs["episodes/played"] == 8
        assert sum(logs[f"stop/{reason.value}"] for reason in StopReason) == pytest.approx(1)
        # Tool results are no tokens of the model: it needs 5 of its own for a call.
        assert logs["completions/mean_length"] == pytest.approx(5 * logs["turns/mean"], rel=0.1)
        assert logs["tokens/sampled"] == pytest.approx(8 * logs["completions/mean_length"])
        assert logs["sampling/sampling_logp_difference/max"] < 1e-4


@BOTH
def test_it_learns(trainer_class: type[AgentTrainer], tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, trainer_class, max_steps=15, per_device_train_batch_size=16, learning_rate=4e-3)
    before = trainer.evaluate(ROWS * 4)["eval_reward"]
    trainer.train()
    after = trainer.evaluate(ROWS * 4)["eval_reward"]
    assert before < 0.7
    assert after > 0.95


@pytest.mark.parametrize("loss_type", [name for name in LOSSES if name != "reinforce"])
def test_each_loss_runs(loss_type: str, tmp_path: Path) -> None:
    scale = "none" if loss_type == "dr_grpo" else "group"  # any other scale is half of its paper, and warned of
    trainer = make_trainer(tmp_path, loss_type=loss_type, scale_rewards=scale, num_iterations=2, max_steps=2)
    before = weights(trainer.model)  # type: ignore[arg-type]
    trainer.train()
    first, second = step_logs(trainer)
    assert differ(before, weights(trainer.model))  # type: ignore[arg-type]
    assert first["grad_norm"] > 0
    # The round is used twice: the second time the policy has moved, so that its ratios are no longer 1.
    assert "reward" in first
    assert "reward" not in second
    assert second["sampling/sampling_logp_difference/max"] < 1e-4  # old against sampled


def test_reinforce_runs_where_each_round_is_used_once(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, loss_type="reinforce", max_steps=1)
    before = weights(trainer.model)  # type: ignore[arg-type]
    trainer.train()
    assert differ(before, weights(trainer.model))  # type: ignore[arg-type]


def test_a_correction_acts_on_what_the_generator_reports(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, correction="icepop", correction_max=1.0 + 1e-9, max_steps=1)
    trainer.train()
    [logs] = step_logs(trainer)
    assert 0 < logs["mismatch/cut"] < 1  # rounding alone puts about half of the ratios above 1
    assert logs["mismatch/ess"] == pytest.approx(1, abs=1e-5)


# The gradient.


def test_only_sampled_tokens_have_loss(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, KeepsBatches, agent=model(), loss_type="dapo")
    trainer.train()
    [batch] = trainer.batches  # type: ignore[attr-defined]
    fresh = model()
    keep = batch["mask"].shape[1]
    logits = fresh(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits[:, -keep - 1 : -1]
    labels = batch["input_ids"][:, -keep:]
    logprobs = logits.log_softmax(-1).gather(2, labels[..., None])[..., 0]
    # On-policy, the gradient of the objective is that of -advantage * log-probability, over sampled tokens alone.
    loss = -(batch["advantages"][:, None] * logprobs * batch["mask"]).sum() / step_logs(trainer)[0]["tokens/sampled"]
    loss.backward()
    expected = torch.cat([each.grad.flatten() for each in fresh.parameters() if each.grad is not None]).norm()
    assert step_logs(trainer)[0]["grad_norm"] == pytest.approx(expected.item(), rel=1e-4)
    # The rows hold tool results too, inside the completion, and these have mask 0.
    text = "".join(str(tokenizer().decode(row)) for row in batch["input_ids"])
    assert "<tool_response>" in text
    for row, mask in zip(batch["input_ids"][:, -keep:], batch["mask"].bool(), strict=True):
        sampled = tokenizer().decode(row[mask])
        assert "lit" not in sampled
        assert sampled.count("<|im_end|>") == sampled.count("</tool_call>") > 0


def test_steps_per_generation_cuts_a_round(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, per_device_train_batch_size=4, steps_per_generation=2, max_steps=2)
    trainer.train()
    first, second = step_logs(trainer)
    assert first["episodes/played"] == 8
    assert "episodes/played" not in second


def test_truncated_episodes_can_be_masked(tmp_path: Path) -> None:
    """Those that look in their only turn are cut; their reward differs, so their advantage is not 0."""
    generator = ScriptedGenerator(lambda request: call_ids("look" if request.seed % 2 else "left"))

    def looked(episodes: list[Episode], **columns: Any) -> list[float]:
        return [3.0 * (each.tool_calls[0].name == "look") for each in episodes]

    runs = {}
    for masked in (False, True):
        options: dict[str, Any] = {"mask_truncated_completions": masked, "max_turns": 1}
        trainer = make_trainer(tmp_path, KeepsBatches, generator=generator, reward_funcs=looked, **options)
        trainer.train()
        [runs[masked]] = trainer.batches  # type: ignore[attr-defined]
        assert 0 < step_logs(trainer)[0]["completions/clipped_ratio"] < 1
        assert 0 < step_logs(trainer)[0]["stop/max_turns"] < 1
    assert runs[False]["advantages"].any()
    assert 0 < len(runs[True]["mask"]) < 8
    assert not runs[True]["advantages"].any()  # the episodes that are left have equal rewards


def test_a_round_of_truncated_episodes_teaches_nothing(tmp_path: Path) -> None:
    kept = Gradients()
    trainer = make_trainer(
        tmp_path,
        generator=ScriptedGenerator(lambda request: call_ids("look")),
        reward_funcs=lambda episodes, **columns: [float(index) for index in range(len(episodes))],
        mask_truncated_completions=True,
        callbacks=[kept],
    )
    trainer.train()
    assert step_logs(trainer)[0]["rounds/skipped"] == 1
    assert all(not gradient.any() for gradient in kept.steps[0].values())


ADVANTAGES = {
    "group": lambda r: (r - r.mean(1, keepdim=True)) / (r.std(1, keepdim=True) + 1e-4),
    "batch": lambda r: (r - r.mean(1, keepdim=True)) / (r.std() + 1e-4),
    "none": lambda r: r - r.mean(1, keepdim=True),
}


@pytest.mark.parametrize("scale", [*ADVANTAGES, "whiten"])
def test_advantages_are_scaled(scale: str, tmp_path: Path) -> None:
    rewards: dict[str, list[float]] = {}

    def numbered(episodes: list[Episode], **columns: Any) -> list[float]:
        rewards[episodes[0].spec.group] = [float(each.spec.seed % 13) for each in episodes]
        return rewards[episodes[0].spec.group]

    options: dict[str, Any] = {"scale_rewards": scale}
    if scale == "whiten":
        options = {"scale_rewards": "none", "normalize_advantages": True}
    nobody = [{"good": "neither"}]  # the environment's own reward is 0
    trainer = make_trainer(tmp_path, KeepsBatches, rows=nobody, reward_funcs=numbered, **options)
    trainer.train()
    [batch] = trainer.batches  # type: ignore[attr-defined]
    expected = ADVANTAGES["none" if scale == "whiten" else scale](torch.tensor([*rewards.values()]))
    if scale == "whiten":
        expected = (expected - expected.mean()) / (expected.std() + 1e-4)
    assert expected.std() > 0
    torch.testing.assert_close(batch["advantages"].sort().values, expected.flatten().sort().values)


def test_rloo_compares_with_the_others(tmp_path: Path) -> None:
    class Keeps(RLOOTrainer):
        def compute_loss(self, model: nn.Module, inputs: dict[str, Tensor], *args: Any, **kwargs: Any) -> Any:
            self.advantages = inputs["advantages"]
            return super().compute_loss(model, inputs, *args, **kwargs)

    trainer = Keeps(
        model=model(),
        environment=Buttons(),
        args=config(tmp_path, RLOOTrainer, per_device_train_batch_size=4),
        train_dataset=[{"good": "neither"}],
        processing_class=tokenizer(),
        reward_funcs=lambda completions, **columns: [1.0, 0.5, 0.0, 3.0],
    )
    trainer.train()
    assert trainer.advantages.sort().values.tolist() == pytest.approx([-3 / 2, -5 / 6, -1 / 6, 5 / 2], abs=1e-6)


# The reference model.


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


# Rewards.


def test_reward_functions_have_weights_and_names(tmp_path: Path) -> None:
    seen: dict[str, Any] = {}

    def short(completions: list[Any], good: list[str], **columns: Any) -> list[float]:
        seen.update(good=good, columns=sorted(columns))
        return [float(all(message.get("name") != "look" for message in each)) for each in completions]

    async def sometimes(completions: list[Any], **columns: Any) -> list[float | None]:
        return [1.0, *[None] * (len(completions) - 1)]

    looks = matches("completion[?name=='look'] | length(@) > `0`", name="looks")
    nobody = [{"good": "neither", "id": 7}]
    trainer = make_trainer(
        tmp_path, rows=nobody, reward_funcs=[short, sometimes, looks], reward_weights=[2.0, 4.0, 0.5]
    )
    trainer.train()
    [logs] = step_logs(trainer)
    assert seen["good"] == ["neither"] * 4  # one group
    assert {"id", "prompts", "completion_ids"} <= set(seen["columns"])
    assert logs["rewards/sometimes/mean"] == 1
    assert logs["rewards/short/mean"] + logs["rewards/looks/mean"] == pytest.approx(1)
    total = 2 * logs["rewards/short/mean"] + 4 * 2 / 8 + 0.5 * logs["rewards/looks/mean"]
    assert logs["reward"] == pytest.approx(total)


@pytest.mark.parametrize("fault", ["raises", "hangs"])
def test_a_reward_function_that_fails_costs_its_group_only(fault: str, tmp_path: Path) -> None:
    calls = 0

    async def first_group(completions: list[Any]) -> list[float]:
        nonlocal calls
        calls += 1
        if calls == 1:
            await asyncio.Event().wait() if fault == "hangs" else 1 / 0
        return [float(index) for index, _ in enumerate(completions)]

    trainer = make_trainer(tmp_path, reward_funcs=first_group, reward_timeout=0.1)
    trainer.train()
    [logs] = step_logs(trainer)
    assert (logs["episodes/played"], logs["episodes/failed"], logs["groups/dropped"]) == (8, 4, 1)
    assert logs["rewards/first_group/mean"] == 1.5


# Reproducibility.


@BOTH
def test_a_seed_decides_everything(trainer_class: type[AgentTrainer], tmp_path: Path) -> None:
    runs = []
    for seed in (1, 1, 2):
        trainer = make_trainer(tmp_path, trainer_class, seed=seed, max_steps=3)
        torch.rand(seed)  # earlier random numbers of the program do not matter
        trainer.train()
        rewards = [logs["tokens/sampled"] for logs in step_logs(trainer)]
        runs.append((weights(trainer.model), rewards))  # type: ignore[arg-type]
    assert_same(runs[0][0], runs[1][0])
    assert runs[0][1] == runs[1][1]
    assert differ(runs[0][0], runs[2][0])


# Evaluation.


@BOTH
def test_evaluation_may_be_larger_than_a_training_batch(trainer_class: type[AgentTrainer], tmp_path: Path) -> None:
    trainer = make_trainer(
        tmp_path, trainer_class, eval_rows=ROWS * 10, num_generations_eval=1, eval_strategy="steps", eval_steps=1
    )
    trainer.train()
    [logs] = [logs for logs in trainer.state.log_history if "eval_reward" in logs]
    assert logs["eval_episodes/played"] == 40
    assert logs["eval_stop/final_answer"] > 0.7
    assert "eval_runtime" in logs
    assert logs["step"] == 1
    greedy = [trainer.evaluate(temperature=0)["eval_reward"] for _ in range(2)]
    assert greedy[0] in (0.0, 1.0)  # one answer for all, since the prompts are equal
    assert greedy[0] == greedy[1]
    trainer.config.eval_temperature = 0
    assert trainer.evaluate()["eval_reward"] == greedy[0]


def test_evaluation_does_not_depend_on_what_else_is_played(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, eval_rows=ROWS, num_generations_eval=3)
    first, again = trainer.evaluate(), trainer.evaluate()
    names = [name for name in first if not name.startswith(("eval_time", "eval_runtime", "eval_tools"))]
    assert {name: first[name] for name in names} == {name: again[name] for name in names}
    with pytest.raises(TypeError, match="rows must be a sequence of rows, such as a list of dicts, got dict"):
        trainer.rollout(ROWS[0])  # type: ignore[arg-type]
    alone = trainer.rollout(ROWS[:1], num_generations=3)
    together = trainer.rollout(ROWS, num_generations=3)
    tokens = [episode.trace.completion_ids for episode in together if episode.trace is not None]
    assert [each.trace.completion_ids for each in alone if each.trace is not None] == tokens[:3]


def test_several_evaluation_sets(tmp_path: Path) -> None:
    sets = {"left": [{"good": "left"}], "none": [{"good": "neither"}] * 3}
    trainer = make_trainer(tmp_path, eval_rows=sets)
    metrics = trainer.evaluate()
    assert metrics["eval_none_reward"] == 0
    assert metrics["eval_none_episodes/played"] == 12
    assert metrics["eval_left_episodes/played"] == 4
    assert trainer.evaluate("left")["eval_episodes/played"] == 4


def test_the_best_model_comes_back(tmp_path: Path) -> None:
    """The learning rate is so large that the policy breaks after the first evaluation or so."""
    trainer = make_trainer(
        tmp_path,
        eval_rows=ROWS,
        max_steps=3,
        eval_strategy="steps",
        eval_steps=1,
        save_strategy="steps",
        save_steps=1,
        load_best_model_at_end=True,
        metric_for_best_model="eval_reward",
    )
    trainer.train()
    rewards = [logs["eval_reward"] for logs in trainer.state.log_history if "eval_reward" in logs]
    best = rewards.index(max(rewards)) + 1
    assert trainer.state.best_metric == max(rewards)
    assert trainer.state.best_model_checkpoint == str(tmp_path / f"checkpoint-{best}")
    assert trainer.evaluate()["eval_reward"] == max(rewards)


def test_the_best_model_is_that_of_the_reward_by_default(tmp_path: Path) -> None:
    args = config(
        tmp_path, load_best_model_at_end=True, eval_strategy="steps", save_strategy="steps", eval_steps=1, save_steps=1
    )
    assert (args.metric_for_best_model, args.greater_is_better) == ("reward", True)


# Data and environments.


def test_a_datasets_dataset(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, rows=Dataset.from_list(ROWS), eval_rows=Dataset.from_list(ROWS))
    trainer.train()
    assert step_logs(trainer)[0]["episodes/played"] == 8
    assert trainer.evaluate()["eval_episodes/played"] == 16


class Levers(ToolEnv):
    """Another environment."""

    @tool(final=True)
    def pull(self) -> str:
        """Pull the lever."""
        self.reward = 5.0
        return "done"


def test_the_row_chooses_the_environment(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [
        {"environment": "buttons", "good": "left"},
        {"environment": "levers", "prompt": "Pull."},
    ]
    chosen = []

    def note(episodes: list[Episode], environment: list[str], **columns: Any) -> list[float]:
        chosen.extend(zip(environment, [each.tools[0]["function"]["name"] for each in episodes], strict=True))
        return [0.0] * len(episodes)

    environments = {"buttons": Buttons(), "levers": Levers}
    trainer = make_trainer(tmp_path, environment=environments, rows=rows, reward_funcs=note)
    trainer.train()
    assert set(chosen) == {("buttons", "look"), ("levers", "pull")}
    [logs] = step_logs(trainer)
    assert logs["environments/levers/reward"] >= 0
    assert logs["environments/buttons/failed"] == 0
    assert len(chosen) == 8


# Features of transformers.Trainer.


class Hears(TrainerCallback):
    def __init__(self) -> None:
        self.heard: list[str] = []

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        self.heard += [name for name in logs if name in ("reward", "eval_reward", "train_loss")]

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.heard.append("begin")

    def on_evaluate(self, args: Any, state: Any, control: Any, metrics: Any = None, **kwargs: Any) -> None:
        self.heard.append("evaluated")
        assert "eval_reward" in metrics

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.heard.append("end")


def test_callbacks_hear_of_everything(tmp_path: Path) -> None:
    callback = Hears()
    trainer = make_trainer(
        tmp_path, callbacks=[callback], eval_rows=ROWS, eval_strategy="steps", eval_steps=1, max_steps=1
    )
    output = trainer.train()
    assert callback.heard == ["begin", "reward", "eval_reward", "evaluated", "train_loss", "end"]
    assert output.global_step == 1
    assert math.isfinite(output.training_loss)


def test_several_steps_between_logs_are_averaged_and_counted(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, max_steps=3, logging_steps=2)
    trainer.train()
    [logs] = step_logs(trainer)
    assert logs["episodes/played"] == 16
    assert 0 <= logs["reward"] <= 1
    # The third step is not lost: it is in the summary.
    assert trainer.state.log_history[-1]["episodes/played"] == 8


def test_episodes_are_written_down(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, max_steps=3, log_episodes_steps=2)
    for _ in range(2):  # the second training moves the file of the first aside
        trainer.train()
        steps, episodes = zip(*read_episodes(tmp_path / "episodes.jsonl"), strict=True)
        assert steps == (0,) * 8 + (2,) * 8
        assert {episode.reward for episode in episodes} == {0.0, 1.0}
        assert StopReason.FINAL_ANSWER in [episode.stop for episode in episodes]
        assert all(episode.messages[0].get("content") == "Press a button." for episode in episodes)
        masks = [episode.trace.mask for episode in episodes if episode.trace is not None]
        assert len(masks) == 16
        assert all(sum(mask) > 0 for mask in masks)
        assert any(0 in mask for mask in masks)


def test_episodes_are_written_down_where_rounds_are_rarer_than_steps(tmp_path: Path) -> None:
    make_trainer(tmp_path, max_steps=10, num_iterations=3, log_episodes_steps=4).train()
    lines = [json.loads(line) for line in (tmp_path / "episodes.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines[::8]] == [0, 6, 9]  # rounds are played at 0, 3, 6 and 9


class Lingers(TrainerCallback):
    """Takes a known time between the backward pass and the optimiser, and more after the step."""

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        time.sleep(0.25)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        time.sleep(2.0)


def test_the_time_of_an_update_includes_clipping_and_the_optimiser(tmp_path: Path) -> None:
    trainer = make_trainer(
        tmp_path, callbacks=[Lingers()], per_device_train_batch_size=4, gradient_accumulation_steps=2
    )
    trainer.train()
    [logs] = step_logs(trainer)
    assert 0.25 <= logs["time/update"] < 2.0


def test_refused_calls_and_timeouts_have_their_own_names() -> None:
    outcomes: list[Any] = ["ok", "timeout", "not_run", "exception"]
    records = [ToolCallRecord(name="look", call_id=None, outcome=each, seconds=1.0) for each in outcomes]
    records += [ToolCallRecord(name="jump", call_id=None, outcome=each) for each in ("unknown", "not_run")]
    turn = Turn(message={"role": "assistant", "content": ""}, tool_calls=records)
    spec = EpisodeSpec(task=Task(id="a"), group="a")
    episodes = [Episode(spec=spec, turns=turns, stop=StopReason.MAX_TURNS, reward=0.0) for turns in ([turn], [])]
    metrics = episode_metrics(episodes)
    assert {name: value for name, value in metrics.items() if name.startswith("tools/")} == {
        "tools/calls": 4,
        "tools/call_frequency": 2,
        "tools/failure_frequency": 0.75,
        "tools/malformed_frequency": 0,
        "tools/refused": 1,
        "tools/look/calls": 1.5,
        "tools/look/failures": 1,
        "tools/look/timeouts": 0.5,
        "tools/look/seconds": 1,
    }


@pytest.mark.parametrize(
    "options",
    [
        {"bf16": True},
        {"gradient_checkpointing": True, "num_iterations": 2},
        {"torch_compile": True, "torch_compile_backend": "eager"},
        {"include_num_input_tokens_seen": "non_padding"},
        {"skip_memory_metrics": False},
        {"lr_scheduler_type": "reduce_lr_on_plateau", "eval_strategy": "steps", "eval_steps": 1},
        {"eval_on_start": True, "eval_strategy": "epoch"},
        {"save_strategy": "best", "metric_for_best_model": "reward", "eval_strategy": "steps", "eval_steps": 1},
    ],
    ids=lambda options: next(iter(options)),
)
def test_options_of_transformers_work(options: dict[str, Any], tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, max_steps=2, eval_rows=ROWS, **options)
    before = weights(trainer.model)  # type: ignore[arg-type]
    trainer.train()
    assert trainer.state.global_step == 2
    assert differ(before, weights(trainer.model))  # type: ignore[arg-type]
    logs = step_logs(trainer)[0]
    assert logs["stop/final_answer"] > 0.9
    # bf16 sampling and training agree but for its three digits.
    assert logs["sampling/sampling_logp_difference/mean"] < (0.05 if "bf16" in options else 1e-4)


def test_gradient_checkpointing_has_the_same_gradient(tmp_path: Path) -> None:
    gradients = []
    for checkpointing in (False, True):
        kept = Gradients()
        make_trainer(tmp_path, callbacks=[kept], gradient_checkpointing=checkpointing).train()
        gradients.append(kept.steps[0])
    for name, gradient in gradients[0].items():
        torch.testing.assert_close(gradients[1][name], gradient)


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


@pytest.mark.parametrize("config_class", [GRPOConfig, RLOOConfig])
def test_configurations_are_command_lines(config_class: Any, tmp_path: Path) -> None:
    parser = HfArgumentParser(config_class)
    words = ["--output_dir", str(tmp_path), "--beta", "0.25", "--use_cpu", "--scale_rewards", "batch", "--top_p", "0.9"]
    [args] = parser.parse_args_into_dataclasses(words)
    assert (args.beta, args.scale_rewards, args.top_p) == (0.25, "batch", 0.9)
    assert json.loads(args.to_json_string())["beta"] == 0.25


def test_predict_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(NotImplementedError, match="rollout"):
        make_trainer(tmp_path).predict(ROWS)


def test_narrowed_sampling_is_not_compared(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, top_p=0.9, temperature=0.7)
    trainer.train()
    assert "sampling/sampling_logp_difference/mean" not in step_logs(trainer)[0]
    assert math.isfinite(step_logs(trainer)[0]["loss"])


def test_answers_without_tools(tmp_path: Path) -> None:
    """A plain chat: no tools, a text answer, a reward function."""
    generator = ScriptedGenerator(lambda request: ids("yes" if request.seed % 2 else "no") + ids("<|im_end|>"))
    rows = [{"prompt": "Say yes."}]
    says = matches("completion[0].content == 'yes'", name="says_yes")
    trainer = make_trainer(tmp_path, environment=ToolEnv(), rows=rows, generator=generator, reward_funcs=says)
    trainer.train()
    [logs] = step_logs(trainer)
    assert logs["stop/model_stopped"] == 1
    assert 0 < logs["rewards/says_yes/mean"] < 1
    assert "eval_rewards/environment/mean" not in trainer.evaluate(rows)  # a plain ToolEnv gives no rewards
    assert logs["tools/call_frequency"] == 0
