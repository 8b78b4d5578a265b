"""FailureWatch: reports lost episodes, and stops a training that loses too many."""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import replace

from ...envs.core import StopReason
from ...envs.engine.failures import failure_summary
from ...envs.episode import Episode, Failure

logger = logging.getLogger(__name__)

WINDOW = 10
"""Rounds over which failures are judged."""

ROUNDS_AT_START = 3
"""A training that has never had a group to learn from stops after this many rounds."""

FLAT_ROUNDS = 5
"""After this many rounds in which the rewards of no group differed, a warning names the likeliest cause."""


class RolloutError(RuntimeError):
    """Training stopped because too many episodes were lost; the message gives the reasons and a traceback."""


class FailureWatch:
    """Watches the last rounds of a training, warns of lost episodes, and stops when there are too many.

    A round without a group that can be learned from is skipped. Training stops when no round of the last `WINDOW`
    had such a group, or when more than `max_failure_rate` of the episodes of these rounds failed.
    """

    def __init__(self, max_failure_rate: float) -> None:
        self._max_failure_rate = max_failure_rate
        self._rounds: deque[tuple[int, int, int]] = deque(maxlen=WINDOW)  # episodes, failed episodes, groups
        self._had_a_group = False
        self._warned: set[str] = set()
        self._flat_rounds = 0  # rounds in a row in which no group's rewards differed
        self.latest = ""  # the latest failure in one line; it may have been retried

    def add_round(self, episodes: Sequence[Episode], *, played: int, failed: int, groups: int) -> None:
        """Judge one more round.

        Args:
            episodes: The episodes that this process played, for the message.
            played, failed, groups: Episodes, failed episodes and groups to learn from, in all processes.

        Raises:
            RolloutError: too many episodes were lost in the last rounds.
        """
        self.latest = next((_line(each) for each in reversed(_failures(episodes))), self.latest)
        self._rounds.append((played, failed, groups))
        self._had_a_group = self._had_a_group or groups > 0
        count = len(self._rounds)
        all_played, all_failed, all_groups = map(sum, zip(*self._rounds, strict=True))
        if all_groups == 0 and count >= (WINDOW if self._had_a_group else ROUNDS_AT_START):
            raise RolloutError(f"the last {count} rounds had no group to learn from: {_report(episodes)}")
        if count == WINDOW and all_failed > self._max_failure_rate * all_played:
            raise RolloutError(
                f"{all_failed} of {all_played} episodes of the last {count} rounds failed, more than "
                f"max_failure_rate={self._max_failure_rate:g} allows. In the last round {_report(episodes)}"
            )
        self._warn(episodes, skipped=groups == 0)
        self._flat_rounds = 0 if _has_spread(episodes) else self._flat_rounds + 1
        if self._flat_rounds == FLAT_ROUNDS:
            logger.warning("%s", _why_flat(episodes))

    def _warn(self, episodes: Sequence[Episode], *, skipped: bool) -> None:
        """Warn once about each kind of failure, retried or not, and about every skipped round."""
        new = {_kind(each) for each in _failures(episodes)} - self._warned
        if skipped:
            logger.warning("no group of this round can be learned from, so it is skipped: %s", lost_episodes(episodes))
        elif new:
            logger.warning("%s", lost_episodes(episodes))
        self._warned |= new


def check_evaluation(episodes: Sequence[Episode], max_failure_rate: float) -> None:
    """Check that enough episodes of an evaluation have a reward.

    Raises:
        RolloutError: more than `max_failure_rate` of them failed, or none has a reward.
    """
    failed = sum(each.failure is not None for each in episodes)
    if failed > max_failure_rate * len(episodes):
        raise RolloutError(
            f"more episodes failed than max_failure_rate={max_failure_rate:g} allows: {_report(episodes)}"
        )
    if all(each.reward is None for each in episodes):
        raise RolloutError(f"no episode of the evaluation has a reward: {_report(episodes)}")


