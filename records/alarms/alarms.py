"""Alarms: what is wrong with a run, each with its cause.

A training asks after each log, with metrics alone (`alarm_metrics`, `warn_of_alarms`). `gymnast why` and `gymnast view`
ask afterwards, and name an episode that shows it where one was recorded (`find_alarms`). The checks are the same.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ...envs.episode import Episode
from ...envs.line_files import skipped
from ..files.episodes import TRUNCATIONS, EpisodeRow
from ..files.run import Run
from .causes import LIMITS
from .trends import (
    LEAST_SAMPLE_SIZE,
    LOGS_IN_A_ROW,
    MANY_FLAT,
    MANY_TRUNCATED,
    Logs,
    alike,
    flat_share,
    gap_growth,
    has_converged,
    length_growth,
    low_sample_size,
    rejected_share,
    repeated,
    shifts,
)

logger = logging.getLogger(__name__)

TOOL_ERRORS = "alarms/tool_errors"
"""The metric of the alarm that needs the episodes of a round; the others are known from other metrics."""


@dataclass(kw_only=True, slots=True, frozen=True)
class Alarm:
    """One thing that is wrong."""

    kind: str
    title: str  # what happened, in one line
    cause: str  # the likeliest reason, or the remedy
    step: int | None = None
    episode: int | None = None  # an example: its place in `Run.episodes`
    detail: str | None = None  # a traceback


@dataclass(kw_only=True, slots=True)
class Evidence:
    """The facts that a check looks at."""

    logs: Logs  # of training steps, oldest first
    episodes: Sequence[EpisodeRow] = ()
    latest: Sequence[EpisodeRow] = ()  # those of the last recorded step
    settings: Mapping[str, Any] = field(default_factory=dict)  # as `learning.jsonl` has them

    @property
    def last(self) -> Mapping[str, Any]:
        """The last log."""
        return self.logs[-1] if self.logs else {}


def find_alarms(run: Run) -> list[Alarm]:
    """Return the alarms of a run that was read, the worst first."""
    cause = "A killed process, or a full disk, leaves such a line."
    broken = [Alarm(kind="broken lines", title=skipped(run.broken), cause=cause)] if run.broken else []
    seen = Evidence(logs=run.metrics, episodes=run.episodes, latest=run.latest(), settings=run.settings)
    return [*broken, *(alarm for check in CHECKS.values() for alarm in check(seen))]


def alarm_metrics(history: Logs, log: Mapping[str, Any]) -> dict[str, float]:
    """Return a metric `alarms/<name>` for each alarm: 1 if it is raised, else 0.

    Args:
        history: The earlier logs, of which those of training steps count.
        log: The log of a training step.
    """
    seen = Evidence(logs=_of_steps(history, log))
    return {_metric(kind): float(any(True for _ in check(seen))) for kind, check in CHECKS.items()}


def warn_of_alarms(history: Logs, log: Mapping[str, Any], settings: Mapping[str, Any]) -> None:
    """Warn of an alarm about the sampler that this log raises, unless an earlier log of the run raised it.

    Args:
        history: As in `alarm_metrics`.
        log: As in `alarm_metrics`, with the metrics that it returned.
        settings: `correction` and `correction_bounds`.
    """
    seen = Evidence(logs=_of_steps(history, log), settings=settings)
    for kind in ("gap", "rejected"):
        if log[_metric(kind)] and not any(earlier.get(_metric(kind)) for earlier in history):
            for alarm in CHECKS[kind](seen):
                logger.warning("%s. %s", alarm.title, alarm.cause)


def tool_error_alarm(episodes: Sequence[Episode]) -> float:
    """Return 1 if a tool ended several calls of these episodes with the same error, else 0."""
    calls = [record for episode in episodes for record in episode.tool_calls if record.failed]
    return float(bool(repeated((call.name, call.outcome, call.error or "") for call in calls)))


def _of_steps(history: Logs, log: Mapping[str, Any]) -> Logs:
    return [*(earlier for earlier in history if "loss" in earlier), log]


def _metric(kind: str) -> str:
    return f"alarms/{kind.replace(' ', '_')}"


def _failures(seen: Evidence) -> Iterator[Alarm]:
    cause = "A failed episode has no reward and leaves its group."
    failed = [(place, row) for place, row in enumerate(seen.episodes) if row.failure]
    for kind, count in Counter(row.kind_of_failure for _, row in failed).most_common(3):
        place, first = next((place, row) for place, row in failed if row.kind_of_failure == kind)
        title = f"{count} of {len(seen.episodes)} episodes failed: {first.failure}"
        yield Alarm(kind="failures", title=title, cause=cause, step=first.step, episode=place, detail=first.traceback)
    count = seen.last.get("episodes/failed", 0.0)
    if count and not failed:
        yield Alarm(kind="failures", title=f"{count:g} episodes failed", cause=cause, step=seen.last.get("step"))


CAUSES = {
    "exception": "The tool raises this exception, which may be a bug; the model sees it as a message.",
    "refused": "The tool tells the model of its mistake by a ValueError; the prompt may have to say it first.",
    "timeout": "The tool takes longer than its timeout.",
    "unknown": "There is no tool of this name: the prompt or the demonstrations may promise it.",
    "bad_arguments": "The model passes arguments that the signature refuses; see the tool's docstring.",
}
"""The likeliest cause of a tool call's outcome."""


