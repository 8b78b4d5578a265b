"""Rounds: their loader, and what was played but not yet learned from, so that a checkpoint can stand in their middle.

A round that serves several optimiser steps was sampled with weights that are gone after the first of them: playing it
again on resuming would give other episodes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

import torch

from ..envs.episode import EpisodeSpec
from .batch import Sample
from .config import AgentConfig
from .loader import RolloutLoader, Rows, Schedule
from .processes import Processes


def rollout_loader(
    rows: Rows,
    args: AgentConfig,
    processes: Processes,
    play: Callable[[list[EpisodeSpec]], list[Sample]],
    *,
    global_step: Callable[[], int],
    pad_id: int,
) -> RolloutLoader:
    """The loader that this configuration means; it begins where `global_step` says that training stands."""
    assert args.steps_per_generation is not None
    schedule = Schedule(
        num_tasks=len(rows),
        num_generations=args.num_generations,
        groups_per_process=args.groups_per_process,
        num_processes=processes.count,
        process_index=processes.index,
        seed=args.data_seed if args.data_seed is not None else args.seed,
        shuffle=args.shuffle_dataset,
    )
    loader = RolloutLoader(
        rows,
        schedule,
        play,
        steps_per_generation=args.steps_per_generation,
        num_iterations=args.num_iterations,
        position=lambda: _batches_used(global_step(), len(loader), args),
        placeholders=not args.ignore_data_skip,
        pad_id=pad_id,
    )
    return loader


def _batches_used(global_step: int, batches_per_epoch: int, args: AgentConfig) -> int:
    """Batches used so far; the last step of an epoch may have had fewer than the others."""
    steps_per_epoch = -(-batches_per_epoch // args.gradient_accumulation_steps)
    epoch, step = divmod(global_step, steps_per_epoch)
    return epoch * batches_per_epoch + step * args.gradient_accumulation_steps


class Rounds:
    """The samples of the latest rounds, by their first group; no group is in two rounds."""

    def __init__(self) -> None:
        self.loader: RolloutLoader | None = None  # set when training begins
        self._played: dict[str, list[Sample]] = {}
        self._loaded: dict[str, list[Sample]] = {}

    def add(self, specs: Sequence[EpisodeSpec], samples: list[Sample]) -> None:
        """Remember a round that was played."""
        self._played[specs[0].group] = samples

    def loaded(self, specs: Sequence[EpisodeSpec]) -> list[Sample] | None:
        """The round as a checkpoint kept it, or None."""
        return self._loaded.pop(specs[0].group, None)

    @property
    def is_unfinished(self) -> bool:
        """Whether the next batch is one of a round that was begun."""
        return self.loader is not None and self.loader.position() % self.loader.batches_per_round > 0

    def forget_used(self) -> None:
        """Forget all but the last: called before each optimiser step, which begins in the last round or after it."""
        self._played = dict(list(self._played.items())[-1:])

    def save(self, path: Path) -> None:
        """Write the remembered rounds."""
        torch.save({key: [asdict(each) for each in samples] for key, samples in self._played.items()}, path)

    def load(self, path: Path) -> None:
        """Forget everything and read what `save` wrote, if there is such a file."""
        self._played = {}
        saved = torch.load(path, weights_only=True) if path.is_file() else {}
        self._loaded = {key: [Sample(**each) for each in samples] for key, samples in saved.items()}
