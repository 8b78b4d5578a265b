"""Comparison: from the rewards of a round's episodes to their advantages."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import zip_longest

import torch
from torch import Tensor

from ...envs.episode import Episode
from .advantages import ESTIMATORS, Gather, Scale, scale_advantages, this_process_only, whiten
from .credit import Credit, returns_of


@dataclass(kw_only=True, slots=True, frozen=True)
class Comparison:
    """How episodes are compared; the fields are options of the same name."""

    advantage_estimator: str = "grpo"
    scale_rewards: Scale = "group"
    normalize_advantages: bool = False
    credit: Credit = "episode"
    discount: float = 1.0

    def __call__(
        self, episodes: Sequence[Episode], rewards: Sequence[float], gather: Gather = this_process_only
    ) -> list[Tensor]:
        """Return the advantages (K,) of each episode: one for each turn with `credit="turn"`, else one.

        Turn k is compared with turn k of those members of the group that have one. If no other has one, its advantage
        is 0, unless the estimator compares with the whole batch. `gather` is as in `scale_advantages`.
        """
        estimator = ESTIMATORS[self.advantage_estimator]
        returns = [self._returns(episode, reward) for episode, reward in zip(episodes, rewards, strict=True)]
        members: dict[tuple[str, int], list[int]] = defaultdict(list)
        for index, episode in enumerate(episodes):
            for turn in range(len(returns[index])):
                members[episode.spec.group, turn].append(index)
        sets = [(turn, indices) for (_, turn), indices in members.items() if estimator.whitens or len(indices) > 1]
        compared = [torch.stack([returns[index][turn] for index in indices]) for turn, indices in sets]
        estimates = [estimator.advantage(returns_G) for returns_G in compared]
        estimates = scale_advantages(estimates, compared, self.scale_rewards, gather)
        estimates = whiten(estimates, gather) if self.normalize_advantages else estimates
        advantages = [torch.zeros_like(returns_K) for returns_K in returns]
        for (turn, indices), advantages_G in zip(sets, estimates, strict=True):
            for index, advantage in zip(indices, advantages_G, strict=True):
                advantages[index][turn] = advantage
        return advantages

    def has_spread(self, group: Sequence[Episode]) -> bool:
        """Return whether the returns of some turn differ within a group. If not, its advantages are 0."""
        returns = [self._returns(episode, episode.reward or 0.0).tolist() for episode in group]
        turns = [[value for value in turn if value is not None] for turn in zip_longest(*returns)]
        return any(max(turn) - min(turn) > 1e-8 for turn in turns)  # as in the metric `frac_reward_zero_std`

    def check(self, episodes: Iterable[Episode]) -> None:
        """Raise a ValueError if a return is negative and the estimator is `max_rl`, which divides by their mean."""
        if self.advantage_estimator != "max_rl":
            return
        for episode in episodes:
            if episode.reward is None:
                continue
            least = self._returns(episode, episode.reward).min().item()
            if least < 0:
                what, remedy = "reward", "change the rewards, or take another estimator"
                if episode.reward >= 0:  # such as the 0 of a failed episode whose earlier turns had rewards
                    what, remedy = "return of a turn", "set credit='episode', or take another estimator"
                raise ValueError(
                    f"advantage_estimator='max_rl' divides by the mean {what}, which must be at least 0 in every "
                    f"episode: {episode.spec.group}[{episode.spec.member}] has {least:g}; {remedy}"
                )

    def _returns(self, episode: Episode, reward: float) -> Tensor:
        return returns_of(episode, reward, self.credit, self.discount)


BY_REWARD = Comparison()
"""Compares episodes by their rewards, as `GRPOConfig` does by default."""