def lost_episodes(episodes: Sequence[Episode]) -> str:
    """The numbers of lost episodes and the reasons, in one line."""
    failed = sum(each.failure is not None for each in episodes)
    parts = []
    if failed:
        summary = failure_summary(each for each in episodes if each.failure is not None)
        parts.append(f"{failed} of {len(episodes)} episodes failed: {summary}")
    before = [replace(episode, failure=failure) for episode in episodes for failure in episode.retried]
    if before:
        parts.append(f"{len(before)} failures were tried again: {failure_summary(before)}")
    others = [each for each in episodes if each.failure is None]
    reasons = {
        "had a prompt longer than the context (shorten it, or raise max_model_len)": [
            each for each in others if each.is_overlong
        ],
        "reached episode_timeout, so they cannot be compared": [
            each for each in others if each.stop is StopReason.TIMEOUT
        ],
        "had no reward (every reward function returned None)": [
            each for each in others if each.reward is None and not each.is_overlong
        ],
    }
    parts += [f"{len(lost)} of {len(episodes)} episodes {reason}" for reason, lost in reasons.items() if lost]
    return "; ".join(parts) or "no group has two members left to compare"


def _has_spread(episodes: Sequence[Episode]) -> bool:
    """Whether the rewards of some group differ."""
    rewards: dict[str, set[float]] = {}
    for episode in episodes:
        if episode.reward is not None:
            rewards.setdefault(episode.spec.group, set()).add(episode.reward)
    return any(len(each) > 1 for each in rewards.values())


def _why_flat(episodes: Sequence[Episode]) -> str:
    """The warning that nothing is learned, with the likeliest cause in a round's episodes."""
    rewards = {each.reward for each in episodes if each.reward is not None}
    hints = [f"all rewards of the last round are {min(rewards):g}"] if len(rewards) == 1 else []
    nothing = _gave_nothing(episodes)
    if nothing:
        hints = ["no step, grade or reward function gave a reward other than 0 (self.reward was never set or reached)"]
    truncated = sum(each.stop.is_truncation for each in episodes)
    if nothing or 2 * truncated >= len(episodes):
        stops = Counter(each.stop.value for each in episodes if nothing or each.stop.is_truncation)
        hints += [f"{count} of {len(episodes)} episodes ended by {reason}" for reason, count in stops.most_common(1)]
    calls = [record for each in episodes for record in each.tool_calls]
    wrong = [record for record in calls if record.failed]
    if wrong:
        hints.append(f"{len(wrong)} of {len(calls)} tool calls failed, the last ({wrong[-1].name}): {wrong[-1].error}")
    if not calls and any(each.tools for each in episodes):
        hints.append("no episode called a tool")
    return (
        f"the rewards of no group have differed for {FLAT_ROUNDS} rounds, so nothing is learned: "
        f"{'; '.join(hints) or 'all members of a group have the same reward'}"
    )


def _gave_nothing(episodes: Sequence[Episode]) -> bool:
    """Whether every reward of a round is 0, and every part of it."""
    parts = [part for each in episodes for part in (each.reward, *each.reward_parts.values())]
    steps = [turn.reward for each in episodes for turn in each.turns]
    return any(part is not None for part in parts) and not any(parts) and not any(steps)


def _report(episodes: Sequence[Episode]) -> str:
    """`lost_episodes`, and the traceback of one failure of the most frequent kind."""
    kinds = Counter(_kind(each.failure) for each in episodes if each.failure is not None)
    for episode in episodes:
        if episode.failure is not None and _kind(episode.failure) == kinds.most_common(1)[0][0]:
            name = f"{episode.spec.group}[{episode.spec.member}]"
            return f"{lost_episodes(episodes)}\n\n{name} failed: {episode.failure}\n\n{episode.failure.traceback}"
    return lost_episodes(episodes)


def _failures(episodes: Sequence[Episode]) -> list[Failure]:
    """The failures of these episodes, those of earlier attempts included."""
    return [each for episode in episodes for each in (*episode.retried, episode.failure) if each is not None]


def _kind(failure: Failure) -> str:
    return f"{failure.stage}: {failure.type}"


def _line(failure: Failure) -> str:
    return str(failure).partition("\n")[0][:200]
