"""Alarms of a run, and `gymnast why`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gymnast.envs import StopReason
from gymnast.records import Run as RunOfFolder
from gymnast.records import find_alarms

from .made_runs import episode, write_run
from .running import Run

CUT, FAILED = StopReason.MAX_TOKENS, StopReason.FAILED


def group(**options: Any) -> list[tuple[int, Any]]:
    return [(0, episode(member=member, **options)) for member in range(4)]


def logs(name: str, *values: float) -> list[dict[str, float]]:
    return [{"step": step, "reward": 0.5, name: value} for step, value in enumerate(values, 1)]


def alarms_of(folder: Path) -> list[Any]:
    run = RunOfFolder(folder)
    return find_alarms(run)


@pytest.mark.parametrize(
    ("kind", "title", "files"),
    [
        ("failures", "4 of 4 episodes failed: step: OSError: the disk", {"episodes": group(stop=FAILED, reward=None)}),
        ("tool errors", "4 of 4 calls of look end with the same error: no lamp", {"episodes": group(error="no lamp")}),
        ("no spread", "100% of the latest groups have equal rewards", {"episodes": group()}),
        ("truncation", "a limit cut 100% of the latest episodes, most often max_tokens", {"episodes": group(stop=CUT)}),
        ("stop reasons", "max_turns went from 0% to 60%", {"metrics": logs("stop/max_turns", 0, 0, 0.2, 0.4, 0.6)}),
        ("gap", "differ from the trainer's by 0.05", {
            "metrics": logs("sampling/sampling_logp_difference/mean", 0.001, 0.01, 0.02, 0.03, 0.05)
        }),
        ("sample size", "the effective sample size is 0.2", {"metrics": logs("mismatch/ess", 0.9, 0.8, 0.4, 0.4, 0.2)}),
        ("rejected", "the correction removed 80% of the episodes", {"metrics": logs("mismatch/rejected", 0.1, 0.8)}),
        ("length", "answers grow: 10 tokens", {"metrics": logs("completions/mean_length", 10, 12, 20, 30, 90)}),
    ],
)  # fmt: skip
def test_an_alarm_names_its_cause(kind: str, title: str, files: Any, tmp_path: Path) -> None:
    found = [alarm for alarm in alarms_of(write_run(tmp_path, **files)) if alarm.kind == kind]
    assert any(title in alarm.title and alarm.cause for alarm in found), found
    assert all(alarm.step is not None for alarm in found)


def test_an_error_that_repeats_comes_with_its_first_traceback(tmp_path: Path) -> None:
    [alarm] = [alarm for alarm in alarms_of(write_run(tmp_path, group(error="no lamp"))) if alarm.kind == "tool errors"]
    assert (alarm.detail, alarm.episode) == ("at no lamp", 0)


def test_a_healthy_run_has_no_alarm(tmp_path: Path) -> None:
    episodes = [(0, episode(member=member, reward=float(member % 2))) for member in range(4)]
    names = ("stop/final_answer", "completions/mean_length", "mismatch/ess")
    metrics = [{"step": step, "reward": step / 10, **dict.fromkeys(names, 0.9)} for step in range(1, 9)]
    assert alarms_of(write_run(tmp_path, episodes, metrics)) == []


@pytest.mark.parametrize(
    ("verdict", "options"),
    [
        ("100% of the episodes are cut by max_tokens: raise max_completion_length", {"stop": CUT}),
        ("4 of 4 calls of look end with the same error: no lamp", {"error": "no lamp"}),
        ("100% of the episodes end by malformed tool calls", {"stop": StopReason.MALFORMED}),
        ("an answer that calls no tool", {"stop": StopReason.MODEL_STOPPED}),
        ("the answers are wrong, the check is too strict, or self.reward is never set", {}),
        ("100% of the episodes fail: step: OSError: the disk is full", {"stop": FAILED, "reward": None}),
        ("every reward is 1: the task is solved", {"reward": 1.0}),
    ],
)
def test_why_gives_a_verdict_in_ten_lines(verdict: str, options: Any, run: Run, tmp_path: Path) -> None:
    write_run(tmp_path / "run", group(**options), [{"step": 1, "reward": 0.0}])
    outcome = run("why", "run")
    lines = outcome.out.splitlines()
    assert outcome.code == 0
    assert len(lines) <= 10
    assert lines[0].startswith("run: step 1, the reward is 0: ")
    assert verdict in lines[0]
    assert lines[0].endswith("; see run/view.html#episode=0, which gymnast view run writes")


def adventure(step: int, *, cut: int, rewards: tuple[float, float]) -> list[tuple[int, Any]]:
    """Sixteen episodes, in each of which a tool tells the model of a mistake in one call of four.

    The rewards are those of episodes that a limit cuts, and of the others.
    """
    played = [episode(member=member, reward=rewards[1]) for member in range(16)]
    for number, one in enumerate(played):
        if number < cut:
            one.stop, one.reward = StopReason.MAX_TURNS, rewards[0]
        calls = one.turns[0].tool_calls
        calls += [replace(calls[0], outcome="refused", error="there is no exit west"), calls[0], calls[0]]
    return [(step, one) for one in played]


def test_a_reward_that_falls_is_explained_by_the_limit_that_cuts_the_episodes(run: Run, tmp_path: Path) -> None:
    played = [*adventure(0, cut=8, rewards=(0.0, 0.75)), *adventure(5, cut=15, rewards=(0.0625, 0.75))]
    metrics = [{"step": step, "reward": 0.4 - step / 20} for step in range(1, 7)]
    write_run(tmp_path / "run", played, metrics)
    first, *others = run("why", "run").out.splitlines()
    assert first == (
        "run: step 6, the reward falls (0.35 -> 0.1): 94% of the episodes (50% at first) are cut by max_turns (mean "
        "reward 0.0625, of the others 0.75): raise max_turns; see run/view.html#episode=16, which gymnast view run "
        "writes"
    )
    assert not any("cut" in line for line in others)
    assert "32 of 128 calls of look end with the same error: there is no exit west" in others[-1]


def test_a_reward_that_stays_is_explained_by_its_episodes_and_the_size_of_the_steps(run: Run, tmp_path: Path) -> None:
    played = [(5, episode(member=member, reward=member / 4)) for member in range(4)]
    metrics = [{"step": step, "reward": 0.375, "learning_rate": 1e-6} for step in range(1, 7)]
    write_run(tmp_path / "run", played, metrics)
    first = run("why", "run").out.splitlines()[0]
    assert "the reward stays (0.375 -> 0.375): 100% of the episodes reach final_answer, and many earn less" in first
    assert "1 of 1 groups have spread: give it more steps, or a larger learning_rate (now 1e-06)" in first


@pytest.mark.parametrize("kind", ["tool", "failure"])
def test_an_error_is_explained_with_the_users_line(kind: str, run: Run, tmp_path: Path) -> None:
    traceback = (
        'Traceback (most recent call last):\n  File "/home/me/game.py", line 12, in compare\n    self.secrets\n'
        f'  File "{np.__file__}", line 3, in array\nOSError: the disk is full\n'
    )
    played = group(error="the disk is full") if kind == "tool" else group(stop=FAILED, reward=None)
    for _, one in played:
        if one.failure:
            one.failure = replace(one.failure, traceback=traceback)
        one.turns[0].tool_calls[0].traceback = traceback
    write_run(tmp_path / "run", played, [{"step": 1, "reward": 0.0}])
    first = run("why", "run").out.splitlines()[0]
    assert "the disk is full, at /home/me/game.py:12, in compare; " in first


def test_a_run_that_has_learned_has_no_alarm_of_equal_groups(run: Run, tmp_path: Path) -> None:
    metrics = [{"step": step, "reward": step / 10, "reward_std": 0.4} for step in range(1, 11)]
    folder = write_run(tmp_path / "run", group(reward=1.0), metrics)
    assert alarms_of(folder) == []
    assert "the run learns, or has learned" in run("why", "run").out.splitlines()[0]


def test_the_episode_that_shows_that_a_run_learns_is_the_best(run: Run, tmp_path: Path) -> None:
    metrics = [{"step": step, "reward": step / 10, "reward_std": 0.4} for step in range(1, 11)]
    played = [(0, episode(member=member, reward=reward)) for member, reward in enumerate([0.2, None, 1.0, 0.0])]
    write_run(tmp_path / "run", played, metrics)
    assert "#episode=2," in run("why", "run").out.splitlines()[0]


def test_evaluations_are_named(run: Run, tmp_path: Path) -> None:
    metrics = [
        {"step": 0, "eval_easy_reward": 0.25, "eval_easy_runtime": 1.0},
        {"step": 1, "reward": 0.25},
        {"step": 2, "eval_easy_reward": 0.75, "eval_easy_environment/foo_runtime": 3.0, "eval_easy_runtime": 1.0},
        {"step": 2, "eval_hard_reward": 0.125, "eval_hard_runtime": 1.0},
        {"step": 2, "train_loss": 0.0, "train_runtime": 9.0},
    ]
    write_run(tmp_path / "run", metrics=metrics)
    line = run("why", "run").out.splitlines()[1]
    assert line == "evaluation on easy: reward 0.25 -> 0.75 at step 2; evaluation on hard: reward 0.125 at step 2"


def test_an_evaluation_is_explained_while_it_has_no_figures(run: Run, tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run")
    (folder / "evaluation.json").write_text("{}")
    assert "gymnast eval with --resume plays those that are missing" in run("why", "run").out
    write_run(folder, evaluations=group(stop=StopReason.TURN_TRUNCATED))
    first, second, *_ = run("why", "run").out.splitlines()
    assert first.startswith("run: 100% of the episodes are cut by turn_truncated: raise --max-tokens of gymnast eval")
    assert second == "4 of 4 episodes have reward 0, 0 have no reward"
    assert [alarm.kind for alarm in alarms_of(folder)] == ["truncation"]  # equal groups are no alarm


def test_steps_that_play_no_round_have_no_reward(run: Run, tmp_path: Path) -> None:
    write_run(tmp_path / "run", metrics=[{"step": 1, "reward": 0.25}, {"step": 2, "loss": 0.1}])
    assert run("why", "run").out.startswith("run: step 2, the reward is 0.25: the reason is not known without episodes")


def test_a_run_without_metrics_is_told_how_to_record_them(run: Run, tmp_path: Path) -> None:
    write_run(tmp_path / "run", group())
    assert "no metrics are recorded: train with record_run=True" in run("why", "run").out


def test_the_answer_of_a_telling_episode_stands_beside_the_right_one(run: Run, tmp_path: Path) -> None:
    rewards = {"down": 1.0, "left": 0.0}
    write_run(tmp_path / "run", [(0, episode(reward=reward, row={"answer": row})) for row, reward in rewards.items()])
    assert "episode 1: 'up' was given, 'left' expected" in run("why", "run").out


def test_why_for_programs(run: Run, tmp_path: Path) -> None:
    write_run(tmp_path / "run", metrics=[{"step": 1, "reward": 0.0}])
    found = run("why", "run", "--json").json
    assert "set log_episodes_steps=1" in found["lines"][1]
    assert found["alarms"] == []


def test_an_option_of_view_that_has_no_effect_is_an_error(run: Run, tmp_path: Path) -> None:
    write_run(tmp_path / "run", metrics=[{"step": 1, "reward": 0.0}])
    for options, message in {
        ("--port", 9000): "error: --port 9000 is for a page that is served: add --follow\n",
        ("--follow", "-o", "x.html"): "error: --output x.html is for a page that is written: leave out --follow, which "
        "serves it\n",
    }.items():
        assert run("view", "run", *options) == (2, "", message)


def test_a_broken_line_costs_itself_and_is_named(run: Run, tmp_path: Path) -> None:
    scored = [{"step": 0, "group": "a@0", "member": member, "vote": "counts"} for member in range(3)]
    metrics = [{"step": step, "reward": 0.25} for step in (1, 2, 3)]
    played = [(0, episode(member=member, reward=float(member))) for member in range(3)]
    folder = write_run(tmp_path / "run", played, metrics, scored)
    for name in ("episodes.jsonl", "metrics.jsonl"):
        first, second, *others = (folder / name).read_text().splitlines(keepends=True)
        (folder / name).write_text(first + second[:20] + "\n" + "".join(others))
    told = "skipped line 2 of run/episodes.jsonl (ValueError: "
    why = run("why", "run")
    assert (why.code, why.err) == (0, "")
    assert f"! {told}" in why.out
    assert "; skipped line 2 of run/metrics.jsonl (ValueError: EOF while parsing an object)" in why.out
    assert "1 of 2 recorded episodes have reward 0" in why.out
    for command in (["view", "run"], ["export", "run", "--to", "atif"]):
        outcome = run(*command)
        assert (outcome.code, outcome.err.count(told)) == (0, 1)
        assert "2 episodes" in outcome.out
