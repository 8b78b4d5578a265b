"""The answer to "why is my reward zero?" in at most ten lines."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from ...envs.runtime.message_text import cut
from ..files.episodes import EpisodeRow
from ..files.run import Run
from .alarms import find_alarms, spread
from .causes import likely_causes
from .trends import has_converged

MOST_LINES = 10
SHOWN = 120  # characters of an answer

NO_EPISODES = "no episode is recorded: set log_episodes_steps=1 in the configuration, and more can be said"


def why_lines(run: Run) -> list[str]:
    """Return the state of a run that was read, and what is wrong with it: at most ten lines, the verdict last."""
    rows = run.latest()
    facts = [*_rewards(run), *_evaluations(run), *(_episodes(rows) if rows else [NO_EPISODES]), *_answer(run)]
    shown = [f"! {alarm.title}. {alarm.cause}" for alarm in find_alarms(run)[: MOST_LINES - len(facts) - 1]]
    return [*facts, *shown, _verdict(run)]


def _rewards(run: Run) -> Iterator[str]:
    rewards = [line["reward"] for line in run.metrics if math.isfinite(line.get("reward", math.nan))]
    if not rewards and run.metrics:
        yield f"{run.folder}: no reward is logged yet"
    elif not rewards:
        yield f"{run.folder}: no metrics are recorded: train with record_run=True, the default"
    elif len(rewards) == 1:
        yield f"{run.folder}: step {run.metrics[-1]['step']}, reward {rewards[0]:.3g}"
    else:
        part = max(1, len(rewards) // 5)
        before, after = (sum(end) / part for end in (rewards[:part], rewards[-part:]))
        trend = "falls" if after < before - 0.01 else "rises" if after > before + 0.01 else "stays"
        yield f"{run.folder}: step {run.metrics[-1]['step']}, the reward {trend} ({before:.3g} -> {after:.3g})"


def _evaluations(run: Run) -> Iterator[str]:
    """Yield the reward of each data set's first and latest evaluation."""
    parts = []
    for title, logs in run.evaluations.items():
        rewards = [(step, log.metrics["reward"]) for step, log in logs if "reward" in log.metrics]
        if rewards:
            (_, before), (step, after) = rewards[0], rewards[-1]
            came_from = f"{before:.3g} -> " if len(rewards) > 1 else ""
            parts.append(f"{title}: reward {came_from}{after:.3g} at step {step}")
    if parts:
        yield "; ".join(parts)


def _episodes(rows: Sequence[EpisodeRow]) -> Iterator[str]:
    rewards = [row.reward for row in rows if row.reward is not None]
    zero = sum(reward == 0 for reward in rewards)
    none = len(rows) - len(rewards)
    with_spread, groups = spread(rows)
    yield (
        f"step {rows[0].step}: {zero} of {len(rows)} recorded episodes have reward 0, {none} have no reward; "
        f"{with_spread} of {groups} groups have spread"
    )
    stops = Counter(row.stop for row in rows).most_common(4)
    yield "they end by " + ", ".join(f"{stop} ({count})" for stop, count in stops)
    calls, errors = sum(len(row.tools) for row in rows), sum(len(row.errors) for row in rows)
    tokens = sum(row.tokens for row in rows) / len(rows)
    per_episode = f"{calls / len(rows):.2g} tool calls and {tokens:.0f} sampled tokens an episode"
    yield f"{per_episode}; {errors} of {calls} calls failed"


def _answer(run: Run) -> Iterator[str]:
    """Yield the right answer of the episode that shows the reason, beside the one that it gave."""
    place = explain(run).episode
    episode = None if place is None else run.episode(run.episodes[place])
    if episode is not None and episode.expected is not None:
        given = "nothing" if episode.given is None else repr(cut(episode.given, SHOWN))
        yield f"episode {place}: {given} was given, {cut(episode.expected, SHOWN)!r} expected"


class Explanation(NamedTuple):
    """The likeliest reason why the reward is what it is."""

    reason: str
    episode: int | None  # the place in `Run.episodes` of one that shows it; None without episodes


def explain(run: Run) -> Explanation:
    """Return the likeliest reason for the reward of the latest recorded step, and the episode that shows it best."""
    rows = run.latest()
    rewards = [row.reward for row in rows if row.reward is not None]
    if not rows:
        return Explanation("unknown without episodes", None)
    if not rewards:
        reason = "no episode has a reward: they fail, or nothing rewards them"
    elif has_converged(run.metrics):
        reason = "the reward has risen by more than half its first standard deviation: the run learns, or has learned"
    elif any(rewards):
        reason = "the reward is not always zero; compare a best and a worst episode of one group"
        if all(reward == rewards[0] for reward in rewards):
            reason = f"every reward is {rewards[0]:g}: the task is solved, or the reward does not look at the answer"
    else:
        reason = likely_causes(rows)[0]
    worst = min(rows, key=lambda row: math.inf if row.reward is None else row.reward)
    return Explanation(reason, run.episodes.index(worst))


def _verdict(run: Run) -> str:
    reason, place = explain(run)
    if place is None:
        return f"verdict: {reason}"
    return f"verdict: {reason}; see {run.folder}/view.html#episode={place}, which gymnast view {run.folder} writes"