def _tool_errors(seen: Evidence) -> Iterator[Alarm]:
    found = [
        ((error.tool, error.outcome, alike(error.message)), error, place)
        for place, row in enumerate(seen.episodes)
        for error in row.errors
    ]
    calls = Counter(tool for row in seen.episodes for tool in row.tools)
    for error, count in repeated(error for error, _, _ in found):
        first, place = next((first, place) for other, first, place in found if other == error)
        yield Alarm(
            kind="tool errors",
            title=f"{count} of {calls[first.tool]} calls of {first.tool} end with the same error: {first.message}",
            cause=CAUSES[first.outcome],
            step=seen.episodes[place].step,
            episode=place,
            detail=first.traceback,
        )
    if seen.last.get(TOOL_ERRORS) and not found:
        title = "a tool ends several calls of a round with the same error"
        yield Alarm(kind="tool errors", title=title, cause="Record episodes to see it.", step=seen.last.get("step"))


def spread(rows: Sequence[EpisodeRow]) -> tuple[int, int]:
    """Return the number of groups whose rewards differ, and of groups with two rewards or more."""
    groups: dict[str, list[float]] = {}
    for row in rows:
        if row.reward is not None:
            groups.setdefault(row.group, []).append(row.reward)
    compared = [rewards for rewards in groups.values() if len(rewards) >= 2]
    return sum(max(rewards) - min(rewards) > 1e-8 for rewards in compared), len(compared)


def _no_spread(seen: Evidence) -> Iterator[Alarm]:
    share = flat_share(seen.logs)
    with_spread, groups = spread(seen.latest)
    if share is None and groups:
        share = 1 - with_spread / groups
    if share is not None and share > MANY_FLAT and not has_converged(seen.logs):
        rewards = {row.reward for row in seen.latest if row.reward is not None}
        cause = f"All rewards of the last recorded step are {min(rewards):g}." if len(rewards) == 1 else ""
        yield Alarm(
            kind="no spread",
            title=f"{share:.0%} of the latest groups have equal rewards, so they teach nothing",
            cause=cause or "Tasks are too easy or too hard; max_refills replaces such groups.",
            **_place(seen, seen.latest),
        )


