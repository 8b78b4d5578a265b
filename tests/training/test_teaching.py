"""Which episodes of a round teach, which count only in the baseline, and the penalty of a long one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from trl.rewards import get_soft_overlong_punishment

from gymnast.envs import Episode
from gymnast.trainer import GRPOTrainer

from .buttons import Gradients, ScriptedGenerator, call_ids, make_trainer
from .inspecting import KeepsBatches, step_logs


@pytest.mark.parametrize("treatment", ["teach", "mask", "leave"])
def test_each_stop_reason_has_its_treatment(treatment: str, tmp_path: Path) -> None:
    """Episodes that look in their only turn are truncated, and rewarded with 3 instead of 1."""
    generator = ScriptedGenerator(lambda request: call_ids("look" if request.seed % 2 else "left"))
    kept: list[Episode] = []

    def looked(episodes: list[Episode], **columns: Any) -> list[float]:
        return [3.0 * (episode.tool_calls[0].name == "look") for episode in episodes]

    class Keeps(KeepsBatches):
        def on_episodes(self, episodes: Any) -> None:
            kept.extend(episodes)

    truncated = {"max_turns": treatment, "max_tokens": "leave"}  # no episode ends by max_tokens
    options: dict[str, Any] = {"truncated": truncated, "max_turns": 1, "scale_rewards": "none"}
    trainer = make_trainer(tmp_path, Keeps, generator=generator, reward_funcs=looked, **options)
    trainer.train()
    [batch] = trainer.batches  # type: ignore[attr-defined]
    rewards: dict[str, list[float]] = {}
    for episode in kept:
        if treatment != "leave" or not episode.stop.is_truncation:
            assert episode.reward is not None
            rewards.setdefault(episode.spec.group, []).append(episode.reward)
    expected = [
        episode.reward - sum(rewards[episode.spec.group]) / len(rewards[episode.spec.group])
        for episode in kept
        if episode.reward is not None and (treatment == "teach" or not episode.stop.is_truncation)
    ]
    assert 0 < step_logs(trainer)[0]["stop/max_turns"] < 1
    if treatment == "leave":  # the remaining episodes have equal rewards
        assert not batch["mask"].any()
    else:
        advantages = batch["advantages"].flatten().unique().tolist()
        assert sorted({*advantages} - {0.0}) == pytest.approx(sorted({*expected} - {0.0}))
        assert len(batch["mask"]) == len([item for item in expected if item])


@pytest.mark.parametrize("treatment", ["mask", "leave"])
def test_a_round_of_truncated_episodes_teaches_nothing(
    treatment: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    kept = Gradients()
    trainer = make_trainer(
        tmp_path,
        generator=ScriptedGenerator(lambda request: call_ids("look")),
        reward_funcs=lambda episodes, **columns: [float(index) for index in range(len(episodes))],
        truncated=treatment,
        callbacks=[kept],
    )
    trainer.train()
    assert step_logs(trainer)[0]["rounds/skipped"] == 1
    assert all(not gradient.any() for gradient in kept.steps[0].values())
    assert f"8 of 8 episodes ended by max_turns, and the option `truncated` says '{treatment}'" in caplog.text


def test_a_round_that_the_correction_rejects_warns(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The scripted log-probabilities are far from the model's."""
    generator = ScriptedGenerator(lambda request: call_ids("look" if request.seed % 2 else "left"))
    trainer = make_trainer(tmp_path, generator=generator, correction="geometric_mask")
    trainer.train()
    assert "so it is skipped: the correction rejected 100% of the episodes" in caplog.text


def test_the_reward_falls_in_the_last_tokens_of_the_limit(tmp_path: Path) -> None:
    """Compared with TRL's reward function of the same formula."""
    kept: list[Episode] = []

    class Keeps(GRPOTrainer):
        def on_episodes(self, episodes: Any) -> None:
            kept.extend(episodes)

    options: dict[str, Any] = {"overlong_buffer": 30, "overlong_penalty": 0.5, "max_completion_length": 40}
    trainer = make_trainer(tmp_path, Keeps, **options)
    trainer.train()
    lengths = [episode.traces[0].completion_ids for episode in kept]
    expected = get_soft_overlong_punishment(40, 30)(completion_ids=lengths)
    assert len({*expected}) > 1
    assert [episode.reward_parts["overlong_penalty"] for episode in kept] == pytest.approx([0.5 * x for x in expected])
    rewards = [sum(part or 0.0 for part in episode.reward_parts.values()) for episode in kept]
    assert [episode.reward for episode in kept] == pytest.approx(rewards)
    mean = step_logs(trainer)[0]["rewards/overlong_penalty/mean"]
    assert mean == pytest.approx(0.5 * sum(expected) / len(expected))
