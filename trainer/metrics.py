"""What is logged, under which name, and how values of many steps and processes become one.

Names that TRL has keep its meaning. Ours: `stop/<reason>` (share of episodes), `tools/<name>/calls|failures` (per
episode) and `/seconds` (mean of a call), `turns/mean`, the counts `episodes/played|failed`, `groups/dropped`,
`tools/calls`, `tokens/sampled` and `tokens/drift` (anything but 0 is a bug), `environment/<name>` (means of what environments report),
`time/rollout` (seconds of a round), `time/generation` and `time/environment` (seconds that a mean episode waited for
each), `time/update` (seconds of an optimiser step).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from ..envs.core import StopReason
from ..envs.episode import Episode

SUMS = frozenset(
    {
        "episodes/played",
        "episodes/failed",
        "episodes/close_failed",
        "groups/dropped",
        "prompts/overlong",
        "tokens/drift",
        "tokens/sampled",
        "tools/calls",
    }
)
"""Counts: added up over steps and processes, where all else is averaged."""


class Metrics:
    """Values since the last time that they were logged."""

    def __init__(self) -> None:
        self._values: dict[str, list[float]] = defaultdict(list)

    def add(self, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            if not math.isnan(value):
                self._values[name].append(float(value))

    def flush(self, gather: Callable[[list[dict[str, list[float]]]], list[dict[str, list[float]]]]) -> dict[str, float]:
        """One number for each name, over all processes, and start anew; every process must call it.

        Args:
            gather: Collects the lists of all processes, as `accelerate.utils.gather_object` does.
        """
        merged: dict[str, list[float]] = defaultdict(list)
        for values in gather([dict(self._values)]):
            for name, each in values.items():
                merged[name] += each
        self._values.clear()
        return {name: _one(name, values) for name, values in merged.items() if values}


def _one(name: str, values: Sequence[float]) -> float:
    if name in SUMS:
        return float(sum(values))
    if name.endswith(("/max", "_max", "/max_length", "/max_terminated_length")):
        return float(max(values))
    if name.endswith(("/min", "_min", "/min_length", "/min_terminated_length")):
        return float(min(values))
    return float(np.mean(values))


def episode_metrics(episodes: Sequence[Episode]) -> dict[str, float]:
    """The metrics of a round of episodes; those that failed count in `stop/failed` and `episodes/failed` only."""
    played = [episode for episode in episodes if not episode.stop.is_failure]
    metrics = {
        "episodes/played": float(len(episodes)),
        "episodes/failed": float(len(episodes) - len(played)),
        "episodes/close_failed": float(sum(episode.close_failure is not None for episode in episodes)),
        "prompts/overlong": float(sum(_is_overlong(episode) for episode in episodes)),
        "tokens/drift": float(sum(episode.trace.drift for episode in episodes if episode.trace is not None)),
        "tokens/sampled": float(sum(episode.trace.num_sampled for episode in episodes if episode.trace is not None)),
        "tools/calls": float(sum(len(episode.tool_calls) for episode in episodes)),
    }
    for reason in StopReason:
        metrics[f"stop/{reason.value}"] = _mean(episode.stop is reason for episode in episodes)
    if played:
        metrics |= _rewards(played) | _lengths(played) | _tools(played) | _environment(played)
        metrics["turns/mean"] = _mean(len(episode.turns) for episode in played)
        metrics["time/generation"] = _mean(sum(turn.generation_seconds for turn in each.turns) for each in played)
        metrics["time/environment"] = _mean(sum(turn.environment_seconds for turn in each.turns) for each in played)
    return metrics


def _is_overlong(episode: Episode) -> bool:
    return episode.failure is not None and episode.failure.type == "OverlongPromptError"


def _rewards(episodes: Sequence[Episode]) -> dict[str, float]:
    rewards = [episode.reward for episode in episodes if episode.reward is not None]
    groups: dict[str, list[float]] = defaultdict(list)
    for episode in episodes:
        if episode.reward is not None:
            groups[episode.spec.group].append(episode.reward)
    metrics = {
        "reward": _mean(rewards),
        "reward_std": _std(rewards),
        "frac_reward_zero_std": _mean(max(group) - min(group) < 1e-8 for group in groups.values()),
    }
    for name in {name: None for episode in episodes for name in episode.reward_parts}:
        parts = [part for each in episodes if (part := each.reward_parts.get(name)) is not None]
        metrics[f"rewards/{name}/mean"] = _mean(parts)
        metrics[f"rewards/{name}/std"] = _std(parts)
    return metrics


def _lengths(episodes: Sequence[Episode]) -> dict[str, float]:
    traces = [(episode, episode.trace) for episode in episodes if episode.trace is not None]
    if not traces:
        return {}
    all_lengths = [len(trace.completion_ids) for _, trace in traces]
    terminated = [len(trace.completion_ids) for episode, trace in traces if not episode.stop.is_truncation]
    metrics = {"completions/clipped_ratio": 1 - len(terminated) / len(traces)}
    for name, lengths in (("length", all_lengths), ("terminated_length", terminated or [0])):
        metrics[f"completions/mean_{name}"] = _mean(lengths)
        metrics[f"completions/min_{name}"] = float(min(lengths))
        metrics[f"completions/max_{name}"] = float(max(lengths))
    return metrics


def _tools(episodes: Sequence[Episode]) -> dict[str, float]:
    records = [record for episode in episodes for record in episode.tool_calls]
    metrics = {
        "tools/call_frequency": len(records) / len(episodes),
        "tools/failure_frequency": _mean(record.failed for record in records) if records else 0.0,
        "tools/malformed_frequency": _mean(
            sum(len(turn.message.get("malformed") or []) for turn in episode.turns) for episode in episodes
        ),
    }
    for name in sorted({record.name for record in records if record.outcome != "unknown"}):
        own = [record for record in records if record.name == name]
        metrics[f"tools/{name}/calls"] = len(own) / len(episodes)
        metrics[f"tools/{name}/failures"] = sum(record.failed for record in own) / len(episodes)
        metrics[f"tools/{name}/seconds"] = _mean(record.seconds for record in own)
    return metrics


def _environment(episodes: Sequence[Episode]) -> dict[str, float]:
    names = {name: None for episode in episodes for name in episode.metrics}
    return {
        f"environment/{name}": _mean(each.metrics[name] for each in episodes if name in each.metrics) for name in names
    }


def _mean(values: Iterable[float]) -> float:
    values = list(values)
    return float(np.mean(values)) if values else math.nan


def _std(values: Sequence[float]) -> float:
    return float(np.std(values, ddof=1)) if len(values) > 1 else 0.0
