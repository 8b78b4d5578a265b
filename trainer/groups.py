"""From episodes to groups: which episodes may teach, and when too many have failed to go on."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..envs.core import StopReason
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


def is_overlong(episode: Episode) -> bool:
    """Whether the prompt left no room for an answer: the episode was dropped, it did not fail."""
    return episode.stop is StopReason.CONTEXT_OVERFLOW and not episode.turns


def check_failures(
    episodes: Sequence[Episode], groups: Sequence[Group], max_failure_rate: float, *, num_processes: int = 1
) -> None:
    """Check that what is left is worth a step.

    Args:
        episodes: What one process played in a round, or what all of them did in an evaluation.
        groups: Those of them that are left.
        max_failure_rate: Share of failed episodes above which it is not.
        num_processes: Above 1, the message says that this is one process of so many.

    Raises:
        RolloutError: no group is left, or more than `max_failure_rate` of the episodes failed.
    """
    failed = [episode for episode in episodes if episode.failure is not None]
    overlong = sum(is_overlong(episode) for episode in episodes)
    whose = f" of this process (one of {num_processes}; each needs a group)" if num_processes > 1 else ""
    if not groups and overlong == len(episodes):
        raise RolloutError(
            f"the prompts of all {overlong} episodes{whose} are longer than the context, so nothing was played: "
            f"shorten the prompts, or raise max_model_len"
        )
    if len(failed) > max_failure_rate * len(episodes):
        reason = f"more than max_failure_rate={max_failure_rate:g} allows"
    elif not groups:
        dropped = f"{overlong} had a prompt longer than the context, " if overlong else ""
        reason = f"{dropped}and no group has two members left to compare"
    else:
        return
    message = f"{len(failed)} of {len(episodes)} episodes{whose} failed, {reason}."
    raise RolloutError(f"{message}\n\n{first_tracebacks(failed)}")


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
