"""From episodes to groups: which episodes can be learned from."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ...envs.core import StopReason
from ...envs.episode import Episode

Group = list[Episode]


def form_groups(episodes: Sequence[Episode], *, without_truncated: bool = False) -> tuple[list[Group], int]:
    """The groups that can be compared within themselves, and the number of groups that cannot.

    Members are found by their group's id, never by position. An episode without a reward (it failed) or without a
    sampled token leaves its group. So does one that `episode_timeout` cut, since the clock judges the machine and not
    the model; and one that any limit cut, if `without_truncated`. A group of fewer than two is dropped.
    """
    groups: dict[str, Group] = {}
    for episode in episodes:
        members = groups.setdefault(episode.spec.group, [])
        has_tokens = episode.trace is not None and episode.trace.num_sampled > 0
        is_cut = episode.stop is StopReason.TIMEOUT or (without_truncated and episode.stop.is_truncation)
        if episode.reward is not None and has_tokens and not is_cut:
            members.append(episode)
    kept = [members for members in groups.values() if len(members) >= 2]
    return kept, len(groups) - len(kept)


def rewards_of(group: Group) -> Tensor:
    """Rewards (G,) of a group, in float64."""
    return torch.tensor([episode.reward for episode in group], dtype=torch.float64)
