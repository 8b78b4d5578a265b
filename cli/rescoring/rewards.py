"""RewardChange: new rewards for episodes that were played."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ...envs.episode import Episode
from ...envs.rewards import Rewards
from ..terminal.exits import CommandError

CALLS_AT_ONCE = 64  # calls of reward functions

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
            CommandError: a weight or a part is named that there is not, or the recorded weights are not known.
            ValueError: a function takes a column that the rows do not have.
        """
        parts = {name for episode in episodes for name in episode.reward_parts}
        known = {*parts, *self._rewards.functions}
        # Without parts, all episodes of this step failed; another step has them.
        if parts and (unknown := sorted({*self.weights, *self.without} - known)):
            raise CommandError(f"no part of the reward is called {unknown[0]!r}; there are {', '.join(sorted(known))}")
        for episode in episodes:
            self._check_weights(episode)
        if episodes:
            self._rewards.check_columns(list(map(str, episodes[0].spec.task.row)))

    def _check_weights(self, episode: Episode) -> None:
        if episode.reward is None or episode.failure is not None:
            return
        sum_of_parts = _sum_of(episode.reward_parts, self.recorded_weights)
        if sum_of_parts is None or not math.isclose(sum_of_parts, episode.reward, rel_tol=1e-6, abs_tol=1e-9):
            raise CommandError(
                f"the reward of {episode.spec.group}[{episode.spec.member}] is {episode.reward:g}, but its parts "
                f"{episode.reward_parts} add up to {sum_of_parts}: learning.jsonl does not hold the reward_weights of "
                f"this run, so it was recorded by an older version"
            )

    async def apply(self, episodes: Sequence[Episode]) -> list[Episode]:
        """Return copies of a step's episodes with their new rewards; an episode fails if a function fails for it."""
        copies = [self._copy(episode) for episode in episodes]
        groups: dict[str, list[Episode]] = {}
        for copy in copies:
            groups.setdefault(copy.spec.group, []).append(copy)
        places = asyncio.Semaphore(CALLS_AT_ONCE)

        async def call(names: Sequence[str], members: Sequence[Episode]) -> None:
            async with places:
                await self._rewards.add(names, members)

        # One after the other for an episode: both ways of calling add to its parts.
        await asyncio.gather(*[call(self._rewards.for_episodes, [copy]) for copy in copies])
        await asyncio.gather(*[call(self._rewards.for_groups, members) for members in groups.values()])
        for episode, copy in zip(episodes, copies, strict=True):
            self._add_up(episode, copy)
        return copies

    def _copy(self, episode: Episode) -> Episode:
        """Return a copy whose turns have the environment's rewards by their new weight."""
        weight = 0.0 if ENVIRONMENT in self.without else self.weights.get(ENVIRONMENT, 1.0)
        turns = [replace(turn, reward=weight * turn.reward) for turn in episode.turns]
        return replace(episode, turns=turns, reward_parts={})

    def _add_up(self, episode: Episode, copy: Episode) -> None:
        if copy.failure is not None or copy.is_overlong:
            return  # it is not judged
        kept = {
            name: part
            for name, part in episode.reward_parts.items()
            if name not in (*self.without, *self._rewards.functions)
        }
        copy.reward_parts = kept | copy.reward_parts
        copy.reward = _sum_of(copy.reward_parts, {**self.recorded_weights, **self.weights})


def _sum_of(parts: Mapping[str, float | None], weights: Mapping[str, float]) -> float | None:
    applicable = [weights.get(name, 1.0) * part for name, part in parts.items() if part is not None]
    return sum(applicable) if applicable else None
