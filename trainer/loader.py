"""RolloutLoader: tasks in, training batches out. Rollouts are the data loader.

A *round* is one generation: some tasks, `num_generations` episodes of each, cut into `steps_per_generation`
micro-batches, which are used `num_iterations` times.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor
from torch.utils.data import IterableDataset

from ..envs.episode import EpisodeSpec
from ..envs.rollout import group_specs
from .batch import Sample, make_batch, split_evenly

Rows = Sequence[Mapping[str, Any]]


@dataclass(kw_only=True, slots=True, frozen=True)
class Schedule:
    """Which tasks are played in which round; the same on every machine for the same seed.

    Tasks come in an endless row of permutations of the data set, so every task is used equally often, and a data set
    smaller than a round is no special case.
    """

    num_tasks: int
    num_generations: int
    groups_per_process: int
    num_processes: int
    process_index: int
    seed: int
    shuffle: bool

    @property
    def groups_per_round(self) -> int:
        return self.groups_per_process * self.num_processes

    @property
    def rounds_per_epoch(self) -> int:
        return -(-self.num_tasks // self.groups_per_round)

    def specs(self, rows: Rows, round_index: int) -> list[EpisodeSpec]:
        """This process's episodes of a round: whole groups."""
        first = round_index * self.groups_per_round + self.process_index * self.groups_per_process
        specs = []
        for place in range(first, first + self.groups_per_process):
            visit, index = divmod(place, self.num_tasks)
            row = int(self._order(visit)[index])
            specs += group_specs(
                f"train-{row}", rows[row], group_size=self.num_generations, seed=self.seed, visit=visit
            )
        return specs

    def _order(self, visit: int) -> np.ndarray:
        if not self.shuffle:
            return np.arange(self.num_tasks)
        return np.random.default_rng([self.seed, visit]).permutation(self.num_tasks)


class RolloutLoader(IterableDataset[dict[str, Tensor]]):
    """An iterable of one epoch's ready training batches, which continues where the trainer stands.

    Args:
        rows: The tasks.
        schedule: Which of them when.
        play: Plays the episodes of a round and returns them as samples, in the order in which they may be batched.
        steps_per_generation: Micro-batches that a round is cut into.
        num_iterations: How often a round is used.
        position: The number of batches that were used before this epoch's iteration begins; the loader starts there.
        placeholders: Whether whoever iterates throws away the batches before the position within the epoch (as
            transformers does on resuming): then they are yielded as empty dicts instead of being played.
        pad_id: Fills the rows of a batch.
    """

    def __init__(
        self,
        rows: Rows,
        schedule: Schedule,
        play: Callable[[list[EpisodeSpec]], list[Sample]],
        *,
        steps_per_generation: int,
        num_iterations: int,
        position: Callable[[], int],
        placeholders: bool,
        pad_id: int,
    ) -> None:
        self.rows = rows
        self.schedule = schedule
        self.play = play
        self.steps_per_generation = steps_per_generation
        self.num_iterations = num_iterations
        self.position = position
        self.placeholders = placeholders
        self.pad_id = pad_id

    @property
    def batches_per_round(self) -> int:
        return self.steps_per_generation * self.num_iterations

    def __len__(self) -> int:
        return self.schedule.rounds_per_epoch * self.batches_per_round

    def __iter__(self) -> Iterator[dict[str, Tensor]]:
        epoch, offset = divmod(self.position(), len(self))
        if not self.placeholders:
            offset = 0
        yield from ({} for _ in range(offset))
        while offset < len(self):
            round_in_epoch, used = divmod(offset, self.batches_per_round)
            batches = self._round(epoch * self.schedule.rounds_per_epoch + round_in_epoch)
            yield from batches[used:]
            offset += self.batches_per_round - used

    def _round(self, round_index: int) -> list[dict[str, Tensor]]:
        samples = self.play(self.schedule.specs(self.rows, round_index))
        order = np.random.default_rng([self.schedule.seed, round_index, self.schedule.process_index])
        shuffled = [samples[index] for index in order.permutation(len(samples))]
        parts = split_evenly(shuffled, self.steps_per_generation)
        return [make_batch(part, pad_id=self.pad_id) for part in parts] * self.num_iterations
