"""Rounds: the rounds of one training, each played and scored when its first batch is asked for."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import KW_ONLY, dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

from ...envs.episode import Episode
from ...records.alarms.alarms import TOOL_ERRORS, tool_error_alarm
from ...records.alarms.rounds import NoSpreadAlarm, NoTurnRewardAlarm
from ..learning.advantages import ESTIMATORS
from ..learning.samples import Batch, EpisodeSamples
from ..learning.scoring import Scorer
from ..models.distributed import Processes
from ..run_log.metrics import Metrics, NameOf, weighted_metrics
from .failures import FailureWatch
from .round import Round
from .round_player import PlayedRound, RoundSource
from .schedule import Rows


@dataclass
class Rounds:
    """The rounds of one `train()`."""

    rows: Rows
    player: RoundSource
    scorer: Scorer
    processes: Processes
    _: KW_ONLY
    metrics: Metrics
    failures: FailureWatch
    environment_of: NameOf
    playing: Callable[[], AbstractContextManager[None]]
    """A context that is entered while episodes are played."""
    on_episodes: Callable[[Sequence[Episode]], None]
    """Called with the episodes of each round."""
    _no_spread: NoSpreadAlarm = field(default_factory=NoSpreadAlarm)
    _no_turn_reward: NoTurnRewardAlarm = field(default_factory=NoTurnRewardAlarm)
    _of_step: dict[int, Round] = field(default_factory=dict)
    """The rounds of the latest step by their numbers: if the step fails, its checkpoint needs the first of them."""

    def batches(self, first: int, count: int) -> list[Batch]:
        """The batches of a step, numbered since the beginning of training; plays the rounds that begin with them."""
        schedule = self.player.schedule
        places = [divmod(number, schedule.batches_per_round) for number in range(first, first + count)]
        self._of_step = {index: each for index, each in self._of_step.items() if index >= places[0][0]}
        for index, _ in places:
            if index not in self._of_step:
                self._of_step[index] = self._play(index)
        batches = [self._of_step[index].batches[place % schedule.steps_per_generation] for index, place in places]
        # Processes that share the weights compute each layer together, so all need as many micro-batches.
        return [each.filled(self.scorer.passes(len(each.micro_batches)), self.scorer.pad_id) for each in batches]

    def save(self, folder: Path, *, batches: int) -> None:
        """Write the samples of the round in progress, if `batches` batches end within a round."""
        index, place = divmod(batches, self.player.schedule.batches_per_round)
        if index in self._of_step and place:
            self._of_step[index].save(self._path(folder))
        self.player.save(folder)

    def load(self, folder: Path) -> None:
        """Continue with the samples that `save` wrote, if any."""
        if self._path(folder).is_file():
            loaded = Round.load(self._path(folder), **self._cutting)
            self._of_step = {loaded.index: loaded}
        self.player.load(folder, self.rows)

    def _path(self, folder: Path) -> Path:
        return folder / f"round{self.processes.suffix}.pt"

    def _play(self, index: int) -> Round:
        """Play a round of episodes and score it."""
        started = time.perf_counter()
        with self.playing():
            played = self.player(self.rows, index)
        self.on_episodes(played.episodes)
        scored, metrics = self.scorer(played.groups)
        self._watch(played, scored, rejected=metrics.get("mismatch/rejected", (0.0, 0))[0])
        for name, (mean, weight) in metrics.items():
            self.metrics.add({name: mean}, weight=weight)
        of_round = {"rounds/skipped": float(not scored), TOOL_ERRORS: tool_error_alarm(played.episodes)}
        self.metrics.add(played.metrics | of_round | {"time/rollout": time.perf_counter() - started})
        of_episodes = weighted_metrics(played.episodes, self.environment_of, self.player.has_spread)
        for weight, part in [*played.overlap, *of_episodes]:
            self.metrics.add(part, weight=weight)
        order = self.player.schedule.batch_order(index, len(scored))
        return Round(index, [scored[place] for place in order], **self._cutting)

    def _watch(self, played: PlayedRound, samples: Sequence[EpisodeSamples], *, rejected: float) -> None:
        """Warn of lost episodes, and of rounds that teach nothing."""
        episodes, settings = played.episodes, self.scorer.settings
        failed = sum(each.failure is not None for each in episodes)
        whitens = ESTIMATORS[settings.comparison.advantage_estimator].whitens
        compared = [[*chain(*played.groups)]] if whitens else played.groups  # `whiten` compares groups with each other
        spread = sum(map(self.player.has_spread, compared))
        several = [each for each in episodes if len(each.turns) > 1]
        rewarded = sum(bool(each.reward) for each in several)
        before_the_end = sum(any(turn.reward for turn in each.turns[:-1]) for each in several)
        counts = self.processes.sum_counts(len(episodes), failed, len(samples), spread, rewarded, before_the_end)
        self.failures.add_round(episodes, played=counts[0], failed=counts[1], samples=counts[2], rejected=rejected)
        if self.processes.index:  # the counts are of all processes, so one of them warns
            return
        if settings.comparison.credit == "turn":
            self._no_turn_reward.add(rewarded=counts[4], before_the_end=counts[5])
        other_terms = settings.charges_kl or settings.always_has_gradient
        self._no_spread.add(episodes, with_spread=counts[3], other_terms=other_terms)

    @property
    def _cutting(self) -> dict[str, Any]:
        """How a round is cut into batches."""
        parts = self.player.schedule.steps_per_generation
        return {"parts": parts, "settings": self.scorer.settings, "pad_id": self.scorer.pad_id}
