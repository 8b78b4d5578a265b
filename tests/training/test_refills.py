"""Groups without spread of reward are replaced by groups of other tasks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from gymnast.envs import Episode, StopReason, Turn
from gymnast.envs.engine.rollout_engine import episode_specs
from gymnast.trainer import GRPOTrainer
from gymnast.trainer.learning.comparison import BY_REWARD, Comparison
from gymnast.trainer.run_log.metrics import weighted_metrics

from .buttons import ROWS, ScriptedGenerator, call_ids, make_trainer
from .inspecting import KeepsBatches, step_logs
from .test_resume import state_of, trainer_of

NEITHER = {"good": "neither"}  # no answer is right, so all rewards are 0


def either(request: Any) -> list[int]:
    return call_ids("left" if request.seed % 2 else "right")


def refilled(folder: Path, rows: Any, **options: Any) -> tuple[Any, list[Episode]]:
    """A trainer that has trained one step of two groups, and all episodes that it played."""
    kept: list[Episode] = []

    class Keeps(KeepsBatches):
        def on_episodes(self, episodes: Any) -> None:
            kept.extend(episodes)

    trainer = make_trainer(
        folder, Keeps, rows=rows, generator=ScriptedGenerator(either), shuffle_dataset=False, **options
    )
    trainer.train()
    return trainer, kept


def test_groups_without_spread_are_replaced(tmp_path: Path) -> None:
    trainer, episodes = refilled(tmp_path, [NEITHER, ROWS[0], NEITHER, ROWS[0], ROWS[0], ROWS[0]], max_refills=5)
    groups = list(dict.fromkeys(episode.spec.group for episode in episodes))
    assert groups == ["train-0@0", "train-1@0", "train-2@0/refill-0", "train-4@0/refill-0"]
    [logs] = step_logs(trainer)
    assert (logs["groups/refilled"], logs["groups/replaced"]) == (2, 1)
    [batch] = trainer.batches
    assert len(batch["mask"]) == 8
    assert batch["advantages"].any(dim=1).all()
    # The metrics are over all episodes that were played.
    assert logs["episodes/played"] == len(episodes) == 16
    assert logs["reward"] == sum(episode.reward or 0.0 for episode in episodes) / 16


def test_refills_have_an_end(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    trainer, episodes = refilled(tmp_path, [NEITHER], max_refills=2, max_steps=5)
    logs = step_logs(trainer)
    assert [(log["groups/refilled"], log["groups/replaced"], log["episodes/played"]) for log in logs] == [
        (4, 0, 24)
    ] * 5
    assert len({(episode.spec.group, episode.spec.member) for episode in episodes}) == len(episodes) == 5 * 24
    assert len({episode.spec.seed for episode in episodes}) == len(episodes)
    assert not any(batch["mask"].any() for batch in trainer.batches)
    assert "no group has had spread for 5 rounds, so nothing is learned: all rewards of the last round were 0" in (
        caplog.text
    )


def test_a_resumed_training_refills_with_the_same_tasks(tmp_path: Path) -> None:
    options = {"max_refills": 2, "num_generations": 2, "per_device_train_batch_size": 4}
    whole = trainer_of(GRPOTrainer, tmp_path, **options)
    whole.train()
    rest = trainer_of(GRPOTrainer, tmp_path / "resumed", **options)
    rest.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    assert rest.played == whole.played[2:]
    assert any("/refill-" in name for _, names in rest.played for name in names)
    expected = state_of(whole)
    assert not [name for name, value in state_of(rest).items() if not torch.equal(value, expected[name])]


def test_spread_between_groups_is_enough_where_they_are_compared(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Each group has equal rewards, 1 in one and 0 in the other, and `reinforce++` learns from that."""
    trainer = make_trainer(
        tmp_path,
        rows=[NEITHER, ROWS[0]],
        generator=ScriptedGenerator(lambda request: call_ids("left")),
        advantage_estimator="reinforce++",
        scale_rewards="none",
        max_steps=5,
    )
    trainer.train()
    assert all(logs["grad_norm"] > 0 and logs["frac_reward_zero_std"] == 1 for logs in step_logs(trainer))
    assert "no group has had spread" not in caplog.text


def test_with_credit_for_turns_equal_rewards_may_have_spread() -> None:
    """Both episodes have reward 1, one for its first turn and one for its second."""
    group = [
        Episode(
            spec=item,
            reward=1.0,
            stop=StopReason.FINAL_ANSWER,
            turns=[Turn(message={"role": "assistant"}, reward=reward) for reward in rewards],
        )
        for item, rewards in zip(episode_specs([{}], group_size=2, seed=0), [(1.0, 0.0), (0.0, 1.0)], strict=True)
    ]
    by_turn = Comparison(credit="turn").has_spread
    assert not BY_REWARD.has_spread(group)
    for spreads, share in ((BY_REWARD.has_spread, 1.0), (by_turn, 0.0)):
        metrics = {
            name: sample for _, part in weighted_metrics(group, spreads=spreads) for name, sample in part.items()
        }
        assert metrics["frac_reward_zero_std"] == share
    assert by_turn(group)
