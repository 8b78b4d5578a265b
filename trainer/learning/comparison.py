"""Comparison: from the rewards of a round's episodes to their advantages."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import zip_longest

from torch import Tensor

from ...envs.episode import Episode
from .advantages import ESTIMATORS, Gather, Scale, scale_advantages, this_process_only, whiten
from .credit import Credit, compare, returns_of


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

        Args:
            episodes: Those that count, in any order.
            rewards: The reward of each.
            gather: As in `scale_advantages`.
        """

        def estimate(returns: list[Tensor]) -> list[Tensor]:
            """Return the advantages (G,) of each comparison, from its returns (G,)."""
            advantages = [estimator.advantage(returns_G) for returns_G in returns]
            advantages = scale_advantages(advantages, returns, self.scale_rewards, gather)
            return whiten(advantages, gather) if self.normalize_advantages else advantages

        estimator = ESTIMATORS[self.advantage_estimator]
        pairs = zip(episodes, rewards, strict=True)
        returns = [self._returns(episode, reward) for episode, reward in pairs]
        groups = [episode.spec.group for episode in episodes]
        return compare(groups, returns, estimate, least=1 if estimator.whitens else 2)

    def has_spread(self, group: Sequence[Episode]) -> bool:
        """Return whether the returns of some turn differ within a group. If not, its advantages are 0."""
        returns = [self._returns(episode, episode.reward or 0.0).tolist() for episode in group]
        turns = [[value for value in turn if value is not None] for turn in zip_longest(*returns)]
        return any(max(turn) - min(turn) > 1e-8 for turn in turns)  # as in the metric `frac_reward_zero_std`

    def check(self, episodes: Iterable[Episode]) -> None:
        """Check that the estimator can take the returns of these episodes: `max_rl` divides by their mean.

        Raises:
            ValueError: one is negative, so the returns are not rates of success; the message names the task.
        """
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
