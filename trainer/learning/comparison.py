"""Comparison: from the rewards of a round's episodes to their advantages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from ...envs.episode import Episode
from .advantages import ESTIMATORS, Gather, Scale, scale_advantages, this_process_only, whiten
from .credit import Credit, compare, returns_of


@dataclass(kw_only=True, slots=True, frozen=True)
class Comparison:
    """How episodes are compared; the fields are options of the same name."""

    advantage_estimator: str
    scale_rewards: Scale
    normalize_advantages: bool
    credit: Credit
    discount: float

    def __call__(
        self, episodes: Sequence[Episode], rewards: Sequence[float], gather: Gather = this_process_only
    ) -> list[Tensor]:
        """The advantages (K,) of each episode: one for each turn with `credit="turn"`, else one.

        Args:
            episodes: Those that count, in any order.
            rewards: The reward of each.
            gather: As in `scale_advantages`.
        """

        def estimate(returns: list[Tensor]) -> list[Tensor]:
            """The advantages (G,) of each comparison, from its returns (G,)."""
            advantages = [estimator.advantage(returns_G) for returns_G in returns]
            advantages = scale_advantages(advantages, returns, self.scale_rewards, gather)
            return whiten(advantages, gather) if self.normalize_advantages else advantages

        estimator = ESTIMATORS[self.advantage_estimator]
        pairs = zip(episodes, rewards, strict=True)
        returns = [returns_of(episode, reward, self.credit, self.discount) for episode, reward in pairs]
        groups = [episode.spec.group for episode in episodes]
        return compare(groups, returns, estimate, least=1 if estimator.whitens else 2)
