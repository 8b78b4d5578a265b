"""Metrics of rounds do not depend on how episodes are cut into rounds and processes."""

from __future__ import annotations

from itertools import chain
from typing import Any

import pytest

from gymnast.envs import Episode, EpisodeSpec, StopReason, Task
from gymnast.envs.episode import ToolCallRecord, Turn
from gymnast.envs.tokens import TokenTrace
from gymnast.trainer.run_log.metrics import SUMS, Metrics, episode_metrics, weighted_metrics


def scored(*rewards: float | None) -> list[Episode]:
    """Episodes with these rewards; None stands for a failed episode."""
    return [
        Episode(
            spec=EpisodeSpec(task=Task(id="a"), group="a@0", member=index),
            stop=StopReason.FAILED if reward is None else StopReason.FINAL_ANSWER,
            reward=reward,
            reward_parts={"environment": reward},
        )
        for index, reward in enumerate(rewards)
    ]


def test_metrics_cover_the_episodes_of_all_processes() -> None:
    parts = [scored(0.0, 1.0, 1.0), scored(None, None, 5.0)]
    metrics = Metrics()
    for part in parts:
        for weight, values in weighted_metrics(part):
            metrics.add(values | {"environment/high_max": 1.0 * weight}, weight=weight)
    metrics.finish_step()
    got, expected = metrics.flush(lambda lists: lists), episode_metrics([*parts[0], *parts[1]])
    for name in ("reward", "reward_std", "rewards/environment/mean", "rewards/environment/std", "stop/failed"):
        assert got[name] == pytest.approx(expected[name]), name
    assert got["episodes/failed"] == 2
    assert got["environment/high_max"] < 3  # a mean, although its name ends with max


def called(member: int, *outcomes: str, reward: float = 1.0, **options: Any) -> Episode:
    """An episode whose model called the tool `search` with these outcomes."""
    calls = [
        ToolCallRecord(name="search", call_id=str(index), outcome=outcome, seconds=1.0 + index)  # type: ignore[arg-type]
        for index, outcome in enumerate(outcomes)
    ]
    schema: Any = {"type": "function", "function": {"name": "search"}}
    turn = Turn(message={"role": "assistant"}, tool_calls=calls)
    trace = TokenTrace(prompt_ids=[1])
    trace.append_sampled([2] * (1 + member), [0.0] * (1 + member))
    options = {"stop": StopReason.FINAL_ANSWER, "turns": [turn], "traces": [trace], "tools": [schema], **options}
    spec = EpisodeSpec(task=Task(id="a"), group=f"{member // 3}@0", member=member)
    return Episode(spec=spec, reward=reward, **options)


def test_metrics_do_not_depend_on_how_episodes_are_cut_into_rounds() -> None:
    """Each is the mean of the episodes, groups or calls that have it."""
    first = [called(0, *["ok"] * 80, metrics={"acc": 0.0}), called(1, metrics={"acc": 0.0}), called(2)]
    first[0].reward_parts = {"judge": 0.0}
    others = [called(3, "exception", metrics={"acc": 1.0}), called(4, reward=0.0), called(6), called(7), called(9)]
    others[0].reward_parts = {"judge": 1.0}
    cut = [called(12 + index, stop=StopReason.MAX_TURNS) for index in range(3)]
    rounds = [first, others, cut]
    metrics = Metrics()
    for part in rounds:
        for weight, values in weighted_metrics(part):
            metrics.add(values, weight=weight)
        metrics.finish_step()
    got, expected = metrics.flush(lambda lists: lists), episode_metrics([*first, *others, *cut])
    assert got.keys() == expected.keys()
    for name in expected.keys() - SUMS:
        assert got[name] == pytest.approx(expected[name]), name
    assert got["tools/failure_frequency"] == pytest.approx(1 / 81)
    assert got["tools/search/calls"] == pytest.approx(81 / 11)
    assert got["completions/min_terminated_length"] == 1


def played(*successes: float | None, name: str = "") -> list[Episode]:
    """Episodes of an environment with this metric `success`; None: they lack it."""
    task = Task(id="a", row={"environment": name})
    return [
        Episode(
            spec=EpisodeSpec(task=task, group="a@0", member=member),
            stop=StopReason.FINAL_ANSWER,
            metrics={} if success is None else {"success": success},
        )
        for member, success in enumerate(successes)
    ]


def test_a_missing_success_counts_as_zero_however_episodes_are_cut_into_rounds_and_processes() -> None:
    [failed] = played(None)
    failed.stop = StopReason.FAILED
    rounds = [played(None, None, None), [failed], played(1.0, None), played(None, None, None)]
    here, elsewhere = Metrics(), Metrics()
    for metrics, part in zip([here, here, here, elsewhere], rounds, strict=True):
        for weight, values in weighted_metrics(part):
            metrics.add(values, weight=weight)
        metrics.finish_step()
    got = here.flush(lambda lists: [*lists, elsewhere.pending()])
    assert got["environment/success"] == episode_metrics([*chain(*rounds)])["environment/success"] == 1 / 8
    for weight, values in weighted_metrics(played(None)):  # the next log, in which no episode succeeded
        here.add(values, weight=weight)
    here.finish_step()
    assert here.flush(lambda lists: lists)["environment/success"] == 0


def test_a_missing_success_counts_as_zero_only_beside_one_of_the_same_environment() -> None:
    episodes = [*played(1.0, None, name="sums"), *played(None, None, None, name="essays")]
    metrics = episode_metrics(episodes, lambda episode: episode.spec.task.row["environment"])
    assert metrics["environment/success"] == metrics["environments/sums/environment/success"] == 0.5
    assert "environments/essays/environment/success" not in metrics


def test_a_metric_that_some_episodes_lack_is_named_once(caplog: pytest.LogCaptureFixture) -> None:
    first, other = played(1.0, None, 1.0, name="sums"), played(None, name="essays")
    first[0].metrics["answered"] = 1.0
    for generation in (*first, *other):
        generation.metrics["words"] = 3.0
    metrics = Metrics()
    for _ in range(3):
        for weight, values in weighted_metrics([*first, *other], lambda episode: episode.spec.task.row["environment"]):
            metrics.add(values, weight=weight)
        metrics.finish_step()
        metrics.flush(lambda lists: lists)
    success, answered = sorted((record.getMessage() for record in caplog.records), key=lambda text: "answered" in text)
    assert "1 of 3 episodes of the environment 'sums' have no metric 'success': they count as 0 in" in success
    assert "2 of 3 episodes of the environment 'sums' have no metric 'answered'" in answered
    assert "self.metrics['answered'] = 0.0 at reset" in answered
