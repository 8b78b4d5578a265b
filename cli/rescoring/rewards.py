"""RewardChange: new rewards for episodes that were played."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ...envs.episode import Episode
from ...envs.rewards import Rewards
from ..terminal.exits import CommandError

GROUPS_AT_ONCE = 8  # whose reward functions are called

ENVIRONMENT = "environment"  # the part of a reward that the environment gave


@dataclass(kw_only=True)
class RewardChange:
    """Functions, weights and parts by which rewards change.

    A function takes the place of the part of its name, or is a new part. All other parts stay as they were recorded.
    """

    functions: Sequence[Callable[..., Any]] = ()
    weights: Mapping[str, float] = field(default_factory=dict)  # of parts and functions
    without: Sequence[str] = ()  # parts that no longer count
    recorded_weights: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._rewards = Rewards(self.functions)

    def check(self, episodes: Sequence[Episode]) -> None:
        """Check that the change fits these episodes.

        Raises:
            CommandError: a weight or a part is named that there is not.
            ValueError: a function takes a column that the rows do not have.
        """
        parts = {name for episode in episodes for name in episode.reward_parts}
        known = {*parts, *self._rewards.functions}
        # Without parts, all episodes of this step failed; another step has them.
        if parts and (unknown := sorted({*self.weights, *self.without} - known)):
            raise CommandError(f"no part of the reward is called {unknown[0]!r}; there are {', '.join(sorted(known))}")
        if episodes:
            self._rewards.check_columns(list(map(str, episodes[0].spec.task.row)))

    async def apply(self, episodes: Sequence[Episode]) -> list[Episode]:
        """Return copies of a step's episodes with their new rewards; an episode fails if a function fails for it."""
        copies = [self._copy(episode) for episode in episodes]
        groups: dict[str, list[Episode]] = {}
        for copy in copies:
            groups.setdefault(copy.spec.group, []).append(copy)
        places = asyncio.Semaphore(GROUPS_AT_ONCE)

        async def judge(members: Sequence[Episode]) -> None:
            async with places:
                await asyncio.gather(*[self._rewards.add(self._rewards.for_episodes, [copy]) for copy in members])
                await self._rewards.add(self._rewards.for_groups, members)

        await asyncio.gather(*map(judge, groups.values()))
        for episode, copy in zip(episodes, copies, strict=True):
            if copy.failure is None and not copy.is_overlong:  # the others are not judged
                self._add_up(episode, copy)
        return copies

    def _copy(self, episode: Episode) -> Episode:
        """Return a copy whose turns have the environment's rewards by their new weight."""
        weight = 0.0 if ENVIRONMENT in self.without else self.weights.get(ENVIRONMENT, 1.0)
        turns = [replace(turn, reward=weight * turn.reward) for turn in episode.turns]
        return replace(episode, turns=turns, reward_parts={})

    def _add_up(self, episode: Episode, copy: Episode) -> None:
        gone = {*self.without, *self._rewards.functions}
        kept = {name: part for name, part in episode.reward_parts.items() if name not in gone}
        copy.reward_parts = kept | copy.reward_parts
        weights = {**self.recorded_weights, **self.weights}
        applicable = [weights.get(name, 1.0) * part for name, part in copy.reward_parts.items() if part is not None]
        copy.reward = sum(applicable) if applicable else None
