"""pass@k of an evaluation: its estimator, its confidence interval, and its success."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gymnast.envs import tool
from gymnast.records.evaluations.pass_at_k import confidence_interval, pass_at_k

from .buttons import Buttons, ScriptedGenerator, call_ids, make_trainer

LEFT_AND_RIGHT = [{"good": "left"}, {"good": "left"}, {"good": "left"}, {"good": "right"}]


@pytest.mark.parametrize("successes", range(6))
@pytest.mark.parametrize("k", [1, 2, 4, 5])
def test_the_estimator_is_the_share_of_draws_with_a_success(successes: int, k: int) -> None:
    episodes = [True] * successes + [False] * (5 - successes)
    draws = [any(draw) for draw in itertools.combinations(episodes, k)]
    assert pass_at_k(5, successes, k) == pytest.approx(sum(draws) / len(draws))


def test_the_interval_of_equal_shares_is_wilsons() -> None:
    low, high = confidence_interval(np.ones(10), most=80)
    assert (low, high) == (pytest.approx(0.7225, abs=1e-4), pytest.approx(1))
    assert confidence_interval(np.zeros(10), most=80) == (pytest.approx(0), pytest.approx(0.2775, abs=1e-4))


def test_the_interval_does_not_jump_where_all_shares_are_equal() -> None:
    shares_T = np.full(20, 0.5)
    equal = confidence_interval(shares_T, most=160)
    shares_T[0] += 1e-4
    assert equal == pytest.approx(confidence_interval(shares_T, most=160), abs=1e-4)
    assert equal == pytest.approx((0.4235, 0.5765), abs=1e-4)


def test_the_interval_holds_the_truth_in_some_95_of_100_evaluations() -> None:
    """20 tasks of 8 episodes, whose difficulties differ uniformly."""
    draws = np.random.default_rng(0)
    held = 0
    for _ in range(400):
        shares_T = draws.binomial(8, draws.uniform(size=20)) / 8
        low, high = confidence_interval(shares_T, most=160)
        held += low <= 0.5 <= high
    assert 0.92 <= held / 400 <= 0.98


def evaluated(folder: Path, *, fails: bool = False, **options: Any) -> dict[str, float]:
    """An agent that always presses the left button, on four tasks of four episodes."""

    def answer(request: Any) -> list[int]:
        if fails and request.seed % 2:
            raise RuntimeError("no luck")
        return call_ids("left")

    options = {"num_generations_eval": 4, "eval_rows": LEFT_AND_RIGHT, "max_failure_rate": 1.0} | options
    return make_trainer(folder, generator=ScriptedGenerator(answer), **options).evaluate()


def test_an_evaluation_tells_pass_at_each_power_of_two(tmp_path: Path) -> None:
    metrics = evaluated(tmp_path)
    names = {name for name in metrics if "pass@" in name}
    assert names == {f"eval_pass@{k}{end}" for k in (1, 2, 4) for end in ("", "/low", "/high")}
    assert [metrics[f"eval_pass@{k}"] for k in (1, 2, 4)] == [0.75] * 3
    assert 0.2 < metrics["eval_pass@1/low"] < 0.75 < metrics["eval_pass@1/high"] < 1


def test_failed_episodes_are_not_part_of_it(tmp_path: Path) -> None:
    metrics = evaluated(tmp_path, fails=True)
    assert 0 < metrics["eval_episodes/failed"] < 16
    assert metrics["eval_pass@1"] == 0.75  # a mean over tasks, each with its remaining episodes


class Quiet(Buttons):
    """Gives rewards, and reports no success."""

    @tool(final=True)
    def left(self) -> str:
        """Press the left button."""
        self.reward = 0.5 * (self.good == "left")
        return "done"


@pytest.mark.parametrize(("success_reward", "passed"), [(None, None), (0.5, 0.75), (0.6, 0.0)])
def test_a_reward_is_a_success_where_there_is_no_metric(
    success_reward: float | None, passed: float | None, tmp_path: Path
) -> None:
    metrics = evaluated(tmp_path, environment=Quiet, success_reward=success_reward)
    assert metrics.get("eval_pass@2") == passed


def test_several_environments_have_metrics_of_their_own(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [{"environment": "buttons", **row} for row in LEFT_AND_RIGHT]
    rows += [{"environment": "quiet", "good": "right"}] * 2
    both = {"environment": {"buttons": Buttons, "quiet": Quiet}, "rows": rows, "eval_rows": rows}
    metrics = evaluated(tmp_path, **both)
    assert metrics["eval_environments/buttons/pass@4"] == metrics["eval_environments/buttons/reward"] == 0.75
    assert metrics["eval_environments/buttons/environment/success"] == 0.75
    assert metrics["eval_environments/buttons/turns/mean"] == 1
    assert metrics["eval_environments/quiet/reward"] == 0
    assert metrics["eval_environments/quiet/frac_reward_zero_std"] == 1
    assert "eval_environments/quiet/pass@1" not in metrics
    assert metrics["eval_pass@4"] == 0.75  # of the environment in which success is defined
    metrics = evaluated(tmp_path, success_reward=0.5, **both)
    assert metrics["eval_environments/quiet/pass@4"] == 0
    assert metrics["eval_pass@4"] == 0.5
