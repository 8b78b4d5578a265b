"""What a change of the rewards does to the advantages of a run, step by step."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import zip_longest
from typing import Any

from ...envs.core import StopReason
from ...envs.episode import Episode, Failure
from ...envs.runtime.threads import run_in_loop
from ...records.files.episodes import EpisodeRow
from ...records.files.run import Run
from ..terminal.exits import CommandError
from ..terminal.places import at_place
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
    numbers = {id(row): number for number, row in enumerate(run.episodes)}
    for step, rows in run.steps():
        # The baseline of a group is not known if a line about one of its episodes is broken.
        unknown = {row.group for row in rows if row.vote is None and any(other.vote for other in rows)}
        rows = [row for row in rows if row.group not in unknown and (step, row.group) not in run.incomplete]
        places = [numbers[id(row)] for row in rows]
        yield step, _of_step(run, rows, places, change)


def _of_step(run: Run, rows: Sequence[EpisodeRow], places: Sequence[int], change: RewardChange) -> list[Change]:
    before = [run.episode(row) for row in rows]
    change.check(before)
    after = run_in_loop(change.apply(before))
    charges = [_charge(row) for row in rows]  # what the training took off the reward
    votes = [row.vote != "dropped" for row in rows]  # a full group that the training did not learn from stays out
    old = _advantages(run.settings, before, charges, votes)
    new = _advantages(run.settings, after, charges, votes)
    return [
        _change(row, place, episodes, (old.get(_name(episodes[0]), []), new.get(_name(episodes[1]), [])))
        for row, place, episodes in zip(rows, places, zip(before, after, strict=True), strict=True)
    ]


def _change(
    row: EpisodeRow, place: int, episodes: tuple[Episode, Episode], advantages: tuple[list[float], list[float]]
) -> Change:
    before, after = episodes
    pairs = list(zip_longest(*advantages, fillvalue=0.0))
    most = max(pairs, key=lambda pair: abs(pair[1] - pair[0]), default=(0.0, 0.0))
    signs = [(_sign(first), _sign(second)) for first, second in pairs]
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
        failure=None if after.failure is None or before.failure is not None else _told(after.failure),
    )


def _told(failure: Failure) -> str:
    return f"{failure.type}: {failure.message}{at_place(failure.traceback)}"


def _advantages(
    settings: Mapping[str, Any], episodes: Sequence[Episode], charges: Sequence[float], votes: Sequence[bool]
) -> dict[Name, list[float]]:
    """Return the advantages of the episodes that are learned from, computed as the training does; loads PyTorch."""
    from ...trainer.learning.comparison import Comparison
    from ...trainer.learning.groups import TREATMENTS, form_groups

    options = {option.name: settings[option.name] for option in fields(Comparison) if option.name in settings}
    comparison = Comparison(**options)
    treatments: Any = {StopReason(name): value for name, value in settings.get("truncated", TREATMENTS).items()}
    charged = {_name(episode): charge for episode, charge in zip(episodes, charges, strict=True)}
    groups, _ = form_groups([episode for episode, counts in zip(episodes, votes, strict=True) if counts], treatments)
    members = [episode for group in groups for episode in group]
    comparison.check(members)
    rewards = [(episode.reward or 0.0) - charged[_name(episode)] for episode in members]
    return {
        _name(episode): advantages_K.tolist()
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


def _name(episode: Episode) -> Name:
    return episode.spec.group, episode.spec.member


def _sign(value: float) -> int:
    return 0 if abs(value) < ZERO else 1 if value > 0 else -1


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
