"""Alarms: what is wrong with a run, each with its cause.

A training asks after each log, with metrics alone (`alarm_metrics`). `gymnast why` and `gymnast view` ask afterwards,
and name an episode that shows it where one was recorded (`find_alarms`). The checks are the same.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ...envs.episode import Episode
from ...envs.runtime.line_files import skipped
from ...envs.runtime.places import at_place
from ..files.episodes import TRUNCATIONS, EpisodeRow
from ..files.run import Run
from .causes import alike, blame, limit_of
from .trends import LATEST, Logs, ends_of, has_converged, latest

REPEATED = 3  # a tool's error is an alarm from this many calls on
MANY_FLAT = 0.5  # share of groups with equal rewards
MANY_TRUNCATED = 0.25  # share of the episodes that a limit cuts
MANY_REJECTED = 0.5  # share of the episodes that a correction removes
LARGE_GAP = 0.01  # mean distance of the generator's log-probabilities from the trainer's
LEAST_SAMPLE_SIZE = 0.5  # effective sample size, in this many latest logs:
LOGS_IN_A_ROW = 3
SHIFT = 0.25  # change of a stop reason's share between the beginning and the end of a run
RUN_AWAY = 2.0  # growth of the mean length between the beginning and the end of a run

USUAL_ENDS = ("stop/final_answer", "stop/env_terminated")
"""Stop reasons whose share may change: a policy that learns to finish."""

TOOL_ERRORS = "alarms/tool_errors"
"""The metric of the alarm that needs the episodes of a round; the others are known from other metrics."""

OF_THE_SAMPLER = ("alarms/gap", "alarms/sample_size", "alarms/rejected")
"""The metrics of the alarms of which a training warns."""

logger = logging.getLogger(__name__)


@dataclass(slots=True, frozen=True)
class Alarm:
    """One thing that is wrong."""

    kind: str
    title: str  # what happened, in one line
    cause: str  # the likeliest reason, or the remedy
    episode: int | None = None  # an example: its place in `Run.episodes`
    detail: str | None = None  # a traceback
    step: int | None = None
    share: float = 0.0  # the part of the episodes that it explains, where one can tell


@dataclass(kw_only=True, slots=True)
class Evidence:
    """The facts that a check looks at."""

    logs: Logs  # of training steps, oldest first
    episodes: Sequence[EpisodeRow] = ()
    latest: Sequence[EpisodeRow] = ()  # those of the last recorded step
    settings: Mapping[str, Any] = field(default_factory=dict)  # as `learning.jsonl` has them

    @property
    def log(self) -> Mapping[str, Any]:
        """The last log."""
        return self.logs[-1] if self.logs else {}

    def alarms(self, kind: str) -> Iterator[Alarm]:
        """Yield the alarms of a kind with their steps. Those that name no episode are of the last log."""
        for alarm in CHECKS[kind](self):
            step = self.log.get("step") if alarm.episode is None else self.episodes[alarm.episode].step
            yield replace(alarm, step=step)

    def place(self, rows: Sequence[EpisodeRow]) -> int | None:
        """Return the place of the first of these episodes; None without one."""
        return self.episodes.index(rows[0]) if rows else None


def find_alarms(run: Run) -> list[Alarm]:
    """Return the alarms of a run that was read: broken lines, then the alarms that explain most episodes."""
    cause = "A killed process, or a full disk, leaves such a line."
    broken = [Alarm("broken lines", skipped(run.broken), cause)] if run.broken else []
    seen = Evidence(logs=run.metrics, episodes=run.episodes, latest=run.latest(), settings=run.settings)
    found = [alarm for kind in (OF_EPISODES if run.is_evaluation else CHECKS) for alarm in seen.alarms(kind)]
    return [*broken, *sorted(found, key=lambda alarm: -alarm.share)]


def alarm_metrics(
    history: Logs, log: Mapping[str, Any], settings: Mapping[str, Any], *, warns: bool
) -> dict[str, float]:
    """Return a metric `alarms/<name>` for each alarm: 1 if this log of a training step raises it, else 0.

    Of the earlier logs in `history`, those of training steps count. The settings are `correction` and
    `correction_bounds`. If `warns`, warn of an alarm about the sampler that no earlier log of the run has raised.
    """
    seen = Evidence(logs=[*(earlier for earlier in history if "loss" in earlier), log], settings=settings)
    found = {f"alarms/{kind.replace(' ', '_')}": [*seen.alarms(kind)] for kind in CHECKS}
    for name in OF_THE_SAMPLER:
        if warns and not any(earlier.get(name) for earlier in history):
            for alarm in found[name]:
                logger.warning("%s. %s", alarm.title, alarm.cause)
    return {name: float(bool(alarms)) for name, alarms in found.items()}


def tool_error_alarm(episodes: Sequence[Episode]) -> float:
    """Return 1 if a tool ended several calls of these episodes with the same error, else 0."""
    calls = [record for episode in episodes for record in episode.tool_calls if record.failed]
    return float(bool(repeated((call.name, call.outcome, call.error or "") for call in calls)))


def repeated(errors: Iterable[tuple[str, str, str]]) -> list[tuple[tuple[str, str, str], int]]:
    """Return the errors of tool calls (tool, outcome, message) that came again and again, and how often, at most three.

    Messages count by their first line without its numbers, so "7 is too high" and "9 is too high" are one.
    """
    counts = Counter((tool, outcome, alike(message)) for tool, outcome, message in errors)
    return [(error, count) for error, count in counts.most_common(3) if count >= REPEATED]


def spread(rows: Sequence[EpisodeRow]) -> tuple[int, int]:
    """Return the number of groups whose rewards differ, and of groups with two rewards or more."""
    groups: dict[str, list[float]] = {}
    for row in rows:
        if row.reward is not None:
            groups.setdefault(row.group, []).append(row.reward)
    compared = [rewards for rewards in groups.values() if len(rewards) >= 2]
    return sum(max(rewards) - min(rewards) > 1e-8 for rewards in compared), len(compared)


def _failures(seen: Evidence) -> Iterator[Alarm]:
    cause = "A failed episode has no reward, and is not counted."
    failed = [(place, row) for place, row in enumerate(seen.episodes) if row.failure]
    for kind, count in Counter(row.kind_of_failure for _, row in failed).most_common(3):
        place, first = next((place, row) for place, row in failed if row.kind_of_failure == kind)
        title = f"{count} of {len(seen.episodes)} episodes failed: {first.failure}{at_place(first.traceback)}"
        yield Alarm("failures", title, cause, place, first.traceback, share=count / len(seen.episodes))
    count = seen.log.get("episodes/failed", 0.0)
    if count and not failed:
        yield Alarm("failures", f"{count:g} episodes failed", cause)


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
    for name, count in repeated(name for name, _, _ in found):
        error, place = next((error, place) for other, error, place in found if other == name)
        title = f"{count} of {calls[error.tool]} calls of {error.tool} end with the same error: {error.message}"
        title += at_place(error.traceback)
        parts = [blame(row).get(("tool errors", f"{error.tool}: {name[2]}"), 0.0) for row in seen.latest]
        share = sum(parts) / max(1, len(parts))
        yield Alarm("tool errors", title, CAUSES[error.outcome], place, error.traceback, share=share)
    if seen.log.get(TOOL_ERRORS) and not found:
        title = "a tool ends several calls of a round with the same error"
        yield Alarm("tool errors", title, "Record episodes to see it: log_episodes_steps=1.")


def _no_spread(seen: Evidence) -> Iterator[Alarm]:
    shares = latest(seen.logs[-LATEST:], "frac_reward_zero_std", LATEST)
    with_spread, groups = spread(seen.latest)
    share = sum(shares) / len(shares) if shares else 1 - with_spread / groups if groups else 0.0
    if share > MANY_FLAT and not has_converged(seen.logs):
        title = f"{share:.0%} of the latest groups have equal rewards, so they teach nothing"
        rewards = {row.reward for row in seen.latest if row.reward is not None}
        cause = f"All rewards of the last recorded step are {min(rewards):g}." if len(rewards) == 1 else ""
        cause = cause or "Tasks are too easy or too hard; max_refills replaces such groups."
        yield Alarm("no spread", title, cause, seen.place(seen.latest), share=share)


def _truncation(seen: Evidence) -> Iterator[Alarm]:
    cut = [row for row in seen.latest if row.is_truncated]
    if seen.latest:
        counts = Counter(row.stop for row in cut)
        shares = {stop: count / len(seen.latest) for stop, count in counts.most_common()}
    else:
        shares = {stop: seen.log.get(f"stop/{stop}", 0.0) for stop in sorted(TRUNCATIONS)}
    if sum(shares.values()) > MANY_TRUNCATED:
        stop = max(shares, key=lambda stop: shares[stop])
        title = f"a limit cut {sum(shares.values()):.0%} of the latest episodes, most often {stop}"
        limit = limit_of(stop, in_evaluation=bool(cut) and cut[0].evaluation is not None)
        cause = f"{shares[stop]:.0%} ended by {stop}: raise {limit}, or let the prompt ask for shorter answers."
        yield Alarm("truncation", title, cause, seen.place(cut), share=sum(shares.values()))


def _stop_reasons(seen: Evidence) -> Iterator[Alarm]:
    cause = "The policy ends its episodes in another way than at the beginning; compare the same task."
    for name in sorted({name for log in seen.logs for name in log if name.startswith("stop/")} - set(USUAL_ENDS)):
        before, after = ends_of(seen.logs, name)
        if abs(after - before) > SHIFT:
            reason = name.removeprefix("stop/")
            title = f"{reason} went from {before:.0%} to {after:.0%} of the episodes"
            yield Alarm("stop reasons", title, cause, share=abs(after - before))


def _gap(seen: Evidence) -> Iterator[Alarm]:
    before, after = ends_of(seen.logs, "sampling/sampling_logp_difference/mean")
    if after > LARGE_GAP and after > 2 * before:
        yield Alarm(
            "gap",
            f"the generator's log-probabilities differ from the trainer's by {after:.3g}; it was {before:.3g}",
            "Precision, kernels or stale weights differ: colour tokens by gap in `gymnast view` to see where.",
        )


def _sample_size(seen: Evidence) -> Iterator[Alarm]:
    sizes = latest(seen.logs, "mismatch/ess", LOGS_IN_A_ROW)
    if len(sizes) == LOGS_IN_A_ROW and max(sizes) < LEAST_SAMPLE_SIZE:
        below = f"was below {LEAST_SAMPLE_SIZE} in {LOGS_IN_A_ROW} logs in a row"
        yield Alarm(
            "sample size",
            f"the effective sample size is {sizes[-1]:.2f}, and {below}",
            "The generator's log-probabilities are far from the trainer's, so most of the gradient comes from few "
            "tokens. Compare the precision of both (dtype, bf16, quantisation). Check that the generator has the "
            "weights in training: mismatch/kl of the first step is then near 0. Use a correction that masks, such as "
            "correction='icepop'.",
        )


def _rejected(seen: Evidence) -> Iterator[Alarm]:
    share = sum(latest(seen.logs, "mismatch/rejected", 1))
    if share > MANY_REJECTED:
        known = "correction" in seen.settings
        name = f"correction={seen.settings['correction']!r}" if known else "the correction"
        bounds = " and ".join(f"{bound:g}" for bound in seen.settings.get("correction_bounds", ()) if bound is not None)
        yield Alarm(
            "rejected",
            f"{name} removed {share:.0%} of the episodes since the last log, so they teach nothing",
            f"The policy is too far from the sampler for its bounds{bounds and ', ' + bounds}. Widen them "
            f"(correction_min, correction_max), lower learning_rate or max_staleness, or use a correction that weighs "
            f"tokens, such as 'tis'. mismatch/rejected is the share in each log.",
            share=share,
        )


def _length(seen: Evidence) -> Iterator[Alarm]:
    before, after = ends_of(seen.logs, "completions/mean_length")
    if after > RUN_AWAY * before > 0:
        cause = "Look at the longest episodes. Their reward may not depend on length, or a tool repeats itself."
        yield Alarm("length", f"answers grow: {before:.0f} tokens at the beginning, {after:.0f} now", cause)


CHECKS: Mapping[str, Callable[[Evidence], Iterator[Alarm]]] = {
    "failures": _failures,
    "tool errors": _tool_errors,
    "no spread": _no_spread,
    "truncation": _truncation,
    "stop reasons": _stop_reasons,
    "gap": _gap,
    "sample size": _sample_size,
    "rejected": _rejected,
    "length": _length,
}
"""The check of each kind of alarm."""

OF_EPISODES = ("failures", "tool errors", "truncation")
"""Kinds of alarms that an evaluation may have, too."""
