"""From episodes to groups: which episodes can be learned from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from ...envs.core import StopReason
from ...envs.episode import Episode

Group = list[Episode]

Treatment = Literal["teach", "mask", "leave"]
"""The treatment of an episode that a limit cut: teach = it is learned from; mask = it counts in the baseline of its
group, and has no loss tokens; leave = it leaves its group."""

Treatments = Mapping[StopReason, Treatment]

TREATMENTS: Treatments = {
    # The clock judges the machine and not the model.
    reason: "leave" if reason is StopReason.TIMEOUT else "teach"
    for reason in StopReason
    if reason.is_truncation
}
"""The treatment of each kind of truncation, by default."""


def form_groups(episodes: Sequence[Episode], treatments: Treatments = TREATMENTS) -> tuple[list[Group], int]:
    """Return the groups that can be compared within themselves, and the number of groups that cannot.

    Members are found by their group's id, never by position. An episode without a reward (it failed) or without a
    sampled token leaves its group, as does one that was cut and whose treatment is "leave". A group of fewer than two
    is dropped.
    """
    groups: dict[str, Group] = {}
    for episode in episodes:
        members = groups.setdefault(episode.spec.group, [])
        if episode.reward is not None and episode.num_sampled and treatments.get(episode.stop) != "leave":
            members.append(episode)
    kept = [members for members in groups.values() if len(members) >= 2]
    return kept, len(groups) - len(kept)
