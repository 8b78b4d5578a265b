"""The comparison of two evaluations, task by task.

Axes: T tasks that both evaluations have played.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ...envs.episode import Episode
from ...records.evaluations.pass_at_k import Z95, reports_success, successes_by_task
from ..terminal.exits import CommandError
from ..terminal.output import print_table

DRAWS = 20_000  # random signs, where there are too many tasks to try all
ALL_SIGNS = 14  # tasks up to which all 2^T signs are tried


def compare(
    first: Sequence[Episode], second: Sequence[Episode], *, success_reward: float | None = None
) -> dict[str, Any]:
    """The differences of the second evaluation to the first one, over tasks with the same row.

    Returns:
        `tasks`, and for `pass@1` (where success is defined) and `reward` the two means, their difference with its
        95 % interval, and `p`: how probable so large a difference would be if the two models were the same.

    Raises:
        CommandError: no task is in both.
    """
    has_metric = reports_success(first) or reports_success(second)
    measures: dict[str, Callable[[Sequence[Episode]], dict[str, float]]] = {
        "pass@1": lambda episodes: _pass_rates(episodes, success_reward, has_metric),
        "reward": _rewards,
    }
    comparison: dict[str, Any] = {}
    for name, measure in measures.items():
        left, right = measure(first), measure(second)
        shared = [task for task in left if task in right]
        if shared:
            comparison["tasks"] = len(shared)
            left_T, right_T = (np.array([each[task] for task in shared]) for each in (left, right))
            comparison[name] = _difference(left_T, right_T)
    if not comparison:
        raise CommandError("the two evaluations have no task in common: play them with the same --tasks and --seed")
    return comparison


def _pass_rates(episodes: Sequence[Episode], success_reward: float | None, has_metric: bool) -> dict[str, float]:
    rows = {episode.spec.group: _row(episode) for episode in episodes}
    outcomes = successes_by_task(episodes, success_reward, has_metric=has_metric)
    return _means([(rows[group], float(success)) for group, each in outcomes.items() for success in each])


def _rewards(episodes: Sequence[Episode]) -> dict[str, float]:
    return _means([(_row(each), each.reward) for each in episodes if each.reward is not None])


def _means(values: Sequence[tuple[str, float]]) -> dict[str, float]:
    by_row: dict[str, list[float]] = {}
    for row, value in values:
        by_row.setdefault(row, []).append(value)
    return {row: float(np.mean(each)) for row, each in by_row.items()}


def _row(episode: Episode) -> str:
    """The row's content: a task has the same in both evaluations, whatever its place."""
    task = episode.spec.task
    return json.dumps([task.row, None if task.row else task.seed], sort_keys=True, default=str)


def _difference(left_T: np.ndarray, right_T: np.ndarray) -> dict[str, float | None]:
    """One task gives no interval: its ends are None."""
    difference_T = right_T - left_T
    mean, tasks = float(difference_T.mean()), len(difference_T)
    half = Z95 * float(difference_T.std(ddof=1)) / math.sqrt(tasks) if tasks > 1 else None
    return {
        "first": float(left_T.mean()),
        "second": float(right_T.mean()),
        "difference": mean,
        "low": None if half is None else mean - half,
        "high": None if half is None else mean + half,
        "p": sign_flip_test(difference_T),
    }


def sign_flip_test(difference_T: np.ndarray) -> float:
    """The p-value, on both sides, of a paired permutation test of a mean difference of zero.

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


def print_comparison(comparison: dict[str, Any], first: str, second: str) -> None:
    """Print a comparison for people."""
    rows = [
        (
            name,
            f"{each['first']:.3f}",
            f"{each['second']:.3f}",
            f"{each['difference']:+.3f}",
            "-" if each["low"] is None else f"{each['low']:+.3f} to {each['high']:+.3f}",
            f"{each['p']:.2g}",
        )
        for name, each in comparison.items()
        if name != "tasks"
    ]
    headings = ("", "first", "second", "difference", "95 % interval", "p")
    print_table(rows, headings=headings, title=f"{comparison['tasks']} tasks; first: {first}, second: {second}")
