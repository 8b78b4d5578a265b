"""pass@k: the share of tasks that one of k episodes solves, with its confidence interval.

Axes: T tasks.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from ...envs.episode import Episode

Z95 = 1.959964
"""Half the width of a 95 % interval, in standard errors of a normal distribution."""


def reports_success(episodes: Iterable[Episode]) -> bool:
    """Return whether one of these episodes, all of one environment, has the metric `success`; it is 0 in the others."""
    return any("success" in episode.metrics for episode in episodes if was_played(episode))


def was_played(episode: Episode) -> bool:
    """Return whether an episode counts in pass@k: it did not fail, and its prompt was not too long."""
    return not (episode.stop.is_failure or episode.is_overlong)


def success_of(episode: Episode, success_reward: float | None, *, has_metric: bool) -> bool | None:
    """Return whether an episode succeeded; None if it does not count, or success is not defined.

    An episode is a success if its environment's metric `success` is 1, or, where the environment has no such metric, if
    its reward is at least `success_reward`.
    """
    if not was_played(episode) or not (has_metric or success_reward is not None):
        return None
    if has_metric:  # an episode that was cut before its environment set the metric has not succeeded
        return episode.metrics.get("success", 0.0) >= 1
    return episode.reward is not None and success_reward is not None and episode.reward >= success_reward


def successes_by_task(
    episodes: Sequence[Episode], success_reward: float | None = None, *, has_metric: bool | None = None
) -> dict[str, list[bool]]:
    """Return whether the episodes of each group that count succeeded; empty if success is not defined.

    By default `has_metric` is whether one of these episodes has the metric.
    """
    has_metric = reports_success(episodes) if has_metric is None else has_metric
    outcomes: dict[str, list[bool]] = defaultdict(list)
    for episode in episodes:
        success = success_of(episode, success_reward, has_metric=has_metric)
        if success is not None:
            outcomes[episode.spec.group].append(success)
    return outcomes


def pass_at_each_k(outcomes: Sequence[Sequence[bool]]) -> Iterator[tuple[str, float]]:
    """Yield names and values of `pass@k`, `pass@k/low` and `pass@k/high` for k = 1, 2, 4, ...

    Args:
        outcomes: For each task, the successes of its episodes. A task with fewer than k episodes is not in `pass@k`.
    """
    k = 1
    while counted := [(len(task), sum(task)) for task in outcomes if len(task) >= k]:
        passes_T = np.array([pass_at_k(episodes, successes, k) for episodes, successes in counted])
        low, high = confidence_interval(passes_T, most=sum(episodes // k for episodes, _ in counted))
        yield f"pass@{k}", float(passes_T.mean())
        yield f"pass@{k}/low", low
        yield f"pass@{k}/high", high
        k *= 2


def pass_at_k(episodes: int, successes: int, k: int) -> float:
    """Return the probability that a success is among k of these episodes, drawn without replacement.

    As an estimate for newly sampled episodes it is unbiased (Chen et al. 2021, arXiv 2107.03374, equation 1), unlike
    1 - (1 - successes / episodes)^k.
    """
    return 1.0 - math.comb(episodes - successes, k) / math.comb(episodes, k)


def half_width(values_T: np.ndarray) -> float | None:
    """Return half the width of a 95 % interval of the mean over tasks; None for a single task."""
    return Z95 * float(values_T.std(ddof=1)) / math.sqrt(len(values_T)) if len(values_T) > 1 else None


def confidence_interval(shares_T: np.ndarray, *, most: int) -> tuple[float, float]:
    """Return a 95 % interval of the mean of shares in [0, 1], one a task, over the tasks that could have been drawn.

    The episodes of a task are alike, so tasks are the independent samples. Wilson's score interval, since it stays in
    [0, 1] and has a width where all shares are 0 or 1; its number of samples is the number of independent yes-or-no
    samples whose mean would have the standard error that the shares have, at least T and at most `most`. It is T where
    the shares tell nothing of their spread: there is one, or all are 0, or all are 1.
    """
    tasks, mean = len(shares_T), float(shares_T.mean())
    samples: float = tasks
    if tasks > 1 and 0 < mean < 1:
        variance = float(shares_T.var(ddof=1)) / tasks
        samples = max(tasks, mean * (1 - mean) / max(variance, mean * (1 - mean) / most))
    centre = (mean + Z95**2 / (2 * samples)) / (1 + Z95**2 / samples)
    half = Z95 / (1 + Z95**2 / samples) * math.sqrt(mean * (1 - mean) / samples + Z95**2 / (4 * samples**2))
    return max(centre - half, 0.0), min(centre + half, 1.0)
