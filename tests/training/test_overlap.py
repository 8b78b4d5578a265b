"""With `max_staleness`, episodes are played while the model trains."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from gymnast.envs import Episode, EpisodeFailedError, Message
from gymnast.trainer import AgentTrainer, GRPOTrainer, TransformersGenerator
from gymnast.trainer.options.derived import learning_settings

from .buttons import ROWS, Buttons, ScriptedGenerator, call_ids, config, make_trainer, model, sometimes_failing

HELD_OUT = [{"good": "left", "id": 100}]


def trained(folder: Path, checkpoint: Path | None = None, **options: Any) -> None:
    all_options: dict[str, Any] = {"max_steps": 4, "max_staleness": 2} | options
    trainer = make_trainer(folder, **all_options)
    trainer.train(resume_from_checkpoint=None if checkpoint is None else str(checkpoint))


def log_of(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "groups.jsonl").read_text().splitlines()]


def test_a_training_that_was_stopped_and_resumed_logs_each_group_once(tmp_path: Path) -> None:
    trained(tmp_path, save_strategy="steps", save_steps=2, max_steps=3)
    before = log_of(tmp_path)
    trained(tmp_path, tmp_path / "checkpoint-2")
    rounds = log_of(tmp_path)
    assert rounds[:2] == before[:2]
    assert sorted(group["number"] for line in rounds for group in line["groups"]) == list(range(8))


class WaitsOnce(Buttons):
    """The group of task 1 waits until it is let go."""

    release = threading.Event()

    def reset_task(self, task: Mapping[str, Any]) -> list[Message]:
        if task["id"] == 1:
            self.release.wait(60)
        return super().reset_task(task)


class LetsGo(GRPOTrainer):
    """Lets this group go when two rounds have been consumed; notes the groups of each round."""

    def on_episodes(self, episodes: Sequence[Episode]) -> None:
        self.rounds: list[list[int]]
        self.rounds = [*getattr(self, "rounds", []), sorted({episode.spec.task.row["id"] for episode in episodes})]
        if len(self.rounds) == 2:
            WaitsOnce.release.set()


def test_a_late_group_delays_no_other_and_is_counted(tmp_path: Path) -> None:
    rows = [{"good": "left", "id": index} for index in range(8)]
    options = {"max_steps": 4, "max_staleness": 1, "shuffle_dataset": False}
    trainer = make_trainer(tmp_path, LetsGo, environment=WaitsOnce(), rows=rows, **options)
    trainer.train()
    first, second, third, fourth = trainer.rounds  # type: ignore[attr-defined]
    assert 1 not in first + second
    assert sorted(first + second + third + fourth) == list(range(8)), "each group is consumed once"
    [late] = [logs for logs in trainer.state.log_history if logs.get("staleness/late")]
    assert late["staleness/late"] == 1
    assert 1 in trainer.rounds[late["step"] - 1]  # type: ignore[attr-defined]
    assert {"staleness/mean", "staleness/max", "idle/trainer", "idle/generator", "groups/in_flight"} <= set(late)
    assert late["staleness/mean"] <= late["staleness/max"] <= 2


def test_no_group_starts_too_early_also_if_rounds_and_steps_overlap(tmp_path: Path) -> None:
    """Rounds of 6 groups, and steps that use 4 of them; some episodes fail. The staleness is a mean of turns."""
    options: dict[str, Any] = {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 2, "logging_steps": 5}
    options |= {"steps_per_generation": 3, "num_generations": 2, "max_steps": 5, "max_staleness": 1}
    trainer = make_trainer(tmp_path, generator=sometimes_failing(), rows=ROWS * 3, **options)
    trainer.train()
    rounds = log_of(tmp_path)
    episodes = [(line["step"], version) for line in rounds for group in line["groups"] for version in group["versions"]]
    ages = [step - version for step, versions in episodes for version in versions if version is not None]
    assert trainer.state.log_history[0]["staleness/mean"] == pytest.approx(sum(ages) / len(ages))
    assert [line["step"] for line in rounds] == [0, 1, 3, 4]  # the first steps that use them
    groups = {group["number"]: group for line in rounds for group in line["groups"]}
    assert sorted(groups) == list(range(24))
    assert all(group["started_at"] >= rounds[number // 6]["step"] - 1 for number, group in groups.items())


def test_an_error_in_the_background_ends_the_training(tmp_path: Path) -> None:
    trainer = make_trainer(
        tmp_path, generator=sometimes_failing(), max_steps=50, max_staleness=1, on_failure="raise", max_failure_rate=1.0
    )
    with pytest.raises(EpisodeFailedError, match="no luck"):
        trainer.train()


class AloneInEvaluation(Buttons):
    """Fails an evaluation that meets an episode of training."""

    training = 0
    is_training = False

    def reset_task(self, task: Mapping[str, Any]) -> list[Message]:
        self.is_training = task["id"] < 100
        AloneInEvaluation.training += self.is_training
        assert self.is_training or not AloneInEvaluation.training
        return super().reset_task(task)

    def close(self) -> None:
        AloneInEvaluation.training -= self.is_training
        super().close()


def test_an_evaluation_waits_for_the_groups_in_flight(tmp_path: Path) -> None:
    options = {"max_staleness": 2, "max_steps": 3, "eval_strategy": "steps", "eval_steps": 1}
    trainer = make_trainer(tmp_path, environment=AloneInEvaluation(), eval_rows=HELD_OUT, **options)
    trainer.train()
    assert [logs["eval_episodes/failed"] for logs in trainer.state.log_history if "eval_reward" in logs] == [0, 0, 0]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"correction": "none"}, "older weights.* correction is 'none': leave correction out"),
        ({"top_p": 0.9}, "older weights.* switch off top_p, top_k and min_p"),
        ({"max_refills": 1}, "max_refills=1 needs max_staleness=0"),
        ({"generator": "vllm", "vllm_enable_sleep_mode": True}, "vllm_enable_sleep_mode=True needs max_staleness=0"),
    ],
)
def test_options_that_overlap_cannot_have_are_refused(options: dict[str, Any], message: str, tmp_path: Path) -> None:
    all_options: dict[str, Any] = {"max_staleness": 1} | options
    with pytest.raises(ValueError, match=message):
        config(tmp_path, **all_options)


def test_a_generator_that_shares_the_weights_in_training_is_refused(tmp_path: Path) -> None:
    agent = model()
    with pytest.raises(ValueError, match=r"give TransformersGenerator\(model, copies=True\)"):
        make_trainer(tmp_path, agent=agent, generator=TransformersGenerator(agent), max_staleness=1)


def test_the_default_correction_weighs_old_samples() -> None:
    assert learning_settings(config("unused", max_staleness=1)).correction == "tis"


def test_a_checkpoint_with_groups_of_later_rounds_is_not_resumed_without_overlap(tmp_path: Path) -> None:
    make_trainer(tmp_path, max_staleness=1, save_strategy="steps", save_steps=1).train()
    trainer: AgentTrainer = make_trainer(tmp_path, max_steps=2)
    with pytest.raises(ValueError, match="which has started groups of later rounds: set max_staleness here, too"):
        trainer.train(resume_from_checkpoint=True)


class Calls(ScriptedGenerator):
    """Keeps the names of the calls that say whether it may read the weights."""

    def __init__(self) -> None:
        super().__init__(lambda request: call_ids(("left", "right")[request.seed % 2]))
        self.calls: list[str] = []

    def load_weights(self, model: Any, version: int) -> None:
        self.calls.append(f"load {version}")

    def weights_will_change(self) -> None:
        self.calls.append("weights will change")

    def sleep(self) -> None:
        self.calls.append("sleep")


class LoadsBest(GRPOTrainer):
    def _load_best_model(self) -> None:
        super()._load_best_model()
        self.player.generator.inner.calls.append("best model")  # type: ignore[attr-defined]


def test_the_generator_is_told_before_the_best_weights_are_loaded(tmp_path: Path) -> None:
    generator = Calls()
    options: dict[str, Any] = {"eval_strategy": "steps", "save_strategy": "steps", "eval_steps": 1, "save_steps": 1}
    options |= {"load_best_model_at_end": True, "metric_for_best_model": "eval_reward", "max_staleness": 1}
    trainer = make_trainer(tmp_path, LoadsBest, generator=generator, eval_rows=HELD_OUT, max_steps=2, **options)
    trainer.train()
    last = generator.calls[generator.calls.index("load 2") :]
    assert last.index("weights will change") < last.index("best model")


def test_the_generator_sleeps_after_an_evaluation_outside_a_training(tmp_path: Path) -> None:
    generator = Calls()
    trainer = make_trainer(tmp_path, generator=generator, eval_rows=HELD_OUT, max_staleness=1, max_steps=2)
    trainer.evaluate()
    assert generator.calls == ["load 0", "sleep"]
    trainer.train()
    assert generator.calls.count("sleep") == 2
    assert generator.calls[-1] == "sleep"


def test_a_staleness_longer_than_the_training_is_warned_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    make_trainer(tmp_path, generator=sometimes_failing(), max_staleness=1000, max_steps=-1, num_train_epochs=1).train()
    [message] = [record.getMessage() for record in caplog.records if "max_staleness" in record.getMessage()]
    assert message.startswith("max_staleness=1000 is more than the 2 steps of this training")


def test_the_copy_samples_in_the_precision_of_the_trainer(tmp_path: Path) -> None:
    logs: list[dict[str, float]] = []
    for staleness in (0, 1):
        trainer = make_trainer(tmp_path, bf16=True, max_staleness=staleness, generation_rows=1)
        trainer.train()
        logs.append(trainer.state.log_history[0])
    name = "sampling/sampling_logp_difference/mean"
    assert logs[1][name] == pytest.approx(logs[0][name], rel=0.1, abs=1e-5)
    copied: Any = TransformersGenerator(model(), copies=True, dtype=torch.bfloat16).model
    tied, of_linear_layer = copied.lm_head.weight, copied.model.layers[0].self_attn.q_proj.weight
    assert (tied.dtype, of_linear_layer.dtype) == (torch.float32, torch.bfloat16)


def test_a_given_copy_must_have_the_precision_of_the_trainer(tmp_path: Path) -> None:
    agent = model()
    with pytest.raises(ValueError, match=r"in the precision of its weights, and .*torch.bfloat16: give .*dtype="):
        make_trainer(tmp_path, agent=agent, generator=TransformersGenerator(agent, copies=True), bf16=True)
