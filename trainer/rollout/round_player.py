"""RoundPlayer: plays the episodes of a training round, and forms the groups that are learned from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ...envs.episode import Episode, EpisodeSpec
from ..learning.groups import Group, Treatments, form_groups
from .overlong import OverlongPenalty
from .schedule import Rows, Schedule


@dataclass(kw_only=True, slots=True, frozen=True)
class PlayedRound:
    """What a process has played in a round."""

    episodes: list[Episode]
    """All of them."""
    groups: list[Group]
    """Those that are learned from."""
    metrics: dict[str, float]


@dataclass(kw_only=True, slots=True, frozen=True)
class RoundPlayer:
    """Plays the rounds of a schedule in this process."""

    play: Callable[[list[EpisodeSpec]], list[Episode]]
    """Raises in all processes or in none."""
    schedule: Schedule
    treatments: Treatments
    penalty: OverlongPenalty

    def __call__(self, rows: Rows, index: int) -> PlayedRound:
        """Play the round of this number; its episodes have their final rewards."""
        episodes = self.play(self.schedule.specs(rows, index))
        self.penalty.charge(episodes)
        groups, dropped = form_groups(episodes, self.treatments)
        return PlayedRound(episodes=episodes, groups=groups, metrics={"groups/dropped": float(dropped)})