def _truncation(seen: Evidence) -> Iterator[Alarm]:
    shares = {stop: seen.last.get(f"stop/{stop}", 0.0) for stop in sorted(TRUNCATIONS)}
    cut = [row for row in seen.latest if row.is_truncated]
    if seen.latest:
        counts = Counter(row.stop for row in cut)
        shares = {stop: count / len(seen.latest) for stop, count in counts.most_common()}
    if sum(shares.values()) > MANY_TRUNCATED:
        stop = max(shares, key=lambda stop: shares[stop])
        limit = LIMITS.get(stop, "the limit")
        yield Alarm(
            kind="truncation",
            title=f"a limit cut {sum(shares.values()):.0%} of the latest episodes, most often {stop}",
            cause=f"{shares[stop]:.0%} ended by {stop}: raise {limit}, or let the prompt ask for shorter answers.",
            **_place(seen, cut),
        )


def _place(seen: Evidence, rows: Sequence[EpisodeRow]) -> dict[str, Any]:
    """Return the step and the place of the first of these episodes; without one, the step of the last log."""
    return {"step": rows[0].step, "episode": seen.episodes.index(rows[0])} if rows else {"step": seen.last.get("step")}


def _stop_reasons(seen: Evidence) -> Iterator[Alarm]:
    for reason, before, after in shifts(seen.logs):
        yield Alarm(
            kind="stop reasons",
            title=f"{reason} went from {before:.0%} to {after:.0%} of the episodes",
            cause="The policy ends its episodes in another way than at the beginning; compare the same task.",
            step=seen.last.get("step"),
        )


def _gap(seen: Evidence) -> Iterator[Alarm]:
    if (growth := gap_growth(seen.logs)) is not None:
        before, after = growth
        yield Alarm(
            kind="gap",
            title=f"the generator's log-probabilities differ from the trainer's by {after:.3g}; it was {before:.3g}",
            cause="Precision, kernels or stale weights differ: colour tokens by gap in `gymnast view` to see where.",
            step=seen.last.get("step"),
        )
    if (size := low_sample_size(seen.logs)) is not None:
        yield Alarm(
            kind="gap",
            title=f"the effective sample size is {size:.2f}, and was below {LEAST_SAMPLE_SIZE} in {LOGS_IN_A_ROW} logs "
            f"in a row",
            cause="The generator's log-probabilities are far from the trainer's, so most of the gradient comes from "
            "few tokens. Compare the precision of both (dtype, bf16, quantisation). Check that the generator has the "
            "weights in training: mismatch/kl of the first step is then near 0. Use a correction that masks, such as "
            "correction='icepop'.",
            step=seen.last.get("step"),
        )


def _rejected(seen: Evidence) -> Iterator[Alarm]:
    if (share := rejected_share(seen.logs)) is not None:
        correction = seen.settings.get("correction")
        name = "the correction" if correction is None else f"correction={correction!r}"
        bounds = [format(bound, "g") for bound in seen.settings.get("correction_bounds", ()) if bound is not None]
        yield Alarm(
            kind="rejected",
            title=f"{name} removed {share:.0%} of the episodes since the last log, so they teach nothing",
            cause=f"The policy is too far from the sampler for its bounds{', ' * bool(bounds)}{' and '.join(bounds)}. "
            f"Widen them (correction_min, correction_max), lower learning_rate or max_staleness, or use a correction "
            f"that weighs tokens, such as 'tis'. mismatch/rejected is the share in each log.",
            step=seen.last.get("step"),
        )


def _length(seen: Evidence) -> Iterator[Alarm]:
    if (growth := length_growth(seen.logs)) is not None:
        before, after = growth
        yield Alarm(
            kind="length",
            title=f"answers grow: {before:.0f} tokens at the beginning, {after:.0f} now",
            cause="Look at the longest episodes. Their reward may not depend on length, or a tool repeats itself.",
            step=seen.last.get("step"),
        )


CHECKS: Mapping[str, Callable[[Evidence], Iterator[Alarm]]] = {
    "failures": _failures,
    "tool errors": _tool_errors,
    "no spread": _no_spread,
    "truncation": _truncation,
    "stop reasons": _stop_reasons,
    "gap": _gap,
    "rejected": _rejected,
    "length": _length,
}
"""The check of each kind of alarm."""
