"""FailureWatch: reports lost episodes, and stops a training that loses too many."""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from ...envs.engine.failures import failure_counts, failure_summary
from ...envs.episode import Episode, Failure
from ..learning.groups import TREATMENTS, Treatments

logger = logging.getLogger(__name__)

WINDOW = 10
"""Rounds over which failures are judged."""

ROUNDS_AT_START = 3
"""A training that has never had a group to learn from stops after this many rounds."""


class RolloutError(RuntimeError):
    """Training stopped because too many episodes were lost; the message gives the reasons and a traceback."""


@dataclass
class FailureTotals:
    """Everything that went wrong in a training, for one line at its end.

    The counts have names such as `step: TimeoutError`, or `look: timeout` for a call of the tool `look`.
    """

    played: int = 0
    lost: Counter[str] = field(default_factory=Counter)  # episodes that failed, or that episode_timeout cut
    retried: Counter[str] = field(default_factory=Counter)  # failures that were followed by another attempt
    unclosed: Counter[str] = field(default_factory=Counter)  # environments that did not close cleanly
    tools: Counter[str] = field(default_factory=Counter)  # calls that raised or timed out, not the model's mistakes

    @classmethod
    def of(cls, episodes: Sequence[Episode]) -> FailureTotals:
        """Count the episodes of a round."""
        retried = [failure for episode in episodes for failure in episode.retried]
        unclosed = [episode.close_failure for episode in episodes if episode.close_failure is not None]
        calls = [call for episode in episodes for call in episode.tool_calls]
        return cls(
            played=len(episodes),
            lost=failure_counts(episodes),
            retried=Counter(failure.kind for failure in retried),
            unclosed=Counter(failure.kind for failure in unclosed),
            tools=Counter(f"{call.name}: {call.outcome}" for call in calls if call.outcome in ("exception", "timeout")),
        )

    def __add__(self, other: FailureTotals) -> FailureTotals:
        return FailureTotals(*(getattr(self, name) + count for name, count in vars(other).items()))

    def __str__(self) -> str:
        """Return one line; empty if nothing went wrong."""
        parts = {
            f"lost episodes: {self.lost.total()} of {self.played}": self.lost,
            f"failures tried again: {self.retried.total()}": self.retried,
            f"environments not closed cleanly: {self.unclosed.total()}": self.unclosed,
            f"broken tool calls: {self.tools.total()}": self.tools,
        }
        return "; ".join(f"{text} ({_listed(counts)})" for text, counts in parts.items() if counts)


def _listed(counts: Counter[str]) -> str:
    ordered = sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))
    return ", ".join(f"{count} x {kind}" for kind, count in ordered)


@dataclass
class FailureWatch:
    """Watches the last rounds of a training, warns of lost episodes, and stops when there are too many.

    A round without a group to learn from is skipped. Training stops when no round of the last `WINDOW`
    had such a group, or when more than `max_failure_rate` of the episodes of these rounds failed.
    """

    max_failure_rate: float
    treatments: Treatments = field(default_factory=lambda: TREATMENTS)  # of truncated episodes, for the messages
    latest: str = ""  # the latest failure in one line; it may have been retried
    totals: FailureTotals = field(default_factory=FailureTotals)
    _rounds: deque[tuple[int, int, int]] = field(default_factory=lambda: deque(maxlen=WINDOW))
    """Episodes, failed episodes and samples of each round."""
    _had_a_group: bool = False
    _warned: set[str] = field(default_factory=set)

    def add_round(
        self, episodes: Sequence[Episode], *, played: int, failed: int, samples: int, rejected: float = 0.0
    ) -> None:
        """Judge one more round; raise a RolloutError if too many episodes were lost in the last rounds.

        `played`, `failed` and `samples` are the numbers of episodes, failed episodes and samples to learn from, in all
        processes. For the message there are the episodes of this process, and the share that the correction `rejected`.
        """
        self.totals += FailureTotals.of(episodes)
        if failures := _failures(episodes):
            self.latest = str(failures[-1]).partition("\n")[0][:200]
        self._rounds.append((played, failed, samples))
        self._had_a_group = self._had_a_group or samples > 0
        count = len(self._rounds)
        all_played, all_failed, all_samples = map(sum, zip(*self._rounds, strict=True))
        lost = lost_episodes(episodes, self.treatments, rejected=rejected)
        if all_samples == 0 and count >= (WINDOW if self._had_a_group else ROUNDS_AT_START):
            raise RolloutError(f"the last {count} rounds had no group to learn from: {lost}{_traceback(episodes)}")
        if count == WINDOW and all_failed > self.max_failure_rate * all_played:
            raise RolloutError(
                f"{all_failed} of {all_played} episodes of the last {count} rounds failed, more than "
                f"max_failure_rate={self.max_failure_rate:g} allows. In the last round {lost}{_traceback(episodes)}"
            )
        # Log each kind of failure once, retried or not, and every skipped round.
        new = {failure.kind for failure in failures} - self._warned
        if samples == 0:
            logger.warning("no group of this round can be learned from, so it is skipped: %s", lost)
        elif new:
            logger.warning("%s", lost)
        self._warned |= new


