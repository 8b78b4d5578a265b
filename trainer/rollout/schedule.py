"""Schedule: which tasks are played in which round."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Any

import numpy as np

from ...envs.engine.rollout_engine import group_specs
from ...envs.episode import EpisodeSpec
from .stream import Stream

Rows = Sequence[Mapping[str, Any]]


@dataclass(kw_only=True, slots=True, frozen=True)
class Schedule:
    """Which tasks are played in which round, and in which round a batch is; the same for the same seed.

    A *round* is played at once, with the same weights: `num_generations` episodes of some tasks. It is cut into
    `steps_per_generation` batches, which are used `num_iterations` times. Batches are numbered from the
    beginning of training.

    Tasks come in an endless sequence of permutations of the data set: every task is used equally often, and a round
    may be larger than the data set. A stream has an order of its own, and no length: all of its training is one epoch.
    """

    rows: Rows | Stream
    num_generations: int
    groups_per_process: int
    num_processes: int
    process_index: int
    steps_per_generation: int
    num_iterations: int
    gradient_accumulation_steps: int
    seed: int  # of the episodes, and of the order in which those of a round are cut into batches
    data_seed: int  # of the order of the tasks
    shuffle: bool
    max_steps: int = 0  # of a training by a stream; otherwise not read

    @property
    def num_tasks(self) -> int | None:
        """The number of rows; None for a stream."""
        return None if isinstance(self.rows, Stream) else len(self.rows)

    @property
    def groups_per_round(self) -> int:
        return self.groups_per_process * self.num_processes

    @property
    def batches_per_round(self) -> int:
        return self.steps_per_generation * self.num_iterations

    @property
    def batches_per_epoch(self) -> int:
        if self.num_tasks is None:
            return self.max_steps * self.gradient_accumulation_steps
        return -(-self.num_tasks // self.groups_per_round) * self.batches_per_round

    def batches_before(self, step: int) -> int:
        """Return the number of batches that so many optimiser steps use; the last step of an epoch may use fewer."""
        epoch, step = divmod(step, -(-self.batches_per_epoch // self.gradient_accumulation_steps))
        return epoch * self.batches_per_epoch + step * self.gradient_accumulation_steps

    def specs(self, round_index: int) -> list[EpisodeSpec]:
        """Return this process's episodes of a round: whole groups."""
        return self._groups(round_index * self.groups_per_round, self.groups_per_process)

    def group(self, number: int) -> list[EpisodeSpec]:
        """Return the episodes of one group of this process; its groups are numbered since the beginning of training."""
        index, place = divmod(number, self.groups_per_process)
        return self._groups(index * self.groups_per_round + place, 1)

    def refill_specs(self, round_index: int, refill: int, count: int) -> list[EpisodeSpec]:
        """Return this process's episodes of `count` further groups, for the `refill`-th refill (from 0) of a round.

        Their tasks are those of the next rounds, so they differ from the round's own unless the data set is small. They
        are played again in their own rounds, from other seeds.
        """
        first = (round_index + 1 + refill) * self.groups_per_round
        return self._groups(first, count, name=f"/refill-{round_index}")

    def _groups(self, first: int, count: int, *, name: str = "") -> list[EpisodeSpec]:
        """Return this process's first `count` groups of a round that begins at this place in the sequence of tasks."""
        specs = []
        first += self.process_index * self.groups_per_process
        for place in range(first, first + count):
            number, index, row = self._task(place)
            visit, size = f"{number}{name}" if name else number, self.num_generations
            specs += group_specs(f"train-{index}", row, group_size=size, seed=self.seed, visit=visit)
        return specs

    def _task(self, place: int) -> tuple[int, int, Mapping[str, Any]]:
        """Return the pass over the data set that a place is in, the number of its row, and the row."""
        if isinstance(self.rows, Stream):
            return self.rows.at(place)
        visit, index = divmod(place, len(self.rows))
        if self.shuffle:
            index = int(_permutation(len(self.rows), self.data_seed, visit)[index])
        return visit, index, self.rows[index]

    def batch_order(self, round_index: int, count: int) -> list[int]:
        """Return the order in which a round's episodes are cut into batches."""
        rng = np.random.default_rng([self.seed, round_index, self.process_index])
        return rng.permutation(count).tolist()

    def describe(self) -> dict[str, Any]:
        """Return the facts that a resumed training must share with the one that it continues."""
        names = [field.name for field in fields(self) if field.name not in ("rows", "process_index", "max_steps")]
        plan = {name: getattr(self, name) for name in ["num_tasks", *names]}
        if isinstance(self.rows, Stream):
            return plan | {"first row": _text(self.rows.at(0)[2])}
        return plan | {"first row": _text(self.rows[0]), "last row": _text(self.rows[len(self.rows) - 1])}


def _text(row: Mapping[str, Any]) -> str:
    """Return the beginning of a row, the same in every run: the `repr` of an object may have its address in it."""
    return json.dumps(dict(row), skipkeys=True, default=lambda value: type(value).__name__)[:1000]


@lru_cache(maxsize=2)  # a round reaches at most from one permutation into the next, unless the data set is tiny
def _permutation(count: int, seed: int, visit: int) -> np.ndarray:
    return np.random.default_rng([seed, visit]).permutation(count)
