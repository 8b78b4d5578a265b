"""The comparison of two evaluations, task by task.

Axes: T tasks that both evaluations have played.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ...envs.episode import Episode
from .pass_at_k import half_width, reports_success, success_of

DRAWS = 20_000  # random signs, where there are too many tasks to try all
ALL_SIGNS = 14  # tasks up to which all 2^T signs are tried


def compare(
    first: Sequence[Episode], second: Sequence[Episode], *, success_reward: float | None = None
) -> dict[str, Any]:
    """Return the differences of the second evaluation to the first one, over tasks with the same row.

    Returns:
        `tasks`, and for `pass@1` (where success is defined) and `reward` the two means, their difference with its
        95 % interval, and `p`: how probable so large a difference would be if the two models were the same.

    Raises:
        ValueError: no task is in both.
    """
    has_metric = reports_success([*first, *second])
    measures: dict[str, Callable[[Episode], float | None]] = {
        "pass@1": lambda episode: success_of(episode, success_reward, has_metric=has_metric),
        "reward": lambda episode: episode.reward,
    }
    comparison: dict[str, Any] = {}
    for name, measure in measures.items():
        left, right = _means(first, measure), _means(second, measure)
        shared = [task for task in left if task in right]
        if shared:
            comparison["tasks"] = len(shared)
            left_T, right_T = (np.array([values[task] for task in shared]) for values in (left, right))
            comparison[name] = _difference(left_T, right_T)
    if not comparison:
        raise ValueError("the two evaluations have no task in common: play them with the same rows and the same seed")
    return comparison


def _means(episodes: Sequence[Episode], measure: Callable[[Episode], float | None]) -> dict[str, float]:
    """Return the mean of a measure for each row of which an episode has it."""
    by_row: dict[str, list[float]] = {}
    for episode in episodes:
        value = measure(episode)
        if value is not None:
            by_row.setdefault(_row(episode), []).append(value)
    return {row: float(np.mean(values)) for row, values in by_row.items()}


def _row(episode: Episode) -> str:
    """Return the row's content: a task has the same in both evaluations, whatever its place."""
    task = episode.spec.task
    return json.dumps([task.row, None if task.row else task.seed], sort_keys=True, default=str)


def _difference(left_T: np.ndarray, right_T: np.ndarray) -> dict[str, float | None]:
    """Return the row of one measure. One task gives no interval: its ends are None."""
    difference_T = right_T - left_T
    mean, half = float(difference_T.mean()), half_width(difference_T)
    return {
        "first": float(left_T.mean()),
        "second": float(right_T.mean()),
        "difference": mean,
        "low": None if half is None else mean - half,
        "high": None if half is None else mean + half,
        "p": sign_flip_test(difference_T),
    }


def sign_flip_test(difference_T: np.ndarray) -> float:
    """Return the p-value, on both sides, of a paired permutation test of a mean difference of zero.

    If the two models were the same, each task's difference would be as probable with the other sign. The p-value is the
    share of signs under which the mean is at least as far from zero as it is: of all 2^T signs where there are few
    tasks, else of random ones, to which the observed signs are added, so that it is never 0.
    """
    tasks = len(difference_T)
    if tasks <= ALL_SIGNS:
        signs_NT = 1 - 2 * ((np.arange(2**tasks)[:, None] >> np.arange(tasks)) & 1)
    else:
        drawn_NT = np.random.default_rng(0).choice([-1, 1], size=(DRAWS - 1, tasks))
        signs_NT = np.concatenate([np.ones((1, tasks), dtype=drawn_NT.dtype), drawn_NT])
    sums_N = np.abs(signs_NT @ difference_T)
    return float((sums_N >= abs(difference_T.sum()) - 1e-9).mean())
