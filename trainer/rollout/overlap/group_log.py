"""GroupLog: the groups that a training with overlap has consumed."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ....envs.episode import Episode
from ....envs.line_files import append_lines
from ....records.files.run_files import keep_lines_until, line_file, move_aside


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
        self.path = line_file(folder, "groups", suffix)

    def begin(self, step: int) -> None:
        """Begin a file, or drop the rounds from this step on: a resumed training consumes them again."""
        if self.path.exists() and step == 0:
            move_aside(self.path)
        elif self.path.exists():
            keep_lines_until(step - 1, self.path)

    def add(self, step: int, groups: Iterable[FinishedGroup]) -> None:
        """Append a round that this step trains on."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        append_lines(self.path, [json.dumps({"step": step, "groups": [group.record for group in groups]})])
