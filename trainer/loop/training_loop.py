"""TrainingLoop: one `train()` of an `AgentTrainer`, moment by moment."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import TrainerControl
from transformers.trainer_utils import IntervalStrategy

from ...envs.episode import Episode
from ...records.alarms.alarms import alarm_metrics
from ...records.files.episode_log import EpisodeLog
from ...records.files.run_files import line_file
from ...records.metrics.missing_metrics import MissingMetrics
from ..learning.samples import MicroBatch
from ..learning.scoring import Scorer
from ..models.distributed import Processes
from ..models.reference import ReferenceSync, check_stays
from ..rollout.failures import FailureTotals, FailureWatch
from ..rollout.group_source import GroupSource, InStep
from ..rollout.overlap.overlapped import Overlapped
from ..rollout.round_report import RoundReport
from ..rollout.schedule import Schedule
from ..run_log.learning_log import LearningLog
from ..run_log.metrics import Metrics
from ..run_log.progress import RichProgress
from ..run_log.tables import report_episodes
from ..setup.parts import Parts
from .checkpoints import PLAN, check_plan
from .interrupt import Interruption
from .nonfinite import NonFiniteSteps, mean_of_taken, spread_nonfinite
from .steps import Steps
from .transformers_hooks import HookedTrainer, Loop
from .watchdog import Watchdog

logger = logging.getLogger(__name__)


@dataclass(kw_only=True, eq=False)
class TrainingLoop(Loop):
    """One `train()`: the batches, updates, logs and checkpoints that transformers' hooks ask for, and its end."""

    trainer: HookedTrainer[Any]
    parts: Parts
    processes: Processes
    watchdog: Watchdog
    scorer: Scorer
    missing_metrics: MissingMetrics
    displays: Sequence[RichProgress]
    schedule: Schedule
    checkpoint: str | None  # the folder that the training continues from
    read_weights: Callable[[], ReferenceSync | None]
    """Makes the reference and finds the output head, once, before the weights change."""
    on_episodes: Callable[[Sequence[Episode]], None]  # called with the episodes of each round

    def __post_init__(self) -> None:
        config, trainer, player = self.parts.config, self.trainer, self.parts.player
        folder, every = config.output_dir or ".", config.log_episodes_steps
        if every is None and not config.record_run:
            every = 0
        self.batches_per_epoch = self.schedule.batches_per_epoch
        self.plan = self.schedule.describe()  # now, since a stream would be read again
        self.source = self._make_source(folder)
        self.interruption = Interruption(trainer, player, self.processes)
        self.failures = FailureWatch(config.max_failure_rate, self.scorer.settings.truncated)
        self.metrics = Metrics(self.missing_metrics)
        self.nonfinite = NonFiniteSteps(config.on_nonfinite, self.processes, trainer.accelerator.scaler)
        self.episode_log = EpisodeLog(folder, every=every, suffix=self.processes.suffix, processes=self.processes.count)
        self.learning_log = LearningLog(
            self.episode_log.learning_path,
            self.scorer.settings,
            decode=lambda token: str(self.parts.tokenizer.decode([token])),
            reward_weights=player.engine.rewards.weights,
        )
        self.scorer.on_scored = self.learning_log.add_scored
        self.steps = Steps(
            source=self.source,
            scorer=self.scorer,
            report=RoundReport(self.source, self.metrics, self.failures),
            log=self.learning_log,
            watchdog=self.watchdog,
            on_episodes=self.on_episodes,
        )
        self._reference_sync: ReferenceSync | None = None
        self._update_began = 0.0
        self._skipped = False  # whether the latest update was not finite

    def _make_source(self, folder: str) -> GroupSource:
        parts, stale, refills = self.parts, self.parts.config.max_staleness, self.parts.config.max_refills
        if not stale:
            return InStep(self.schedule, parts.player, self.processes, parts.settings, refills)
        log = line_file(folder, "groups", self.processes.suffix)
        return Overlapped(self.schedule, parts.player, self.processes, parts.settings, stale, log)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Open a context for `transformers.Trainer.train`."""
        self.processes.all_failed = False
        try:
            if self.checkpoint is not None:
                check_plan(Path(self.checkpoint), self.plan)
            with self.watchdog, self.interruption.watching(self.checkpoint):
                yield
            self.failures.totals = sum(self.processes.in_first(self.failures.totals), FailureTotals())
        finally:
            self.source.close()
            for display in self.displays:
                display.stop()  # an exception calls no callback, and a live display would hide its message
            if totals := str(self.failures.totals):
                logger.warning("failures of this training: %s", totals)

    # The moments of a training, in their order.

    def wrapped(self) -> None:
        self._reference_sync = self.read_weights()

    def begin(self) -> None:
        step = self.trainer.state.global_step
        if self.schedule.num_tasks is None and self.processes.count > 1:
            self._check_streams()
        self.missing_metrics.restore(self.trainer.state.log_history)
        self.episode_log.begin(step, self.trainer.state.max_steps)
        if self.checkpoint is not None:
            self._load(Path(self.checkpoint))
        self.source.begin(step, self.trainer.state.max_steps)

    def _check_streams(self) -> None:
        if len(set(self.processes.gather([self.plan["first row"]]))) > 1:
            raise ValueError(
                "the processes read different rows from train_dataset: pass the same stream to each, not split by "
                "node; shuffle it with a seed, data.shuffle(seed=42, buffer_size=1000)"
            )

    def _load(self, folder: Path) -> None:
        """Read the files that `save` wrote."""
        if self._reference_sync is not None:
            self._reference_sync.load(folder)
        elif self.scorer.reference is not None:
            check_stays(folder)
        unlogged = json.loads(self._unlogged(folder).read_text())
        self.metrics.restore(unlogged["metrics"])
        self.steps.load(folder)
        self.trainer.restore_unlogged_loss(*unlogged["loss"])

    def next_batches(self, count: int, device: torch.device) -> tuple[list[list[MicroBatch]], Tensor]:
        step = self.trainer.state.global_step
        batches = self.interruption.unless_interrupted(lambda: self.steps.batches(step, count, device)) or []
        for display in self.displays:
            display.latest_failure = self.failures.latest
        self._update_began = time.perf_counter()
        loss_tokens = torch.as_tensor(self.steps.counts.loss_tokens) if batches else torch.zeros((), device=device)
        return [batch.micro_batches for batch in batches], loss_tokens

    def record(self, episodes: Sequence[Episode]) -> None:
        """Write the episodes of a round down, as `log_episodes_steps` says; if it was given, in `report_to`, too."""
        step = self.trainer.state.global_step
        recorded = self.episode_log.add(step, episodes)
        self.learning_log.begin_round(step, recorded)
        if recorded and self.parts.config.log_episodes_steps:
            report_episodes(self.trainer, recorded)

    def loss(self, model: nn.Module, micro_batch: MicroBatch) -> Tensor:
        """Return the loss of a micro-batch: its share of the loss of the step."""
        loss = self.steps.loss(model, micro_batch, with_entropy=self._is_logged)
        self.watchdog.moved()
        return spread_nonfinite(loss) if self.trainer.is_deepspeed_enabled else loss

    @property
    def _is_logged(self) -> bool:
        """Whether metrics are logged after this step, as far as that is known now."""
        step, every = self.trainer.state.global_step + 1, self.trainer.state.logging_steps
        return self.parts.config.logging_strategy != IntervalStrategy.STEPS or step % every == 0 or step == 1

    def before_update(self) -> None:
        trainer = self.trainer
        self._update_began += self.source.before_update()  # the wait is no part of the update
        # Momentum and weight decay would move the weights, so optimisers must find no gradient at all.
        skipped = self.nonfinite.skips(trainer.state.global_step + 1, trainer.step_loss, trainer.grad_norm)
        if skipped or not float(self.steps.counts.loss_tokens):
            trainer.model.zero_grad(set_to_none=True)  # type: ignore[union-attr]
        self._skipped = skipped
        if skipped:
            trainer.forget_loss()
        if self.processes.index == 0:  # all processes skip the same steps
            self.metrics.add({"steps/nonfinite": float(skipped)})

    def after_update(self) -> None:
        step = self.trainer.state.global_step
        self.watchdog.moved()
        self.metrics.add({"time/update": time.perf_counter() - self._update_began})
        self.metrics.finish_step()
        self.learning_log.finish_step(step, skipped=self._skipped)
        if self._reference_sync is not None:
            self._reference_sync.after_step(step)

    def decide(self, control: TrainerControl) -> None:
        self.interruption.decide(control)

    def complete(self, logs: dict[str, float]) -> bool:
        is_summary = "train_loss" in logs
        if is_summary:
            self.source.close()  # the best weights may be loaded next
        if self.interruption.did_nothing:  # a summary of no step
            return False
        logs |= self.metrics.flush(self.processes.gather)
        if is_summary:
            logs["train_loss"] = mean_of_taken(logs["train_loss"], self.nonfinite.steps, self.nonfinite.skipped)
        else:
            logs["loss"] = mean_of_taken(logs["loss"], self.trainer.steps_of_log, logs["steps/nonfinite"])
            settings = self.scorer.settings
            shown = {"correction": settings.correction, "correction_bounds": settings.correction_bounds}
            logs |= alarm_metrics(self.trainer.state.log_history, logs, shown, warns=self.processes.index == 0)
        return True

    def save(self, folder: Path) -> None:
        is_first = self.processes.index == 0
        if is_first:
            (folder / PLAN).write_text(json.dumps(self.plan, indent=2) + "\n")
        if self._reference_sync is not None and (is_first or self.processes.share_weights):
            self._reference_sync.save(folder)
        unlogged = {"loss": self.trainer.unlogged_loss, "metrics": self.metrics.pending()}
        self._unlogged(folder).write_text(json.dumps(unlogged))
        self.steps.save(folder, self.trainer.state.global_step)
        with self.watchdog.during("the other processes to save their part of a checkpoint"):
            self.trainer.accelerator.wait_for_everyone()  # the next file, of rank 0, marks it as complete

    def _unlogged(self, folder: Path) -> Path:
        """Return the file of the loss and the metrics that this process has not logged yet."""
        return folder / f"unlogged{self.processes.suffix}.json"
