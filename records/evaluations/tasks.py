"""The outcomes of an evaluation's tasks: which ones are never solved, and which always."""

from __future__ import annotations

from collections.abc import Sequence

from ...envs.runtime.message_text import cut
from ..files.episodes import EpisodeRow

SHOWN = 60  # characters of a question


def tasks_line(rows: Sequence[EpisodeRow]) -> str:
    """Return how many tasks all of these episodes solve, and how many none, with the first ones; empty if not known.

    An episode solves its task if its metric `success` is 1, or, where no episode has the metric, if it has the highest
    of all rewards, provided that some episodes have a lower one.
    """
    rows = [row for row in rows if row.failure is None]
    reports = any(row.success is not None for row in rows)
    rewards = [row.reward for row in rows if row.reward is not None]
    if not rows or not (reports or len({*rewards}) > 1):
        return ""
    by_task: dict[tuple[str | None, str], list[bool]] = {}
    questions = {}
    for row in rows:
        solved = (row.success or 0.0) >= 1 if reports else row.reward == max(rewards)
        by_task.setdefault((row.evaluation, row.group), []).append(solved)
        questions[row.evaluation, row.group] = row.question or row.task
    never = [task for task, outcomes in by_task.items() if not any(outcomes)]
    line = f"{sum(map(all, by_task.values()))} of {len(by_task)} tasks are always solved, {len(never)} never"
    names = ", ".join(repr(cut(questions[task], SHOWN)) for task in never[:3])
    return f"{line}: {names}" + ", ..." * (len(never) > 3) if never else line
