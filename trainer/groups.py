"""From episodes to groups: which episodes may teach, and when too many have failed to go on."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..envs.episode import Episode

Group = list[Episode]


class RolloutError(RuntimeError):
    """So many episodes failed that training would go on with (almost) nothing; the message has the first tracebacks."""


def form_groups(episodes: Sequence[Episode]) -> tuple[list[Group], int]:
    """The groups that can be compared within themselves, and the number of groups that cannot.

    Members are found by their group's id, never by position. An episode without a reward (it failed) or without a
    sampled token leaves its group, and a group of fewer than two is dropped.
    """
    groups: dict[str, Group] = {}
    for episode in episodes:
        members = groups.setdefault(episode.spec.group, [])
        if episode.reward is not None and episode.trace is not None and episode.trace.num_sampled > 0:
            members.append(episode)
    kept = [members for members in groups.values() if len(members) >= 2]
    return kept, len(groups) - len(kept)


def check_failures(episodes: Sequence[Episode], groups: Sequence[Group], max_failure_rate: float) -> None:
    """Check that what is left is worth a step.

    Raises:
        RolloutError: no group is left, or more than `max_failure_rate` of the episodes failed.
    """
    failed = [episode for episode in episodes if episode.failure is not None]
    if len(failed) > max_failure_rate * len(episodes):
        reason = f"more than max_failure_rate={max_failure_rate:g} allows"
    elif not groups:
        reason = "and no group has two members left to compare"
    else:
        return
    raise RolloutError(f"{len(failed)} of {len(episodes)} episodes failed, {reason}.\n\n{first_tracebacks(failed)}")


def first_tracebacks(failed: Sequence[Episode], most: int = 3) -> str:
    """The tracebacks of the first failures of each kind."""
    kinds: dict[tuple[str, str], Episode] = {}
    for episode in failed:
        if episode.failure is not None:
            kinds.setdefault((episode.failure.stage, episode.failure.type), episode)
    return "\n".join(
        f"{episode.spec.group}[{episode.spec.member}], {episode.failure.stage}:\n{episode.failure.traceback}"
        for episode in list(kinds.values())[:most]
        if episode.failure is not None
    )


def rewards_of(group: Group) -> Tensor:
    """Rewards (G,) of a group."""
    return torch.tensor([episode.reward for episode in group], dtype=torch.float32)
