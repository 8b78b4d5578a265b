"""`learning.jsonl`: the votes of a round's episodes, and the updates of their tokens."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gymnast.envs import BrokenEnvironmentError, tool
from gymnast.records import read_episodes

from .buttons import Buttons, make_trainer
from .inspecting import step_logs


def lines_of(folder: Path, kind: str) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (folder / "learning.jsonl").read_text().splitlines()]
    return [line for line in lines if kind in line]


def test_votes_and_updates_agree_with_the_episodes(tmp_path: Path) -> None:
    make_trainer(tmp_path, max_steps=2, log_episodes_steps=1).train()
    episodes = {(step, e.spec.group, e.spec.member): e for step, e in read_episodes(tmp_path / "episodes.jsonl")}
    votes = {(line["step"], line["group"], line["member"]): line for line in lines_of(tmp_path, "vote")}
    assert votes.keys() == episodes.keys()
    for name, line in votes.items():
        rewards = [episode.reward or 0.0 for (step, group, _), episode in episodes.items() if (step, group) == name[:2]]
        assert line["vote"] == "counts"
        assert line["reward"] == episodes[name].reward
        assert (line["advantages"][0] > 0) == (line["reward"] > sum(rewards) / 4)
    updates = lines_of(tmp_path, "update")
    assert {(line["step"], line["update"]) for line in updates} == {(0, 1), (1, 2)}
    for line in updates:
        name = line["step"], line["group"], line["member"]
        [trace], [advantage] = episodes[name].traces, votes[name]["advantages"]
        length = len(line["logprobs"])
        assert line["logprobs"] == pytest.approx(trace.logprobs[:length], abs=1e-4)
        tokens = sum(episode.num_sampled for (step, _, _), episode in episodes.items() if step == line["step"])
        expected = [-mask * advantage / tokens for mask in trace.mask[:length]]  # the loss is the mean of all tokens
        assert line["gradient"] == pytest.approx(expected, rel=1e-4, abs=1e-9)
        assert not {"clipped", "cut"} & line.keys()
    assert all(
        0 < turn.waiting_seconds < turn.generation_seconds for episode in episodes.values() for turn in episode.turns
    )
    texts = {token: text for line in lines_of(tmp_path, "tokens") for token, text in line["tokens"].items()}
    assert {str(token) for episode in episodes.values() for token in episode.traces[0].ids} == texts.keys()
    assert "<|im_end|>" in texts.values()
    assert [line["settings"]["loss_type"] for line in lines_of(tmp_path, "settings")] == ["dapo"]


def test_clipped_tokens_are_those_that_the_metrics_count(tmp_path: Path) -> None:
    options = {"num_iterations": 3, "learning_rate": 1e-2, "scale_rewards": "none"}
    trainer = make_trainer(tmp_path, max_steps=3, log_episodes_steps=1, **options)
    trainer.train()
    updates = lines_of(tmp_path, "update")
    clipped, now = 0, []
    for step, logs in enumerate(step_logs(trainer), 1):
        now = [line for line in updates if line["update"] == step]
        clipped = sum(len(line.get("clipped", ())) for line in now)
        tokens = sum(logprob != 0 for line in now for logprob in line["logprobs"])
        assert clipped / tokens == pytest.approx(logs["clip_ratio/region_mean"], abs=1e-6)
    assert clipped
    assert all(line["gradient"][place] == 0 for line in now for place in line.get("clipped", ()))


def test_an_episode_that_does_not_vote_says_why(tmp_path: Path) -> None:
    class Breaks(Buttons):
        @tool(final=True)
        def left(self) -> str:
            """Press the left button."""
            raise BrokenEnvironmentError("the database is down")

    make_trainer(tmp_path, environment=Breaks, max_steps=1, log_episodes_steps=1, max_failure_rate=1.0).train()
    votes = {(line["group"], line["member"]): line["vote"] for line in lines_of(tmp_path, "vote")}
    for _, episode in read_episodes(tmp_path / "episodes.jsonl"):
        vote = votes[episode.spec.group, episode.spec.member]
        assert (vote == "failed") == (episode.failure is not None)
        assert vote in ("failed", "counts", "alone")
    assert "failed" in votes.values()


def test_a_run_that_records_no_episodes_has_no_such_file(tmp_path: Path) -> None:
    make_trainer(tmp_path, max_steps=1).train()
    assert not (tmp_path / "learning.jsonl").exists()


@pytest.mark.parametrize("seed", [1, 2])
def test_the_rest_of_a_round_after_a_resumption_has_no_updates(seed: int, tmp_path: Path) -> None:
    """Its samples come from the checkpoint, and must not be taken for those of a later round."""
    options: dict[str, Any] = {"per_device_train_batch_size": 4, "steps_per_generation": 3, "temperature": 1.5}
    options |= {"gradient_accumulation_steps": 2, "save_strategy": "steps", "save_steps": 1, "seed": seed}
    for checkpoint in (None, str(tmp_path / "checkpoint-1")):
        make_trainer(tmp_path, max_steps=3, log_episodes_steps=1, **options).train(resume_from_checkpoint=checkpoint)
    episodes = {(step, e.spec.group, e.spec.member): e for step, e in read_episodes(tmp_path / "episodes.jsonl")}
    updates = lines_of(tmp_path, "update")
    assert max(line["update"] for line in updates) == 3
    for line in updates:
        trace = episodes[line["step"], line["group"], line["member"]].traces[line["trace"]]
        last = max(place for place, is_sampled in enumerate(trace.mask) if is_sampled)
        assert [place for place, value in enumerate(line["logprobs"]) if value] == [
            place for place, is_sampled in enumerate(trace.mask) if is_sampled
        ]
        assert len(line["logprobs"]) == last + 1


def test_tokens_of_low_entropy_have_no_advantage(tmp_path: Path) -> None:
    make_trainer(tmp_path, max_steps=1, log_episodes_steps=1, top_entropy_quantile=0.2).train()
    [settings] = lines_of(tmp_path, "settings")
    assert settings["settings"]["top_entropy_quantile"] == 0.2
    advantages = {(line["group"], line["member"]): line["advantages"][0] for line in lines_of(tmp_path, "vote")}
    updates = lines_of(tmp_path, "update")
    assert updates
    for line in updates:
        own = advantages[line["group"], line["member"]]
        assert [item != 0 for item in line["gradient"]] == [item != 0 for item in own]
