"""`gymnast replay`: the episodes of real trainings under other rewards."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any

import pytest

from gymnast.cli.rescoring.changes import Change, changes_of
from gymnast.cli.rescoring.rewards import RewardChange
from gymnast.envs import StopReason
from gymnast.records.files.run import Run as RunOfFolder
from gymnast.trainer import GRPOTrainer, RLOOTrainer

from ..training.buttons import make_trainer
from .made_runs import episode, write_run
from .running import Run

FUNCTIONS = """
def brevity(completions, **columns):
    return [-float(len(messages)) for messages in completions]


def looks(episodes, **columns):
    return [float(any(call.name == "look" for call in episode.tool_calls)) for episode in episodes]


def broken(completions, **columns):
    raise OSError("the judge is away")


def columnless(shelf):
    return [1.0 for _ in shelf]
"""


def brevity(completions: Any, **columns: Any) -> list[float]:
    return [-float(len(messages)) for messages in completions]


def changes(folder: Path, **change: Any) -> list[Change]:
    run = RunOfFolder(folder)
    reward = RewardChange(recorded_weights=run.settings["reward_weights"], **change)
    return [change for _, changes in changes_of(run, reward) for change in changes]


def recorded_advantages(folder: Path) -> dict[tuple[int, str, int], float]:
    """The largest advantage of each episode that counts, as the training wrote it."""
    found = {}
    for line in map(json.loads, (folder / "learning.jsonl").read_text().splitlines()):
        if line.get("vote") == "counts":
            values = [
                value for sample in line["advantages"] for value in (sample if isinstance(sample, list) else [sample])
            ]
            found[line["step"] + 1, line["group"], line["member"]] = max(values, key=abs)
    return found


KINDS: dict[str, tuple[Any, dict[str, Any]]] = {
    "grpo": (GRPOTrainer, {}),
    "a reward in each turn": (GRPOTrainer, {"credit": "turn", "discount": 0.5, "scale_rewards": "batch"}),
    "divergence in the reward": (RLOOTrainer, {"beta": 0.5, "learning_rate": 1e-2}),
    "whitened": (GRPOTrainer, {"advantage_estimator": "reinforce++"}),
}


@pytest.mark.parametrize(("trainer_class", "options"), KINDS.values(), ids=KINDS)
def test_the_advantages_are_those_of_the_training(trainer_class: Any, options: Any, tmp_path: Path) -> None:
    weights = {"reward_funcs": [brevity], "reward_weights": [0.25]}
    trainer = make_trainer(tmp_path, trainer_class, max_steps=2, log_episodes_steps=1, **weights, **options)
    trainer.train()
    recorded = recorded_advantages(tmp_path)
    assert any(recorded.values())
    same = changes(tmp_path, functions=[brevity])
    assert [change for change in same if change.size > 1e-9 or change.new_reward != change.reward] == []
    opposite = changes(tmp_path, weights={"environment": -1.0, "brevity": -0.25})
    if "beta" not in options:  # its charge stays as it was
        assert all(change.new_advantage == pytest.approx(-change.advantage, abs=1e-9) for change in opposite)
        assert sum(change.flipped for change in opposite) >= sum(abs(value) > 1e-6 for value in recorded.values()) > 0
        assert sum(change.appeared + change.vanished for change in opposite) == 0
    named = {(row.step, row.group, row.member): row.advantage for row in opposite}
    assert named.keys() >= recorded.keys()
    for name, advantage in recorded.items():
        assert named[name] == pytest.approx(advantage, abs=1e-5)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two steps with a reward function."""
    folder = tmp_path_factory.mktemp("trained")
    options: dict[str, Any] = {"reward_funcs": [brevity], "reward_weights": [0.25]}
    make_trainer(folder, max_steps=2, log_episodes_steps=1, **options).train()
    return folder


