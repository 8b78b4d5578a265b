"""The answer to "why is my reward what it is?" in at most ten lines, the likeliest cause first."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from ...envs.runtime.message_text import cut
from ..evaluations.tasks import tasks_line
from ..files.episodes import EpisodeRow
from ..files.run import Run
from ..metrics.evaluation_logs import EvaluationLog
from .alarms import Alarm, find_alarms, spread
from .causes import Cause, alike, likely_causes
from .trends import has_converged, latest

MOST_LINES = 10
SHOWN = 120  # characters of an answer

NO_EPISODES = "no episode is recorded: set log_episodes_steps=1 in the configuration, and more can be said"

NOT_YET = "no episode is recorded yet: gymnast eval with --resume plays those that are missing"

OF_THE_UPDATE = ("rejected", "sample size")
"""Kinds of alarms that explain a reward that does not rise, whatever the episodes are like."""


class Explanation(NamedTuple):
    """The likeliest reason for the curve of the reward."""

    reason: str
    episode: int | None  # the place in `Run.episodes` of one that shows it; None without episodes
    cause: Cause | None  # the reason in the latest episodes, if it is there
    alarms: list[Alarm]  # of the run


def why_lines(run: Run) -> list[str]:
    """Return the reason for the curve of a run that was read, its state, and its alarms: at most ten lines."""
    rows, explained = run.latest(), explain(run)
    place, shown = explained.episode, ""
    if place is not None:
        shown = f"; see {run.folder}/view.html#episode={place}, which gymnast view {run.folder} writes"
    about = [tasks_line(rows)] if run.is_evaluation else [_missing(run), _evaluations(run)]
    missing = NOT_YET if run.is_evaluation else NO_EPISODES
    state = [*filter(None, [*about, *(_episodes(rows, run) if rows else [missing]), _answer(run, place)])]
    alarms = [alarm for alarm in explained.alarms if not _says_the_same(alarm, explained.cause)]
    others = [f"! {alarm.title}. {alarm.cause}" for alarm in alarms]
    return [f"{run.folder}: {explained.reason}{shown}", *state, *others[: MOST_LINES - len(state) - 1]]


def explain(run: Run) -> Explanation:
    """Return the likeliest reason for the curve of a run that was read, and the episode that shows it best."""
    rows, alarms, [trend, curve] = run.latest(), find_alarms(run), _curve(run)
    rewards = [row.reward for row in rows if row.reward is not None]
    steps = [part for _, part in run.steps()]
    before = steps[0] if trend == "falls" and len(steps) > 1 else []
    causes = (likely_causes(rows, before) or likely_causes(rows)) if rows else []
    cause = causes[0] if causes else None
    of_update = [alarm for alarm in alarms if alarm.kind in OF_THE_UPDATE]
    learns = has_converged(run.metrics)
    if learns:
        cause = None
        reason = "it has risen by more than half its first standard deviation: the run learns, or has learned"
    elif of_update and trend in ("falls", "stays"):
        reason, cause = f"{of_update[0].title}. {of_update[0].cause}", None
    elif cause is not None:
        reason = cause.text + (_slow(run, rows) if trend == "stays" and cause.kind == "answers" else "")
    elif rewards:
        reason = f"every reward is {rewards[0]:g}: the task is solved, or the reward does not look at the answer"
    elif rows:
        reason = "no episode has a reward: nothing rewards them"
    else:
        reason = f"{alarms[0].title}. {alarms[0].cause}" if alarms else "the reason is not known without episodes"
    known = [row for row in rows if row.reward is not None] or rows
    example = (
        cause.example if cause else (max if learns else min)(known, key=lambda row: row.reward or 0.0, default=None)
    )
    place = None if example is None else run.episodes.index(example)
    link = ", but " if trend == "rises" and cause is not None else ": " if curve else ""
    return Explanation(f"{curve}{link}{reason}", place, cause, alarms)


def _slow(run: Run, rows: Sequence[EpisodeRow]) -> str:
    """Return why episodes of which some earn more than others do not raise the reward."""
    with_spread, groups = spread(rows)
    if with_spread <= groups / 2:
        return f"; {with_spread} of {groups} groups have spread, and the others teach nothing"
    rate = "".join(f" (now {rate:.3g})" for rate in latest(run.metrics, "learning_rate", 1))
    return f"; {with_spread} of {groups} groups have spread: give it more steps, or a larger learning_rate{rate}"


def _says_the_same(alarm: Alarm, cause: Cause | None) -> bool:
    """Return whether the first line has named the cause of an alarm."""
    if cause is None or alarm.kind != cause.kind:
        return False
    return all(part in alike(alarm.title) for part in cause.mark.split(": "))


def _curve(run: Run) -> tuple[str, str]:
    """Return how the reward develops (falls, stays or rises), and a text with the numbers; both empty if not known."""
    if run.is_evaluation:
        return "", "; ".join(evaluated(title, logs[-1][1]) for title, logs in run.evaluations.items())
    rewards = [line["reward"] for line in run.metrics if math.isfinite(line.get("reward", math.nan))]
    if not rewards:
        return "", ""
    step = f"step {run.metrics[-1]['step']}, the reward"
    if len(rewards) == 1:
        return "", f"{step} is {rewards[0]:.3g}"
    part = max(1, len(rewards) // 5)
    before, after = (sum(end) / part for end in (rewards[:part], rewards[-part:]))
    trend = "falls" if after < before - 0.01 else "rises" if after > before + 0.01 else "stays"
    return trend, f"{step} {trend} ({before:.3g} -> {after:.3g})"


def evaluated(title: str, log: EvaluationLog) -> str:
    """Return the figures of an evaluation, such as `pass@1 is 25%, the reward 0.3`."""
    metrics, data_set = log.metrics, title.removeprefix("evaluation")
    passed = [f"pass@1{data_set} is {metrics['pass@1']:.0%}"] if "pass@1" in metrics else []
    reward = metrics.get("reward")
    earned = [] if reward is None else [f"the reward{data_set * (not passed)}{' is' * (not passed)} {reward:.3g}"]
    return ", ".join(passed + earned) or f"no episode{data_set} has a reward"


def _missing(run: Run) -> str:
    if not run.metrics:
        return "no metrics are recorded: train with record_run=True, the default"
    return "" if any("reward" in line for line in run.metrics) else "no reward is logged yet"


def _evaluations(run: Run) -> str:
    """Return the reward of each data set's first and latest evaluation."""
    parts = []
    for title, logs in run.evaluations.items():
        rewards = [(step, log.metrics["reward"]) for step, log in logs if "reward" in log.metrics]
        if rewards:
            (_, before), (step, after) = rewards[0], rewards[-1]
            came_from = f"{before:.3g} -> " if len(rewards) > 1 else ""
            parts.append(f"{title}: reward {came_from}{after:.3g} at step {step}")
    return "; ".join(parts)


