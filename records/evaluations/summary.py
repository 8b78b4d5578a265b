"""The summary of an evaluation: success with confidence intervals, reward, endings, tools, tokens, cost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from ...envs.core import StopReason
from ...envs.episode import Episode
from .pass_at_k import half_width, pass_at_each_k, reports_success, successes_by_task, was_played


def summary_of(
    episodes: Sequence[Episode],
    *,
    success_reward: float | None = None,
    price: tuple[float, float] | None = None,
    temperature: float | None = None,
) -> dict[str, Any]:
    """Return the numbers of an evaluation, as `gymnast eval --json` prints them.

    `price` is that of a million tokens of prompts, and of answers.
    """
    failed = [episode for episode in episodes if episode.stop.is_failure]
    played = [episode for episode in episodes if not episode.stop.is_failure]
    summary: dict[str, Any] = {
        "episodes": len(episodes),
        "failed": len(failed),
        "tasks": len({episode.spec.group for episode in episodes}),
        **dict(pass_at_each_k([*successes_by_task(episodes, success_reward).values()])),
        **_reward(played),
        "turns": float(np.mean([len(episode.turns) for episode in played])) if played else None,
        "stop": dict(Counter(str(episode.stop) for episode in episodes).most_common()),
        "tools": _tools(played),
        "failures": dict(Counter(str(episode.failure) for episode in failed).most_common(3)),
        "tokens": _tokens(episodes),
        "notes": [*_notes(played, success_reward, temperature)],
    }
    if price is not None:
        tokens = summary["tokens"]
        summary["cost"] = (tokens["prompt"] * price[0] + tokens["answer"] * price[1]) / 1e6
    return summary


def _notes(played: Sequence[Episode], success_reward: float | None, temperature: float | None) -> Iterator[str]:
    """Yield remarks on the numbers, each a sentence."""
    if temperature == 0 and any(episode.spec.member for episode in played):
        yield "at temperature 0 the episodes of a task are equal, or nearly: one sample of a task says as much"
    cut = [len(episode.turns) for episode in played if episode.stop is StopReason.MAX_TURNS]
    if cut:
        said = f"{len(cut)} of {len(played)} episodes were cut after {max(cut)} turns"
        yield f"{said}; max_turns sets another bound, 0 lifts it"
    counted = [*filter(was_played, played)]
    without = sum("success" not in episode.metrics for episode in counted)
    if reports_success(counted):
        if without:
            yield (
                f"{without} of {len(counted)} episodes have no metric 'success' and count as failures; set "
                f"self.metrics['success'] = 0.0 at reset"
            )
    elif played and success_reward is None:
        yield "there is no pass@k: no episode has a metric 'success', and success_reward is not given"


def _reward(played: Sequence[Episode]) -> dict[str, float | None]:
    """Return the mean reward with a 95 % interval over tasks, whose episodes are alike."""
    by_task: dict[str, list[float]] = {}
    for episode in played:
        if episode.reward is not None:
            by_task.setdefault(episode.spec.group, []).append(episode.reward)
    if not by_task:
        return {"reward": None}
    means_T = np.array([np.mean(rewards) for rewards in by_task.values()])
    mean = float(means_T.mean())
    reward: dict[str, float | None] = {"reward": mean}
    half = half_width(means_T)
    if half is not None:
        reward |= {"reward/low": mean - half, "reward/high": mean + half}
    return reward


def _tools(played: Sequence[Episode]) -> dict[str, dict[str, Any]]:
    """Return the calls of each tool, how many failed, and the error that came most often."""
    calls = [call for episode in played for call in episode.tool_calls if call.outcome != "not_run"]
    tools: dict[str, dict[str, Any]] = {}
    for name, count in Counter(call.name for call in calls).most_common():
        errors = Counter((call.error or call.outcome) for call in calls if call.name == name and call.failed)
        tools[name] = {"calls": count, "failed": errors.total()}
        if errors:
            tools[name]["error"] = errors.most_common(1)[0][0]
    return tools


def _tokens(episodes: Sequence[Episode]) -> dict[str, int]:
    turns = [turn for episode in episodes for turn in episode.turns]
    return {
        "prompt": sum(turn.num_prompt_tokens for turn in turns),
        "cached": sum(turn.num_cached_tokens for turn in turns),
        "answer": sum(turn.num_tokens for turn in turns),
    }