def check_evaluation(episodes: Sequence[Episode], max_failure_rate: float) -> None:
    """Raise a RolloutError if more than `max_failure_rate` of the episodes failed, or none has a reward."""
    failed = sum(episode.failure is not None for episode in episodes)
    report = f"{lost_episodes(episodes, {})}{_traceback(episodes)}"
    if failed > max_failure_rate * len(episodes):
        raise RolloutError(f"more episodes failed than max_failure_rate={max_failure_rate:g} allows: {report}")
    if all(episode.reward is None for episode in episodes):
        raise RolloutError(f"no episode of the evaluation has a reward: {report}")


def lost_episodes(episodes: Sequence[Episode], treatments: Treatments, *, rejected: float = 0.0) -> str:
    """Return the numbers of lost episodes and the reasons in a line; arguments are as in `FailureWatch.add_round`."""
    failed = sum(episode.failure is not None for episode in episodes)
    parts = []
    if failed:
        summary = failure_summary(episode for episode in episodes if episode.failure is not None)
        parts.append(f"{failed} of {len(episodes)} episodes failed: {summary}")
    before = [replace(episode, failure=failure) for episode in episodes for failure in episode.retried]
    if before:
        parts.append(f"{len(before)} failures were tried again: {failure_summary(before)}")
    others = [episode for episode in episodes if episode.failure is None]
    reasons = {
        "had a prompt longer than the context (shorten it, or raise max_model_len)": [
            episode for episode in others if episode.is_overlong
        ],
        "had no reward (every reward function returned None)": [
            episode for episode in others if episode.reward is None and not episode.is_overlong
        ],
    }
    for stop, treatment in treatments.items():
        if treatment != "teach":
            reason = f"ended by {stop.value}, and the option `truncated` says {treatment!r}"
            reasons[reason] = [episode for episode in others if episode.stop is stop and not episode.is_overlong]
    parts += [f"{len(lost)} of {len(episodes)} episodes {reason}" for reason, lost in reasons.items() if lost]
    if rejected:
        parts.append(f"the correction rejected {rejected:.0%} of the episodes")
    return "; ".join(parts) or "no group has two members left to compare"


def _traceback(episodes: Sequence[Episode]) -> str:
    """Return the traceback of one failure of the most frequent kind; empty if nothing failed."""
    kinds = Counter(episode.failure.kind for episode in episodes if episode.failure is not None)
    for episode in episodes:
        if episode.failure is not None and episode.failure.kind == kinds.most_common(1)[0][0]:
            name = f"{episode.spec.group}[{episode.spec.member}]"
            return f"\n\n{name} failed: {episode.failure}\n\n{episode.failure.traceback}"
    return ""


def _failures(episodes: Sequence[Episode]) -> list[Failure]:
    """Return the failures of these episodes, those of earlier attempts included."""
    failures = [failure for episode in episodes for failure in (*episode.retried, episode.failure)]
    return [failure for failure in failures if failure is not None]
