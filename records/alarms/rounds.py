"""Alarms about several rounds in a row, which a training gives while it plays."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from ...envs.episode import Episode
from ..files.episodes import rows_of
from .causes import likely_causes

logger = logging.getLogger(__name__)

ROUNDS_IN_A_ROW = 5
"""After this many rounds a warning is given."""

NAMED = 0.25
"""A warning names the causes of more than this part of the episodes."""


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
            rewards = {episode.reward for episode in episodes if episode.reward is not None}
            equal = [f"all rewards of the last round were {min(rewards):g}"] if len(rewards) == 1 else []
            likely = likely_causes(rows_of(episodes)) if episodes else []
            causes = equal + [cause.text for cause in likely if cause.weight > NAMED]
            logger.warning(
                "no group has had spread for %d rounds, so %s: %s",
                self._rounds,
                "only the KL or the entropy changes the weights" if other_terms else "nothing is learned",
                "; ".join(causes) or "all members of a group have the same reward",
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
