"""Evaluation during and outside training, and the best model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gymnast.envs import tool
from gymnast.trainer import AgentTrainer

from .buttons import ROWS, Buttons, config, make_trainer
from .inspecting import BOTH


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


def test_a_greedy_evaluation_plays_each_task_once(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, eval_rows=ROWS)
    greedy = trainer.evaluate(temperature=0)
    assert greedy["eval_episodes/played"] == len(ROWS)
    assert [name for name in greedy if "pass@" in name and "/" not in name] == ["eval_pass@1"]
    trainer.config.num_generations_eval = 2
    with pytest.warns(UserWarning, match="an evaluation at temperature 0 plays 2 equal episodes of each task"):
        assert trainer.evaluate(temperature=0)["eval_episodes/played"] == 2 * len(ROWS)
    with pytest.warns(
        UserWarning, match="an evaluation at temperature 0 plays 8 equal episodes of each task"
    ) as caught:
        make_trainer(tmp_path, eval_temperature=0, num_generations_eval=8)
    assert len(caught) == 1


def test_evaluation_does_not_depend_on_other_episodes(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, eval_rows=ROWS, num_generations_eval=3)
    first, again = trainer.evaluate(), trainer.evaluate()
    names = [name for name in first if not name.startswith(("eval_time", "eval_runtime", "eval_tools"))]
    assert {name: first[name] for name in names} == {name: again[name] for name in names}
    alone = trainer.rollout(ROWS[:1], num_generations=3)
    together = trainer.rollout(ROWS, num_generations=3)
    tokens = [episode.traces[0].completion_ids for episode in together]
    assert [answer.traces[0].completion_ids for answer in alone] == tokens[:3]


def test_several_evaluation_sets(tmp_path: Path) -> None:
    sets = {"left": [{"good": "left"}], "none": [{"good": "neither"}] * 3}
    trainer = make_trainer(tmp_path, eval_rows=sets)
    metrics = trainer.evaluate()
    assert metrics["eval_none_reward"] == 0
    assert metrics["eval_none_episodes/played"] == 12
    assert metrics["eval_left_episodes/played"] == 4
    assert trainer.evaluate("left")["eval_episodes/played"] == 4


def test_the_best_model_is_loaded_at_the_end(tmp_path: Path) -> None:
    """The learning rate is so large that the policy breaks soon after the first evaluation."""
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


def test_the_best_model_has_the_highest_reward_by_default(tmp_path: Path) -> None:
    args = config(
        tmp_path, load_best_model_at_end=True, eval_strategy="steps", save_strategy="steps", eval_steps=1, save_steps=1
    )
    assert (args.metric_for_best_model, args.greater_is_better) == ("reward", True)


@pytest.mark.parametrize(
    "options",
    [
        {"load_best_model_at_end": True},
        {"save_strategy": "best"},
        *({"lr_scheduler_type": scheduler} for scheduler in ("reduce_lr_on_plateau", "greedy")),
    ],
)
def test_the_best_of_several_data_sets_needs_a_metric_of_one(options: dict[str, Any], tmp_path: Path) -> None:
    common: dict[str, Any] = {"eval_strategy": "steps", "eval_steps": 1, "save_strategy": "steps", "save_steps": 1}
    common |= {"eval_rows": {"easy": ROWS[:2], "hard": ROWS[2:]}, "max_steps": 1, **options}
    with pytest.raises(
        ValueError, match=r"'reward' is a metric of no data set.*choose one of 'easy_reward', 'hard_rew"
    ):
        make_trainer(tmp_path, **common)
    make_trainer(tmp_path, metric_for_best_model="easy_reward", **common).train()


class ReportsOnlySuccess(Buttons):
    """Has the metric `success` only where an episode succeeds, and no episode does."""

    @tool(final=True)
    def left(self) -> str:
        """Press the left button."""
        self.reward = 0.0
        return "done"

    @tool(final=True)
    def right(self) -> str:
        """Press the right button."""
        return self.left()


def test_a_best_metric_that_no_episode_has_is_named_at_the_first_evaluation(tmp_path: Path) -> None:
    rows = [{"good": "neither"}]
    trainer = make_trainer(
        tmp_path,
        environment=ReportsOnlySuccess(),
        rows=rows,
        eval_rows=rows,
        eval_strategy="steps",
        eval_steps=1,
        save_strategy="best",
        metric_for_best_model="environment/success",
    )
    with pytest.raises(KeyError, match=r"'eval_environment/success', which is not found .*'eval_reward'"):
        trainer.train()
