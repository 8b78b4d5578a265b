"""The metrics of episodes, and how values of many steps and processes become one; docs/metrics.md lists all names.

Names that TRL has keep its meaning: `completions/mean_length` counts the tokens that the model sampled, without tool
results. A refused call (no budget was left, or the episode had ended) was not run: it counts in `tools/refused` only.
A prompt that `overlong_prompts="drop"` left out counts in `prompts/overlong` and `stop/context_overflow`, and is in no
mean.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np
from torch import Tensor

from ...envs.core import StopReason
from ...envs.episode import Episode
from ...records.metrics.missing_metrics import MissingMetrics, Weighted
from ..learning.comparison import BY_REWARD
from ..learning.corrections import MEANS_OF_RATIOS, effective_sample_size
from ..learning.groups import Group

_SUMS = """
    episodes/played episodes/failed episodes/close_failed episodes/retried groups/dropped groups/refilled
    groups/replaced rounds/skipped steps/nonfinite staleness/late prompts/overlong tools/calls tokens/cached
    tokens/drift tokens/prompt tokens/sampled"""
SUMS = frozenset(_SUMS.split())
"""Counts: added up over steps and processes."""

MINIMA = frozenset({"completions/min_length", "completions/min_terminated_length", "clip_ratio/low_min"})
_MAXIMA = """
    completions/max_length completions/max_terminated_length clip_ratio/high_max sampling/sampling_logp_difference/max
    staleness/max alarms/tool_errors"""
MAXIMA = frozenset(_MAXIMA.split())
"""The least and the largest value of all steps and processes. All other values are averaged."""

NameOf = Callable[[Episode], str | None]

Spreads = Callable[[Group], bool]
"""Whether the rewards of a group differ."""

Part = tuple[int, dict[str, float]]
"""A number of values, and their means."""


class Metrics:
    """Values of the finished steps since the last time that they were logged.

    A step that is given up is taken again by the training that resumes this one, and would count twice.
    """

    def __init__(self, missing: MissingMetrics | None = None) -> None:
        self._missing = missing or MissingMetrics()
        self._values: dict[str, list[tuple[float | Tensor, float]]] = defaultdict(list)
        self._of_step: dict[str, list[tuple[float | Tensor, float]]] = defaultdict(list)

    def add(self, values: Mapping[str, float | Tensor], *, weight: float = 1.0) -> None:
        """Add one value under each name to the step in progress, with its weight in the mean.

        Values of weight 0 and NaN are left out. Tensors stay on their device until `flush`, since to read one waits
        for the device.
        """
        if weight > 0:
            for name, value in values.items():
                self._of_step[name].append((value, weight))

    def finish_step(self) -> None:
        """Count the values that were added since the last finished step."""
        for name, pairs in self._of_step.items():
            self._values[name] += pairs
        self._of_step.clear()

    def pending(self) -> Weighted:
        """Return the values of this process from finished steps since the last log, without NaN."""
        read = {name: [(float(value), weight) for value, weight in pairs] for name, pairs in self._values.items()}
        known = {name: [pair for pair in pairs if not math.isnan(pair[0])] for name, pairs in read.items()}
        return {name: pairs for name, pairs in known.items() if pairs}

    def restore(self, pending: Mapping[str, Iterable[Sequence[float]]]) -> None:
        """Add the values that `pending` returned."""
        for name, pairs in pending.items():
            self._values[name] += [(value, weight) for value, weight in pairs]

    def flush(self, gather: Callable[[list[Weighted]], list[Weighted]]) -> dict[str, float]:
        """Return one number for each name, over all processes, and forget the values; every process must call it.

        `gather` concatenates the lists of all processes, as `accelerate.utils.gather_object` does.
        """
        merged: Weighted = defaultdict(list)
        for values in gather([self.pending()]):
            for name, pairs in values.items():
                merged[name] += pairs
        self._values.clear()
        self._missing.count(merged)
        values = {name: _one(name, *zip(*pairs, strict=True)) for name, pairs in merged.items()}
        if MEANS_OF_RATIOS[0] in values:  # a function of means over all steps and processes
            values["mismatch/ess"] = effective_sample_size(*(values.pop(mean) for mean in MEANS_OF_RATIOS))
        return values | {name: _pooled_std(merged[name], merged[_mean_of(name)]) for name in merged if _mean_of(name)}


def _one(name: str, values: Sequence[float], weights: Sequence[float]) -> float:
    for names, function in ((SUMS, sum), (MAXIMA, max), (MINIMA, min)):
        if name in names:
            return float(function(values))
    return float(np.average(values, weights=weights))


def _mean_of(name: str) -> str:
    """Return the name of the mean that belongs to a standard deviation; empty for other metrics."""
    if name == "reward_std":
        return "reward"
    is_part = name.startswith("rewards/") and name.endswith("/std")
    return f"{name.removesuffix('std')}mean" if is_part else ""


def _pooled_std(stds: Sequence[tuple[float, float]], means: Sequence[tuple[float, float]]) -> float:
    """Return the standard deviation of all values from those of parts; a pair is a value and a number of values."""
    (values, counts), (centres, _) = np.array(stds).T, np.array(means).T
    centre = np.average(centres, weights=counts)
    squares = (values**2 * (counts - 1)).sum() + (counts * (centres - centre) ** 2).sum()
    return float(np.sqrt(squares / max(counts.sum() - 1, 1)))


def episode_metrics(
    episodes: Sequence[Episode], environment_of: NameOf | None = None, missing: MissingMetrics | None = None
) -> dict[str, float]:
    """Return the metrics of a round of episodes; failed ones count in `stop/failed` and `episodes/failed` only.

    With `on_failure="zero"` they count in the rewards too.
    """
    parts = weighted_metrics(episodes, environment_of)
    values: Weighted = {name: [(value, weight)] for weight, part in parts for name, value in part.items()}
    (missing or MissingMetrics()).count(values)
    return {
        name: pairs[0][0] if len(pairs) == 1 else _one(name, *zip(*pairs, strict=True))
        for name, pairs in values.items()
    }


def weighted_metrics(
    episodes: Sequence[Episode], environment_of: NameOf | None = None, spreads: Spreads = BY_REWARD.has_spread
) -> list[Part]:
    """Return `episode_metrics` in parts, each with the number of episodes, groups or calls that it is the mean of.

    `environment_of` returns the name of an episode's environment, or None if there is only one. `spreads` says whether
    rewards differ within a group.
    """
    played = [episode for episode in episodes if not (episode.stop.is_failure or episode.is_overlong)]
    metrics = {
        "episodes/played": float(len(episodes)),
        "episodes/failed": float(sum(episode.stop.is_failure for episode in episodes)),
        "episodes/close_failed": float(sum(episode.close_failure is not None for episode in episodes)),
        "episodes/retried": float(sum(len(episode.retried) for episode in episodes)),
        "prompts/overlong": float(sum(episode.is_overlong for episode in episodes)),
        "tokens/drift": float(sum(trace.drift for episode in episodes for trace in episode.traces)),
        "tokens/sampled": float(sum(episode.num_sampled for episode in episodes)),
        "tokens/prompt": float(sum(turn.num_prompt_tokens for episode in episodes for turn in episode.turns)),
        "tokens/cached": float(sum(turn.num_cached_tokens for episode in episodes for turn in episode.turns)),
        "tools/calls": float(sum(call.outcome != "not_run" for episode in episodes for call in episode.tool_calls)),
    }
    for reason in StopReason:
        metrics[f"stop/{reason.value}"] = _mean(episode.stop is reason for episode in episodes)
    parts: list[Part] = [(len(episodes), metrics)]
    if played:
        turns = [episode.turns for episode in played]
        means = {
            "turns/mean": _mean(map(len, turns)),
            "time/generation": _mean(sum(turn.generation_seconds for turn in own) for own in turns),
            "time/environment": _mean(sum(turn.environment_seconds for turn in own) for own in turns),
        }
        parts += [*_rewards(episodes, spreads), (len(played), means)]
        parts += [*_lengths(played), *_tools(played), *_environment(played)]
    for name, own in by_environment(episodes, environment_of).items():
        parts += [
            (weight, {f"environments/{name}/{key}": value for key, value in part.items()})
            for weight, part in _of_environment(own, spreads)
        ]
    return parts


def by_environment(episodes: Sequence[Episode], environment_of: NameOf | None) -> dict[str, list[Episode]]:
    """Return the episodes of each environment by its name; empty if there is only one, which has no name."""
    named: dict[str, list[Episode]] = defaultdict(list)
    for episode in episodes:
        if environment_of is not None and (name := environment_of(episode)) is not None:
            named[name].append(episode)
    return named


def _of_environment(episodes: Sequence[Episode], spreads: Spreads) -> list[Part]:
    """Return metrics of one environment of several, in parts as those of `weighted_metrics`."""
    played = [episode for episode in episodes if not (episode.stop.is_failure or episode.is_overlong)]
    parts = [(len(episodes), {"failed": _mean(episode.stop.is_failure for episode in episodes)})]
    parts += _only(("reward", "frac_reward_zero_std"), _rewards(episodes, spreads))
    if played:
        parts.append((len(played), {"turns/mean": _mean(len(episode.turns) for episode in played)}))
        parts += _environment(played)
        for weight, lengths in _only(("completions/mean_length", "completions/clipped_ratio"), _lengths(played)):
            parts.append((weight, {name.removeprefix("completions/"): value for name, value in lengths.items()}))
    return parts


def _only(names: Sequence[str], parts: Sequence[Part]) -> list[Part]:
    found = [(weight, {name: values[name] for name in names if name in values}) for weight, values in parts]
    return [(weight, values) for weight, values in found if values]


def _rewards(episodes: Sequence[Episode], spreads: Spreads) -> list[Part]:
    rewards: list[float] = []
    groups: dict[str, Group] = defaultdict(list)
    for episode in episodes:
        if episode.reward is not None:
            rewards.append(episode.reward)
            groups[episode.spec.group].append(episode)
    equal = _mean(not spreads(group) for group in groups.values())
    found: list[Part] = [
        (len(rewards), {"reward": _mean(rewards), "reward_std": _std(rewards)}),
        (len(groups), {"frac_reward_zero_std": equal}),
    ]
    for name in {name: None for episode in episodes for name in episode.reward_parts}:
        parts = [part for episode in episodes if (part := episode.reward_parts.get(name)) is not None]
        if parts:  # none if the environment gives no rewards, or the function applies to no episode
            found.append((len(parts), {f"rewards/{name}/mean": _mean(parts), f"rewards/{name}/std": _std(parts)}))
    return found


def _lengths(episodes: Sequence[Episode]) -> list[Part]:
    episodes = [episode for episode in episodes if episode.traces]
    if not episodes:
        return []
    all_lengths = [episode.num_sampled for episode in episodes]
    terminated = [episode.num_sampled for episode in episodes if not episode.stop.is_truncation]
    metrics = {
        "completions/clipped_ratio": 1 - len(terminated) / len(episodes),
        "samples/mean": _mean(len(episode.traces) for episode in episodes),
    }
    return [
        (len(episodes), metrics | _range_of("length", all_lengths)),
        *([(len(terminated), _range_of("terminated_length", terminated))] if terminated else []),
    ]


def _range_of(name: str, lengths: Sequence[int]) -> dict[str, float]:
    return {
        f"completions/mean_{name}": _mean(lengths),
        f"completions/min_{name}": float(min(lengths)),
        f"completions/max_{name}": float(max(lengths)),
    }


def _tools(episodes: Sequence[Episode]) -> list[Part]:
    records = [record for episode in episodes for record in episode.tool_calls if record.outcome != "not_run"]
    refused = sum(len(episode.tool_calls) for episode in episodes) - len(records)
    metrics = {
        "tools/refused": refused / len(episodes),
        "tools/call_frequency": len(records) / len(episodes),
        "tools/malformed_frequency": _mean(
            sum(len(turn.message.get("malformed") or []) for turn in episode.turns) for episode in episodes
        ),
    }
    parts: list[Part] = [(len(episodes), metrics)]
    if records:
        parts.append((len(records), {"tools/failure_frequency": _mean(record.failed for record in records)}))
    shown = {schema["function"]["name"] for episode in episodes for schema in episode.tools}
    for name in sorted(shown | {record.name for record in records if record.outcome != "unknown"}):
        own = [record for record in records if record.name == name]
        metrics[f"tools/{name}/calls"] = len(own) / len(episodes)
        metrics[f"tools/{name}/failures"] = sum(record.failed for record in own) / len(episodes)
        metrics[f"tools/{name}/timeouts"] = sum(record.outcome == "timeout" for record in own) / len(episodes)
        if own:
            parts.append((len(own), {f"tools/{name}/seconds": _mean(record.seconds for record in own)}))
    return parts


def _environment(episodes: Sequence[Episode]) -> list[Part]:
    names = {name: None for episode in episodes for name in episode.metrics}
    values = {name: [episode.metrics[name] for episode in episodes if name in episode.metrics] for name in names}
    return [(len(own), {f"environment/{name}": _mean(own)}) for name, own in values.items()]


def _mean(values: Iterable[float]) -> float:
    values = list(values)
    return float(np.mean(values)) if values else math.nan


def _std(values: Sequence[float]) -> float:
    return float(np.std(values, ddof=1)) if len(values) > 1 else 0.0 if values else math.nan