@pytest.mark.parametrize(("file", "mark"), [("episodes.jsonl", '"step"'), ("learning.jsonl", '"vote"')])
def test_a_group_with_a_broken_line_is_left_out(run: Run, trained: Path, tmp_path: Path, file: str, mark: str) -> None:
    folder = tmp_path / "cut"
    shutil.copytree(trained, folder)
    lines = (folder / file).read_text().splitlines(keepends=True)
    broken = next(number for number, line in enumerate(lines) if mark in line)
    lines[broken] = lines[broken][:-20] + "\n"
    (folder / file).write_text("".join(lines))
    outcome = run("replay", folder, "--weight", "environment=1", "--json")
    assert [step["episodes"] for step in outcome.json["steps"]] == [4, 8]
    assert [step["flipped"] + step["appeared"] + step["vanished"] for step in outcome.json["steps"]] == [0, 0]
    assert f"skipped line {broken + 1} of {folder}/{file} (" in outcome.err


def test_a_changed_function_is_compared_with_the_recorded_rewards(run: Run, trained: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(FUNCTIONS)
    change = "--reward mine.py:looks --weight looks=3 --without brevity"
    outcome = run("replay", trained, *change.split(), "--json")
    assert outcome.code == 0, outcome.err
    assert [step["step"] for step in outcome.json["steps"]] == [1, 2]
    rows = RunOfFolder(trained).episodes
    for step in outcome.json["steps"]:
        own = [row for row in rows if row.step == step["step"]]
        lines = [json.loads(row.place.read())["episode"] for row in own]
        expected = [
            line["reward_parts"]["environment"] + 3.0 * ("look" in row.tools)
            for line, row in zip(lines, own, strict=True)
        ]
        assert step["episodes"] == len(own)
        assert step["new_reward"] == pytest.approx(sum(expected) / len(own))
        assert step["reward"] == pytest.approx(sum(line["reward"] for line in lines) / len(own))
    sizes = [abs(change["new_advantage"] - change["advantage"]) for change in outcome.json["episodes"]]
    assert sizes == sorted(sizes, reverse=True)
    assert 0 < len(sizes) <= 10
    assert outcome.json["episodes"][0]["episode"] < len(rows)
    assert outcome.json["failures"] == []


def test_the_table_has_a_line_for_each_step_and_lists_the_largest_changes(run: Run, trained: Path) -> None:
    outcome = run("replay", trained, "--weight", "environment=-1", "--top", "2")
    assert outcome.code == 0, outcome.err
    lines = outcome.out.splitlines()
    assert lines[0].split()[:3] == ["step", "episodes", "reward"]
    assert [line.split()[:2] for line in lines[1:3]] == [["1", "8"], ["2", "8"]]
    assert len(lines) == 3 + 1 + 2 + 2  # a blank line, the title and headings, two episodes
    assert "task-" in lines[-1] or "train-" in lines[-1]
    assert "no advantage changes" in run("replay", trained, "--weight", "brevity=0.25").out
    short = run("replay", trained, "--weight", "environment=-1", "--top", "0")
    assert short.out.splitlines() == lines[:3]


def test_a_function_that_fails_costs_the_rewards_and_exits_with_1(run: Run, trained: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(FUNCTIONS)
    outcome = run("replay", trained, "--reward", "mine.py:broken", "--json")
    assert outcome.code == 1
    assert [step["failed"] for step in outcome.json["steps"]] == [8, 8]
    assert [step["new_reward"] for step in outcome.json["steps"]] == [None, None]
    told = outcome.json["failures"][0]
    assert told.partition(", at ")[0] == "OSError: reward function 'broken': the judge is away"
    assert told.endswith(", in broken")
    assert "mine.py:" in told
    assert sum(step["vanished"] for step in outcome.json["steps"]) > 0
    assert (
        "16 episodes have no reward now: OSError: reward function 'broken'"
        in run(*["replay", trained, "--reward", "mine.py:broken"]).err
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "nothing changes: give --reward file.py:function, --weight part=2 or --without part"),
        (["--without", "judge"], "no part of the reward is called 'judge'; there are brevity, environment"),
        (["--weight", "brevity"], "--weight takes part=number, such as brevity=0.5, got 'brevity'"),
        (["--weight", "brevity=nan"], "--weight takes part=number, such as brevity=0.5, got 'brevity=nan'"),
        (["--reward", "mine.py:columnless"], "reward function 'columnless' requires ['shelf']"),
        (["--reward", "mine.py:looks2"], "mine.py has no 'looks2'; do you mean 'looks'?"),
    ],
)
def test_a_change_that_does_not_fit_is_refused(
    run: Run, trained: Path, tmp_path: Path, arguments: list[str], message: str
) -> None:
    (tmp_path / "mine.py").write_text(FUNCTIONS)
    outcome = run("replay", trained, *arguments)
    assert (outcome.code, outcome.out) == (2, "")
    assert message in outcome.err


