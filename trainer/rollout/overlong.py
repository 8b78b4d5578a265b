"""The soft penalty for episodes that come close to their token limit."""

from __future__ import annotations

from collections.abc import Iterable

from ...envs.episode import Episode
from ..learning.settings import LearningSettings

PART = "overlong_penalty"
"""The name of the penalty among an episode's `reward_parts`."""


def charge_overlong(episodes: Iterable[Episode], settings: LearningSettings) -> None:
    """Add the penalty to the reward of each episode that has a reward and did not fail.

    The reward falls linearly in the last `overlong_buffer` tokens before the limit: the soft overlong punishment of
    DAPO (Yu et al. 2025, arXiv 2503.14476, equation 13), times `overlong_penalty`.
    """
    limit, buffer = settings.max_completion_length, settings.overlong_buffer
    for episode in episodes:
        if episode.reward is not None and episode.traces and not episode.stop.is_failure:
            length = sum(len(trace.completion_ids) for trace in episode.traces)  # tool results included
            over = length - (limit - buffer)
            penalty = -settings.overlong_penalty * min(1.0, max(0.0, over / buffer))
            episode.reward += penalty
            episode.reward_parts[PART] = penalty
