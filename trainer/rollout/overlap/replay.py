"""The log of the groups that a training with overlap has consumed, and its replay.

- `GroupLog`: `groups.jsonl`, a line for each round.
- `Replay`: repeats such a log: the order of the groups, and the weights of each turn.
"""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from ....envs.episode import Episode, EpisodeSpec
from ....envs.line_files import append_lines
from ...run_log.run_folder import move_aside, read_lines, replace_lines
from ..token_policy import turn_seed


@dataclass(kw_only=True, slots=True)
class FinishedGroup:
    """The episodes of a group that is over."""

    number: int  # the place of the group among those of this process, in the order of the schedule
    started_at: int  # the optimiser steps that had been taken when it was started
    episodes: list[Episode]

    @property
    def versions(self) -> list[list[int | None]]:
        """The weight version of each turn of each episode."""
        return [[turn.weight_version for turn in episode.turns] for episode in self.episodes]

    @property
    def record(self) -> dict[str, Any]:
        """The group in `groups.jsonl`."""
        return {"number": self.number, "started_at": self.started_at, "versions": self.versions}


class GroupLog:
    """`groups.jsonl`: `{"step": ..., "groups": [...]}` for each round, with the groups in the order of consumption.

    `suffix` distinguishes the files of several processes.
    """

    def __init__(self, folder: str | Path, suffix: str) -> None:
        self.path = Path(folder, f"groups{suffix}.jsonl")

    def begin(self, step: int) -> None:
        """Called when a training begins, or is resumed, at this step, whose round is consumed again.

        Broken lines stay, since a replay finds rounds by their place.
        """
        if self.path.exists() and step == 0:
            move_aside(self.path)
        elif self.path.exists():
            replace_lines(self.path, list(itertools.takewhile(partial(_is_before, step), read_lines(self.path))))

    def add(self, step: int, groups: Iterable[FinishedGroup]) -> None:
        """Append a round that this step trains on."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        append_lines(self.path, [json.dumps({"step": step, "groups": [each.record for each in groups]})])


def _is_before(step: int, line: str) -> bool:
    try:
        return json.loads(line)["step"] < step
    except (ValueError, KeyError, TypeError):
        return line.endswith("\n")  # else it is half a last line


class Replay:
    """Repeats the groups of a log.

    Sampling depends on the seed of a turn and on the weights. So a training that consumes the same groups in the same
    order, and samples each turn with the same version of the weights, is the same training.

    Args:
        folder: The `output_dir` of the training that wrote the log.
        suffix: As in `GroupLog`.

    Raises:
        ValueError: there is no log.
    """

    def __init__(self, folder: str | Path, suffix: str) -> None:
        self.path = GroupLog(folder, suffix).path
        lines = read_lines(self.path)
        if not lines:
            raise ValueError(
                f"there is no {self.path}: replay={str(folder)!r} must be the output_dir of a training with "
                f"max_staleness, and of as many processes as here"
            )
        self._rounds: list[list[dict[str, Any]]] = []
        self._why_no_more = ""
        for number, line in enumerate(lines, 1):
            try:
                self._rounds.append(json.loads(line)["groups"])
            except (ValueError, KeyError, TypeError):  # the rounds after it have other places than their lines
                self._why_no_more = f", as line {number} is broken"
                break
        self._version_of: dict[int, int] = {}  # by the seed of a turn
        self._left: Counter[int] = Counter()  # by version: turns that have not been sampled yet
        self._over: set[int] = set()  # seeds of the others
        self._records: dict[int, dict[str, Any]] = {}  # by the number of a group: those that will be played

    def begin(
        self, first: int, specs_of: Callable[[int], Sequence[EpisodeSpec]], step: int, *, without: Collection[int]
    ) -> None:
        """Play the groups of the rounds from `first` on, but for those that are finished already.

        Raises:
            ValueError: a group began before this step, with weights that are gone.
        """
        for record in (each for groups in self._rounds[first:] for each in groups):
            if record["number"] in without:
                continue
            if record["started_at"] < step:
                raise ValueError(
                    f"{self.path} cannot be replayed from step {step} on: group {record['number']} began at step "
                    f"{record['started_at']}, with weights that are gone; replay it from the beginning"
                )
            self._records[record["number"]] = record
            for spec, versions in zip(specs_of(record["number"]), record["versions"], strict=True):
                for turn, version in enumerate(versions):
                    self._version_of[turn_seed(spec, turn)] = version
                    self._left[version] += 1

    def round(self, index: int) -> list[int]:
        """The numbers of the groups of a round, in the order of consumption.

        Raises:
            ValueError: the log ends before it.
        """
        if index >= len(self._rounds):
            held = f"{self.path} holds {len(self._rounds)} rounds{self._why_no_more}"
            raise ValueError(f"{held}: set max_steps to the length of its training, or of these rounds")
        return [each["number"] for each in self._rounds[index]]

    def started_by(self, step: int) -> list[int]:
        """The numbers of the groups that were started at this step or before."""
        return [number for number, each in self._records.items() if each["started_at"] <= step]

    def version_of(self, seed: int) -> int | None:
        """The version that samples the turn of this seed; None if the log does not have it."""
        return self._version_of.get(seed)

    def turns_left(self, version: int) -> int:
        """The turns that must still be sampled with this version or an older one."""
        return sum(count for each, count in self._left.items() if each <= version)

    def sampled(self, seed: int) -> None:
        """Count a turn, once."""
        if seed in self._version_of and seed not in self._over:
            self._over.add(seed)
            self._left[self._version_of[seed]] -= 1

    def episode_is_over(self, spec: EpisodeSpec) -> None:
        """Count the turns of an episode that has fewer than in the log: they will not come.

        Else the next weights would wait for them for ever, and so would the episodes of its group that need those
        weights: `check` would never see the group.
        """
        for turn in itertools.count():
            seed = turn_seed(spec, turn)
            if seed not in self._version_of:
                return
            self.sampled(seed)

    def last_version(self, number: int) -> int:
        """The version that samples the last turn of a group."""
        return max((version for each in self._records[number]["versions"] for version in each), default=0)

    def check(self, group: FinishedGroup) -> None:
        """Check that a group was played as the log says.

        Raises:
            ValueError: it was not; an environment that is not reproducible is a likely cause.
        """
        if group.number in self._records and group.versions != self._records[group.number]["versions"]:
            raise ValueError(
                f"the replay of {self.path} has diverged: group {group.episodes[0].spec.group!r} had turns with the "
                f"weight versions {self._records[group.number]['versions']}, and now {group.versions}. Are the "
                f"options, the tasks and the first weights the same, and are environments and sampling reproducible?"
            )
