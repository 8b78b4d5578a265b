"""Metrics, their names and averages, and episodes.jsonl."""

from __future__ import annotations

import json
import math
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from transformers import TrainerCallback

from gymnast.envs import Episode, EpisodeSpec, StopReason, Task, ToolCallRecord, Turn
from gymnast.records import read_episodes
from gymnast.trainer import AgentTrainer, RLOOTrainer
from gymnast.trainer.run_log.metrics import episode_metrics

from .buttons import ScriptedGenerator, ShiftedGenerator, call_ids, make_trainer, model
from .inspecting import BOTH, step_logs

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


def test_a_generator_with_wrong_log_probabilities_is_an_alarm(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    class Wrong(ScriptedGenerator):
        async def generate(self, request: Any) -> Any:
            generation = await super().generate(request)
            return replace(generation, logprobs=[-9.0, *generation.logprobs[1:]])

    generator = Wrong(lambda request: call_ids("right" if request.seed % 2 else "left"))
    make_trainer(tmp_path, generator=generator, max_steps=3).train()
    assert "The generator's log-probabilities are far from the trainer's" in caplog.text


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
        # Tokens of tool results do not count. A call takes 5 tokens of the model.
        assert logs["completions/mean_length"] == pytest.approx(5 * logs["turns/mean"], rel=0.1)
        assert logs["tokens/sampled"] == pytest.approx(8 * logs["completions/mean_length"])
        assert logs["sampling/sampling_logp_difference/max"] < 1e-4


def test_several_steps_between_logs_are_averaged_and_counted(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, max_steps=3, logging_steps=2)
    trainer.train()
    [logs] = step_logs(trainer)
    assert logs["episodes/played"] == 16
    assert 0 <= logs["reward"] <= 1
    # The third step is not lost: it is in the summary.
    assert trainer.state.log_history[-1]["episodes/played"] == 8


TIMES = ("time", "seconds")


@pytest.mark.parametrize(
    "options",
    [
        {"loss_type": "dapo", "correction": "tis", "beta": 0.1},
        {"loss_type": "gspo", "epsilon": 3e-4, "epsilon_high": 4e-4, "correction": "icepop", "correction_min": 0.7},
    ],
    ids=str,
)
def test_metrics_do_not_depend_on_how_a_step_is_cut(options: dict[str, Any], tmp_path: Path) -> None:
    runs = []
    for max_tokens in (None, 150, 1):
        agent = model()
        cut = {"max_tokens_per_batch": max_tokens, "num_iterations": 2, "max_steps": 2}
        trainer = make_trainer(tmp_path, agent=agent, generator=ShiftedGenerator(agent), **cut, **options)
        trainer.train()
        runs.append(step_logs(trainer))
    for whole, *others in zip(*runs, strict=True):
        for logs in others:
            assert logs.keys() == whole.keys()
            for name in (item for item in whole if not any(word in item for word in TIMES)):
                assert logs[name] == pytest.approx(whole[name], rel=1e-3, abs=1e-5), name
    whole, *_ = runs
    assert 0.2 < whole[0]["mismatch/ess"] < 0.9
    assert 0 < whole[1]["clip_ratio/region_mean"] < 1


def test_the_divergence_in_the_reward_is_a_mean_over_the_tokens_of_all_rounds(tmp_path: Path) -> None:
    logs: dict[int, list[dict[str, float]]] = {}
    for every in (1, 2):
        trainer = make_trainer(tmp_path, RLOOTrainer, beta=0.1, max_steps=4, logging_steps=every, learning_rate=1e-2)
        trainer.train()
        logs[every] = step_logs(trainer)
    for pair, both in zip((logs[1][:2], logs[1][2:]), logs[2], strict=True):
        tokens = [environment["tokens/sampled"] for environment in pair]
        total = sum(token["kl"] * count for token, count in zip(pair, tokens, strict=True))
        assert both["kl"] == pytest.approx(total / sum(tokens), rel=1e-3, abs=1e-6)


@pytest.mark.parametrize(
    "length", [{"max_steps": 2}, {"max_steps": -1, "num_train_epochs": 2}], ids=["steps", "epochs"]
)
def test_the_summary_counts_completions_as_samples(length: dict[str, Any], tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, gradient_accumulation_steps=2, **length)
    trainer.train()
    summary = trainer.state.log_history[-1]
    assert summary["train_samples_per_second"] == pytest.approx(16 * summary["train_steps_per_second"], rel=0.01)


def test_episodes_are_written_down(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, max_steps=3, log_episodes_steps=2)
    for _ in range(2):  # the second training moves the file of the first aside
        trainer.train()
        steps, episodes = zip(*read_episodes(tmp_path / "episodes.jsonl"), strict=True)
        assert steps == (0,) * 8 + (2,) * 8
        assert {episode.reward for episode in episodes} == {0.0, 1.0}
        assert StopReason.FINAL_ANSWER in [episode.stop for episode in episodes]
        assert all(episode.messages[0].get("content") == "Press a button." for episode in episodes)
        masks = [trace.mask for episode in episodes for trace in episode.traces]
        assert len(masks) == 16
        assert all(sum(mask) > 0 for mask in masks)
        assert any(0 in mask for mask in masks)


def test_episodes_are_written_down_where_rounds_are_rarer_than_steps(tmp_path: Path) -> None:
    make_trainer(tmp_path, max_steps=10, num_iterations=3, log_episodes_steps=4).train()
    lines = [json.loads(line) for line in (tmp_path / "episodes.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines[::8]] == [0, 6, 9]  # rounds are played at 0, 3, 6 and 9


class Lingers(TrainerCallback):
    """Takes a known time between the backward pass and the optimiser, and another after the step."""

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
    records = [ToolCallRecord(name="look", call_id=None, outcome=outcome, seconds=1.0) for outcome in outcomes]
    records += [ToolCallRecord(name="jump", call_id=None, outcome=item) for item in ("unknown", "not_run")]
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


def test_narrowed_sampling_is_not_compared(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, top_p=0.9, temperature=0.7)
    trainer.train()
    assert "sampling/sampling_logp_difference/mean" not in step_logs(trainer)[0]
    assert math.isfinite(step_logs(trainer)[0]["loss"])
