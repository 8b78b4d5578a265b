"""Alarms about several logs or rounds in a row."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import takewhile
from typing import Any

from ...envs.core import StopReason
from ...envs.episode import Episode
from ...records.alarms.metric_alarms import LEAST_SAMPLE_SIZE, MANY_REJECTED, is_repeated, raised
from ..learning.settings import LearningSettings

logger = logging.getLogger(__name__)

LOGS_IN_A_ROW = 3

ROUNDS_IN_A_ROW = 5
"""After this many rounds of groups with equal rewards a warning names the likeliest cause."""

LIMITS = {
    StopReason.MAX_TURNS: "max_turns",
    StopReason.MAX_TOOL_CALLS: "max_tool_calls",
    StopReason.MAX_TOKENS: "max_completion_length",
    StopReason.TURN_TRUNCATED: "max_turn_tokens",
    StopReason.CONTEXT_OVERFLOW: "max_model_len",
    StopReason.TIMEOUT: "episode_timeout",
}
"""The option that sets the limit behind a stop reason."""


TOOL_ERRORS = "alarms/tool_errors"
"""The metric of an alarm that needs the episodes of a round; the others are known from metrics."""


def alarm_metrics(history: Sequence[Mapping[str, Any]], logs: Mapping[str, Any]) -> dict[str, float]:
    """A metric `alarms/<name>` for each alarm: 1 if it is raised, else 0.

    Args:
        history: What was logged before, of which the logs of training steps count.
        logs: The log of a training step.
    """
    earlier = [each for each in history if "loss" in each]
    return {f"alarms/{name}": float(is_raised) for name, is_raised in raised([*earlier, logs]).items()}


def tool_error_alarm(episodes: Sequence[Episode]) -> float:
    """1 if a tool ended several calls of these episodes with the same error, else 0."""
    calls = [record for each in episodes for record in each.tool_calls if record.failed]
    return float(is_repeated((each.name, each.outcome, each.error or "") for each in calls))


def warn_of_mismatch(history: Sequence[Mapping[str, Any]], logs: Mapping[str, Any], *, generator: str) -> None:
    """Warn when the effective sample size has stayed low in several logs in a row, also over a resumption.

    Args:
        history: What was logged before, of which the logs of training steps count.
        logs: The log of a training step.
        generator: Names the generator in the message.
    """
    sizes = [each["mismatch/ess"] for each in (*history, logs) if "loss" in each and "mismatch/ess" in each]
    low = sum(1 for _ in takewhile(lambda size: size < LEAST_SAMPLE_SIZE, reversed(sizes)))
    if "mismatch/ess" in logs and low == LOGS_IN_A_ROW:
        logger.warning(
            "the effective sample size is %.2f, and was below %.1f in %d logs in a row: the log-probabilities of the "
            "generator (%s) are far from the trainer's. Compare the precision of both (dtype, bf16, quantisation). "
            "Check that the generator has the weights in training: mismatch/kl of the first step is then near 0. Use "
            "a correction that masks, such as correction='icepop'.",
            logs["mismatch/ess"],
            LEAST_SAMPLE_SIZE,
            LOGS_IN_A_ROW,
            generator,
        )


def warn_of_rejections(
    history: Sequence[Mapping[str, Any]], logs: Mapping[str, Any], settings: LearningSettings
) -> None:
    """Warn of the first log in which the correction removed most episodes; arguments are as in `warn_of_mismatch`."""
    shares = [each.get("mismatch/rejected", 0.0) for each in (*history, logs)]
    if shares[-1] > MANY_REJECTED >= max(shares[:-1], default=0.0):
        logger.warning(
            "correction=%r removed %.0f%% of the episodes since the last log, because the policy is too far from the "
            "sampler for its bounds, %g and %g: they teach nothing. Widen them (correction_min, correction_max), lower "
            "learning_rate or max_staleness, or use a correction that weighs tokens, such as 'tis'. mismatch/rejected "
            "is the share in each log",
            *(settings.correction, 100 * shares[-1], *settings.correction_bounds),
        )


class NoSpreadAlarm:
    """Warns when all groups of several rounds had equal rewards, so that nothing was learned."""

    def __init__(self) -> None:
        self._rounds = 0  # in a row

    def add(self, episodes: Sequence[Episode], *, with_spread: int, other_terms: bool = False) -> None:
        """Judge one more round.

        Args:
            episodes: The episodes that this process played, for the message.
            with_spread: Groups whose rewards differ, in all processes.
            other_terms: Whether the weights change without a spread, too: by the KL, or the entropy bonus.
        """
        self._rounds = 0 if with_spread else self._rounds + 1
        if self._rounds == ROUNDS_IN_A_ROW:
            logger.warning(
                "no group has had spread for %d rounds, so %s: %s",
                self._rounds,
                "only the KL or the entropy changes the weights" if other_terms else "nothing is learned",
                "; ".join(_likely_causes(episodes)) or "all members of a group have the same reward",
            )


class NoTurnRewardAlarm:
    """Warns when `credit="turn"` has no use: several rounds had rewards, and no turn before the last one had any."""

    def __init__(self) -> None:
        self._rounds = 0  # with a rewarded episode of several turns
        self._is_settled = False  # a turn had a reward, or the warning was given

    def add(self, *, rewarded: int, before_the_end: int) -> None:
        """Judge one more round of all processes.

        Args:
            rewarded: Its episodes of several turns that have a reward.
            before_the_end: Its episodes in which a turn before the last one has a reward.
        """
        self._is_settled |= before_the_end > 0
        self._rounds += rewarded > 0
        if self._rounds >= ROUNDS_IN_A_ROW and not self._is_settled:
            self._is_settled = True
            logger.warning(
                "credit='turn', but in %d rounds no turn before the last one of an episode had a reward of its own, so "
                "every turn is judged by the reward at the end, only discounted: set self.reward in the steps that "
                "earn it, or credit='episode'",
                self._rounds,
            )


def _likely_causes(episodes: Sequence[Episode]) -> list[str]:
    """The reasons for equal rewards that the episodes of a round suggest."""
    rewards = {each.reward for each in episodes if each.reward is not None}
    causes = [f"all rewards of the last round were {min(rewards):g}"] if len(rewards) == 1 else []
    nothing = _gave_nothing(episodes)
    if nothing and causes:
        causes[0] += ", and no step, grade or reward function gave another (self.reward was never set or reached)"
    truncated = sum(each.stop.is_truncation for each in episodes)
    if nothing or 2 * truncated >= len(episodes) > 0:
        stops = Counter(each.stop for each in episodes if nothing or each.stop.is_truncation)
        [(stop, count)] = stops.most_common(1)
        limit = f" (the option {LIMITS[stop]})" if stop in LIMITS else ""
        causes.append(f"{count / len(episodes):.0%} of the episodes ended by {stop.value}{limit}")
    calls = [record for each in episodes for record in each.tool_calls]
    wrong = [record for record in calls if record.failed]
    if wrong:
        last = wrong[-1]
        causes.append(f"{len(wrong)} of {len(calls)} tool calls failed, the last ({last.name}): {last.error}")
    if not calls and any(each.tools for each in episodes):
        causes.append("no episode called a tool")
    return causes


def _gave_nothing(episodes: Sequence[Episode]) -> bool:
    """Whether every reward of a round is 0, and every part of it."""
    parts = [part for each in episodes for part in (each.reward, *each.reward_parts.values())]
    steps = [turn.reward for each in episodes for turn in each.turns]
    return any(part is not None for part in parts) and not any(parts) and not any(steps)
