"""The metrics of an evaluation: those of its episodes, and pass@k with confidence intervals."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

from ...envs.episode import Episode
from ...records.evaluations.pass_at_k import pass_at_each_k, successes_by_task
from ...records.metrics.missing_metrics import SUCCESS, MissingMetrics
from .metrics import NameOf, by_environment, episode_metrics


def evaluation_metrics(
    episodes: Sequence[Episode],
    environment_of: NameOf | None = None,
    *,
    success_reward: float | None = None,
    missing: MissingMetrics | None = None,
) -> dict[str, float]:
    """Return `episode_metrics`, and `pass@k` of all episodes and of each environment where there are several.

    `pass@k` for k = 1, 2, 4, ... up to the episodes of a task is the share of tasks that one of k episodes solves, with
    its 95 % confidence interval `pass@k/low` to `pass@k/high`. A task with fewer than k episodes that did not fail is
    not part of it, and neither is one of an environment in which success is not defined.
    """
    metrics = episode_metrics(episodes, environment_of, missing)

    def outcomes_of(own: Sequence[Episode], beginning: str) -> list[list[bool]]:
        return [*successes_by_task(own, success_reward, has_metric=beginning + SUCCESS in metrics).values()]

    environments = by_environment(episodes, environment_of)
    outcomes = {name: outcomes_of(own, f"environments/{name}/") for name, own in environments.items()}
    for name, own_outcomes in outcomes.items():
        metrics |= {f"environments/{name}/{key}": value for key, value in pass_at_each_k(own_outcomes)}
    known = [*chain(*outcomes.values())] if environments else outcomes_of(episodes, "")
    return metrics | dict(pass_at_each_k(known))
