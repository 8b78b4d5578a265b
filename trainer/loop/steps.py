"""Steps: the way of a task to the loss, on one page.

An optimiser step asks for `batches`, which plays and scores the rounds that begin with them; then for the `loss` of
each micro-batch. An episode itself is played by `envs.engine.play_episode`, with the tokens of `rollout.token_policy`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, asdict, dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ...envs.episode import Episode
from ..learning.losses import StepCounts
from ..learning.objective import objective
from ..learning.samples import Batch, EpisodeSamples, MicroBatch, Sample, split_evenly
from ..learning.scoring import Scorer
from ..rollout.group_source import GroupSource
from ..rollout.round_report import RoundReport
from ..run_log.learning_log import LearningLog
from .watchdog import Watchdog


@dataclass
class Round:
    """The samples of episodes that were played at once, as training batches.

    A checkpoint in the middle of a round stores its samples: the weights that sampled them no longer exist.
    """

    index: int  # the number of the round since the beginning of training
    episodes: list[EpisodeSamples]  # in the order in which they are cut into batches; empty: no group teaches
    _: KW_ONLY
    parts: int  # the number of batches
    scorer: Scorer  # says how a batch is cut into micro-batches

    @cached_property
    def batches(self) -> list[Batch]:
        parts, scorer = split_evenly(self.episodes, self.parts), self.scorer
        return [Batch.of(part, scorer.settings, picture=scorer.picture) for part in parts]

    def save(self, path: Path) -> None:
        episodes = [[asdict(sample) for sample in samples] for samples in self.episodes]
        torch.save({"index": self.index, "episodes": episodes}, path)

    @staticmethod
    def read(path: Path) -> tuple[int, list[EpisodeSamples]]:
        """Return the number and the samples of the round that `save` wrote."""
        saved: dict[str, Any] = torch.load(path, weights_only=True)
        # Their numbers belong to the records of the training that was stopped.
        return saved["index"], [[Sample.restored(sample) for sample in samples] for samples in saved["episodes"]]


@dataclass(kw_only=True)
class Steps:
    """The optimiser steps of one training."""

    source: GroupSource
    scorer: Scorer
    report: RoundReport
    log: LearningLog
    watchdog: Watchdog
    on_episodes: Callable[[Sequence[Episode]], None]  # called with the episodes of each round
    _rounds: dict[int, Round] = field(default_factory=dict)
    """The rounds of the latest step by their numbers: if the step fails, its checkpoint needs the first of them."""
    counts: StepCounts = field(init=False)  # the divisors of the step in progress

    def batches(self, step: int, count: int, device: torch.device) -> list[Batch]:
        """Return the batches of a step; play the rounds that begin with them, and count the divisors of the loss."""
        schedule = self.source.schedule
        first = schedule.batches_before(step)
        places = [divmod(number, schedule.batches_per_round) for number in range(first, first + count)]
        self._rounds = {index: played for index, played in self._rounds.items() if index >= places[0][0]}
        for index, _ in places:
            if index not in self._rounds:
                self._rounds[index] = self._play(index, step)
        batches = [self._rounds[index].batches[place % schedule.steps_per_generation] for index, place in places]
        self.counts = self._count(batches, device)
        # Processes that share the weights compute each layer together, so all need as many micro-batches.
        picture, passes = self.scorer.picture, self.scorer.passes
        return [batch.filled(passes(len(batch.micro_batches)), picture) for batch in batches]

    def _play(self, index: int, step: int) -> Round:
        """Play the tasks of a round, and score their episodes."""
        began = time.perf_counter()
        with self.watchdog.playing():
            played = self.source.play(index, step)  # tasks -> episodes -> groups of one task
        self.on_episodes(played.episodes)
        samples, means = self.scorer(played.groups)  # groups -> samples with log-probabilities and advantages
        self.report.add(played, samples, means, seconds=time.perf_counter() - began)
        order = self.source.schedule.batch_order(index, len(samples))
        return self._round(index, [samples[place] for place in order])  # samples -> batches of padded micro-batches

    def _count(self, batches: Sequence[Batch], device: torch.device) -> StepCounts:
        """Count the loss tokens and episodes of a step in all processes: the loss is divided by them."""
        counts = torch.tensor([sum(batch.loss_tokens for batch in batches), sum(batch.sequences for batch in batches)])
        loss_tokens, sequences = self.source.processes.sum(counts.float().to(device)).unbind()
        return StepCounts(
            loss_tokens=loss_tokens,
            sequences=sequences,
            batch_loss_tokens=0,  # each batch has its own
            batches=len(batches),
            processes=self.source.processes.count,
        )

    def loss(self, model: nn.Module, micro_batch: MicroBatch, *, with_entropy: bool) -> Tensor:
        """Return the loss of a micro-batch, ready for `backward()`: log-probabilities -> ratios -> terms -> sum."""
        loss, metrics = objective(
            model,
            micro_batch,
            self.scorer.settings,
            self.counts,
            head=self.scorer.head,
            with_entropy=with_entropy,
            watch=partial(self.log.watch, micro_batch),
            images=self.scorer.images,
        )
        for weight, part in metrics:
            self.report.metrics.add(part, weight=weight)
        return loss

    def save(self, folder: Path, step: int) -> None:
        """Write the samples of the round in progress, if this step ends within a round."""
        index, place = divmod(self.source.schedule.batches_before(step), self.source.schedule.batches_per_round)
        if index in self._rounds and place:
            self._rounds[index].save(self._path(folder))
        self.source.save(folder, step)

    def load(self, folder: Path) -> None:
        """Continue with the samples that `save` wrote, if any."""
        if self._path(folder).is_file():
            index, samples = Round.read(self._path(folder))
            self._rounds = {index: self._round(index, samples)}
        self.source.load(folder)

    def _round(self, index: int, samples: list[EpisodeSamples]) -> Round:
        return Round(index, samples, parts=self.source.schedule.steps_per_generation, scorer=self.scorer)

    def _path(self, folder: Path) -> Path:
        return folder / f"round{self.source.processes.suffix}.pt"
