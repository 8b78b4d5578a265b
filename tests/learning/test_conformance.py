"""Episodes that left have no influence, with every loss and estimator; the suite finds wrong ones."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from gymnast.envs.episode import Episode
from gymnast.trainer import ESTIMATORS, LOSSES, Estimator, conformance
from gymnast.trainer.learning.losses import StepCounts
from gymnast.trainer.learning.settings import LearningSettings


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("loss_type", LOSSES)
def test_episodes_that_left_have_no_influence(loss_type: str, estimator: str) -> None:
    assert conformance.check(loss_type=loss_type, advantage_estimator=estimator) == []


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_turns_of_episodes_that_left_have_no_influence(estimator: str) -> None:
    assert conformance.check(advantage_estimator=estimator, credit="turn") == []


@pytest.mark.parametrize(
    "changes",
    [
        {"entropy_coef": 0.1},
        {"top_entropy_quantile": 0.3},
        {"delta": 1.5},
        {"beta": 0.1},
        {"beta": 0.1, "use_bias_correction_kl": True},
        {"beta": 0.1, "kl_in": "reward"},
    ],
    ids=str,
)
def test_episodes_that_left_have_no_influence_with_further_terms(changes: dict[str, Any]) -> None:
    changed = conformance.SETTINGS.changed(**changes)
    usual, other = (
        conformance.step_gradient(conformance.make_round(), item) for item in (conformance.SETTINGS, changed)
    )
    assert not torch.allclose(usual, other)
    assert conformance.check(**changes) == []


def test_the_gradients_that_are_compared_are_not_zero() -> None:
    for members in (2, 4):
        gradient = conformance.step_gradient(conformance.make_round(members=members), conformance.SETTINGS)
        assert gradient.abs().max() > 1e-3


@pytest.fixture
def wrong_loss() -> Iterator[str]:
    def mean_of_rows(terms: Tensor, mask: Tensor, counts: StepCounts, settings: LearningSettings) -> Tensor:
        return terms.sum(dim=1).mean()  # over all rows of the micro-batch

    LOSSES["wrong"] = replace(LOSSES["grpo"], reduce=mean_of_rows)
    yield "wrong"
    del LOSSES["wrong"]


def test_a_loss_that_counts_rows_without_tokens_is_found(wrong_loss: str) -> None:
    assert "a row without loss tokens has an influence" in conformance.check(loss_type=wrong_loss)


@pytest.fixture
def wrong_estimator() -> Iterator[str]:
    seen: list[Tensor] = []

    def running_mean(rewards_G: Tensor) -> Tensor:
        seen.append(rewards_G)
        return rewards_G - torch.cat(seen).mean()

    ESTIMATORS["wrong"] = Estimator(advantage=running_mean)
    yield "wrong"
    del ESTIMATORS["wrong"]


def test_an_estimator_that_remembers_other_rounds_is_found(wrong_estimator: str) -> None:
    assert conformance.check(advantage_estimator=wrong_estimator)


def test_a_pipeline_that_scores_failures_as_zero_is_found() -> None:
    def zero(episodes: Sequence[Episode], settings: LearningSettings) -> Tensor:
        scored = [replace(episode, reward=0.0) if episode.failure is not None else episode for episode in episodes]
        return conformance.step_gradient(scored, settings)

    faults = conformance.check(gradient=zero)
    assert any("because it failed" in fault for fault in faults)
    assert not any("has no reward" in fault for fault in faults)
