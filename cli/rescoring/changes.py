"""What a change of the rewards does to the advantages of a run, step by step."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import zip_longest
from typing import Any

from ...envs.core import StopReason
from ...envs.episode import Episode, EpisodeSpec
from ...envs.runtime.places import at_place
from ...envs.runtime.threads import run_in_loop
from ...records.files.episodes import EpisodeRow
from ...records.files.run import Run
from ..terminal.exits import CommandError
from .rewards import RewardChange

ZERO = 1e-8  # smaller advantages teach nothing

Name = tuple[str, int]
"""Group and member."""


@dataclass(kw_only=True, slots=True)
class Change:
    """The rewards and advantages of one episode before and after the change."""

    step: int
    episode: int  # its place in the run, as `gymnast view` counts
    group: str
    member: int
    reward: float | None
    new_reward: float | None
    advantage: float  # of the turn in which it changes most
    new_advantage: float
    flipped: int = 0  # advantages that are positive instead of negative, or the other way round
    appeared: int = 0  # advantages that were 0: the episode taught nothing
    vanished: int = 0  # advantages that are 0 now
    advantages: int = 0
    failure: str | None = None  # of a reward function

    @property
    def size(self) -> float:
        return abs(self.new_advantage - self.advantage)


COUNTS = ("advantages", "flipped", "appeared", "vanished")
"""The counts of a `Change`, which are added up for a step."""


def figures_of(step: int, changes: Sequence[Change]) -> dict[str, Any]:
    """Return the means and counts of the changes of a step."""
    return {
        "step": step,
        "episodes": len(changes),
        "reward": _mean([change.reward for change in changes]),
        "new_reward": _mean([change.new_reward for change in changes]),
        **{name: sum(getattr(change, name) for change in changes) for name in COUNTS},
        "failed": sum(change.failure is not None for change in changes),
    }


def changes_of(run: Run, change: RewardChange) -> Iterator[tuple[int, list[Change]]]:
    """Yield each recorded step of a run that was read, with the changes of its episodes."""
    if not run.episodes:
        raise CommandError(f"{run.folder} has no episodes; a training writes them with log_episodes_steps=1")
    if "advantage_estimator" not in run.settings:
        raise CommandError(f"{run.folder} has no learning.jsonl that says how advantages were computed")
    places = {id(row): place for place, row in enumerate(run.episodes)}
    for step, rows in run.steps():
        # The baseline of a group is not known if a line about one of its episodes is broken.
        unknown = {row.group for row in rows if row.vote is None and any(other.vote for other in rows)}
        rows = [row for row in rows if row.group not in unknown and (step, row.group) not in run.incomplete]
        before = [run.episode(row) for row in rows]
        change.check(before)
        after = run_in_loop(change.apply(before))
        old, new = (_advantages(run.settings, rows, episodes) for episodes in (before, after))
        yield (
            step,
            [
                _change(row, places[id(row)], first, second, old.get(_name(row), []), new.get(_name(row), []))
                for row, first, second in zip(rows, before, after, strict=True)
            ],
        )


def _change(row: EpisodeRow, place: int, before: Episode, after: Episode, old: list[float], new: list[float]) -> Change:
    """Return the change of one episode with these advantages before and after."""
    pairs = list(zip_longest(old, new, fillvalue=0.0))
    most = max(pairs, key=lambda pair: abs(pair[1] - pair[0]), default=(0.0, 0.0))
    signs = [(_sign(first), _sign(second)) for first, second in pairs]
    failure = after.failure if before.failure is None else None
    return Change(
        step=row.step,
        episode=place,
        group=row.group,
        member=row.member,
        reward=before.reward,
        new_reward=after.reward,
        advantage=most[0],
        new_advantage=most[1],
        flipped=sum(first * second < 0 for first, second in signs),
        appeared=sum(first == 0 != second for first, second in signs),
        vanished=sum(second == 0 != first for first, second in signs),
        advantages=len(pairs),
        failure=f"{failure.type}: {failure.message}{at_place(failure.traceback)}" if failure else None,
    )


def _advantages(
    settings: Mapping[str, Any], rows: Sequence[EpisodeRow], episodes: Sequence[Episode]
) -> dict[Name, list[float]]:
    """Return the advantages of the episodes that are learned from, computed as the training does; loads PyTorch."""
    from ...trainer.learning.comparison import Comparison
    from ...trainer.learning.groups import TREATMENTS, form_groups

    options = {option.name: settings[option.name] for option in fields(Comparison) if option.name in settings}
    comparison = Comparison(**options)
    treatments: Any = {StopReason(name): value for name, value in settings.get("truncated", TREATMENTS).items()}
    charges = {_name(row): _charge(row) for row in rows}
    # A full group that the training did not learn from stays out.
    voting = [episode for row, episode in zip(rows, episodes, strict=True) if row.vote != "dropped"]
    groups, _ = form_groups(voting, treatments)
    members = [episode for group in groups for episode in group]
    comparison.check(members)
    rewards = [(episode.reward or 0.0) - charges[_name(episode.spec)] for episode in members]
    return {
        _name(episode.spec): advantages_K.tolist()
        for episode, advantages_K in zip(members, comparison(members, rewards), strict=True)
        if treatments.get(episode.stop) != "mask"  # it counts in the baseline only
    }


def _charge(row: EpisodeRow) -> float:
    """Return the divergence that the training took off the reward, with `kl_in="reward"`, before it compared."""
    for place in row.learning:
        line = json.loads(place.read())
        if "vote" in line and line.get("reward") is not None and row.reward is not None:
            return row.reward - line["reward"]
    return 0.0


def _name(episode: EpisodeRow | EpisodeSpec) -> Name:
    return episode.group, episode.member


def _sign(value: float) -> int:
    return 0 if abs(value) < ZERO else 1 if value > 0 else -1


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