SETTINGS = {
    "step": 0,
    "settings": {"advantage_estimator": "grpo", "scale_rewards": "none", "credit": "episode", "discount": 1.0},
}


def test_failed_and_dropped_episodes_stay_out_and_new_rewards_bring_others_in(run: Run, tmp_path: Path) -> None:
    rewards: dict[str, list[float | None]] = {"a@0": [1.0, 0.0, None], "b@0": [0.5, 0.5], "c@0": [1.0, 0.0]}
    made, votes = [], []
    for group, values in rewards.items():
        for member, reward in enumerate(values):
            stop = StopReason.FAILED if reward is None else StopReason.FINAL_ANSWER
            made.append(episode(group=group, member=member, reward=reward, stop=stop))
            # the training did not need the spare group c
            vote = "dropped" if group == "c@0" else "failed" if reward is None else "counts"
            votes.append({"step": 0, "group": group, "member": member, "vote": vote})
    write_run(tmp_path / "made", [(0, item) for item in made], learning=[SETTINGS, *votes])
    (tmp_path / "mine.py").write_text(
        "def first(episodes, **columns):\n    return [float(episode.spec.member == 0) for episode in episodes]\n"
    )
    outcome = run("replay", "made", "--reward", "mine.py:first", "--weight", "first=-2", "--json")
    assert outcome.code == 0, outcome.err
    [step] = outcome.json["steps"]
    assert (step["advantages"], step["flipped"], step["appeared"], step["vanished"]) == (4, 2, 2, 0)
    advantages = {(change["group"], change["member"]): change["new_advantage"] for change in outcome.json["episodes"]}
    assert advantages == {("a@0", 0): -0.5, ("a@0", 1): 0.5, ("b@0", 0): -1.0, ("b@0", 1): 1.0}
    assert math.isclose(step["new_reward"], sum([-1.0, 0.0, -1.5, 0.5, -1.0, 0.0]) / 6)


def test_a_step_whose_episodes_all_failed_is_no_reason_to_refuse_a_part(run: Run, tmp_path: Path) -> None:
    made = [(0, episode(member=number, reward=None, stop=StopReason.FAILED)) for number in range(2)]
    for _, failed in made:
        failed.reward_parts = {}  # as a training leaves it
    made += [(1, episode(member=number, reward=float(number))) for number in range(2)]
    write_run(tmp_path / "made", made, learning=[SETTINGS])
    outcome = run("replay", "made", "--weight", "environment=-1", "--json")
    assert outcome.code == 0, outcome.err
    assert [(step["advantages"], step["flipped"]) for step in outcome.json["steps"]] == [(0, 0), (2, 2)]


def test_a_run_that_does_not_say_enough_is_refused(run: Run, tmp_path: Path) -> None:
    write_run(tmp_path / "made", [(0, episode())])
    assert "has no learning.jsonl that says how advantages" in run("replay", "made", "--weight", "environment=2").err
    write_run(tmp_path / "empty", metrics=[{"step": 1, "reward": 0.0}])
    assert "log_episodes_steps=1" in run("replay", "empty", "--weight", "environment=2").err