def _episodes(rows: Sequence[EpisodeRow], run: Run) -> Iterator[str]:
    rewards = [row.reward for row in rows if row.reward is not None]
    zero = sum(reward == 0 for reward in rewards)
    none = len(rows) - len(rewards)
    if run.is_evaluation:
        yield f"{zero} of {len(rows)} episodes have reward 0, {none} have no reward"
    else:
        with_spread, groups = spread(rows)
        yield (
            f"step {rows[0].step}: {zero} of {len(rows)} recorded episodes have reward 0, {none} have no reward; "
            f"{with_spread} of {groups} groups have spread"
        )
    stops = Counter(row.stop for row in rows).most_common(4)
    yield "they end by " + ", ".join(f"{stop} ({count})" for stop, count in stops)
    calls, errors = sum(len(row.tools) for row in rows), sum(len(row.errors) for row in rows)
    tokens = sum(row.tokens for row in rows) / len(rows)
    per_episode = f"tool calls an episode: {calls / len(rows):.2g}, sampled tokens: {tokens:.0f}"
    yield f"{per_episode}; {errors} of {calls} calls failed"


def _answer(run: Run, place: int | None) -> str:
    """Return the right answer of the episode that shows the reason, beside the one that it gave; empty if not known."""
    episode = None if place is None else run.episode(run.episodes[place])
    if episode is None or episode.expected is None:
        return ""
    given = "nothing" if episode.given is None else repr(cut(episode.given, SHOWN))
    return f"episode {place}: {given} was given, {cut(episode.expected, SHOWN)!r} expected"
