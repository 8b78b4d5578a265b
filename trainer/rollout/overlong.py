"""The soft penalty for episodes that come close to their token limit."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ...envs.episode import Episode

PART = "overlong_penalty"
"""The name of the penalty among an episode's `reward_parts`."""


@dataclass(kw_only=True, slots=True, frozen=True)
class OverlongPenalty:
    """Makes the reward fall linearly in the last tokens before the limit.

    The soft overlong punishment of DAPO (Yu et al. 2025, arXiv 2503.14476, equation 13), times `penalty`.
    """

    limit: int  # the option `max_completion_length`
    buffer: int  # tokens before the limit in which the reward falls; 0: there is no penalty
    penalty: float  # the reward that an episode loses if it reaches the limit

    def charge(self, episodes: Iterable[Episode]) -> None:
        """Add the penalty to the reward of each episode that has a reward and did not fail."""
        for episode in episodes:
            if episode.reward is not None and episode.traces and not episode.stop.is_failure:
                length = sum(len(trace.completion_ids) for trace in episode.traces)  # tool results included
                over = length - (self.limit - self.buffer)
                penalty = -self.penalty * min(1.0, max(0.0, over / self.buffer))
                episode.reward += penalty
                episode.reward_parts[PART] = penalty
