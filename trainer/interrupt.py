"""Ctrl-C during training: stop at the next safe place instead of in the middle of an update."""

from __future__ import annotations

import asyncio
import logging
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import torch
from transformers import Trainer
from transformers.trainer_utils import TrainOutput

logger = logging.getLogger(__name__)


@contextmanager
def stop_on_interrupt(stop: Callable[[], None]) -> Iterator[None]:
    """While this is open, the first SIGINT calls `stop`; the second interrupts at once, as usual.

    Does nothing outside the main thread, where Python delivers no signals.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous = signal.getsignal(signal.SIGINT) or signal.SIG_DFL  # None: it was not Python that set it

    def handle(number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGINT, previous)
        stop()

    signal.signal(signal.SIGINT, handle)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)


class InterruptibleTrainer(Trainer):
    """A trainer that the first Ctrl-C ends as if its last step were done: with a checkpoint, and the final callbacks.

    A round or an evaluation in progress is given up, an update in progress is finished. Several processes stop
    together, before their next step: one that gave up alone would leave the others waiting for it.
    """

    was_interrupted = False  # whether Ctrl-C ended the last train()
    _agreed = False  # whether all processes know
    _saved_step: int | None = None  # of the checkpoint that this leaves

    def cancel(self) -> None:
        """Make whatever waits for episodes raise `asyncio.CancelledError`; called from a signal handler."""
        raise NotImplementedError

    def train(self, *args: Any, **kwargs: Any) -> TrainOutput:
        """Train; `transformers.Trainer.train` says how.

        Ctrl-C gives up the round that is being played, or finishes the update in progress, then saves a checkpoint
        and returns. A second one interrupts at once.
        """
        self.was_interrupted = self._agreed = False
        self._saved_step = None
        with stop_on_interrupt(self._interrupt):
            return super().train(*args, **kwargs)

    def _interrupt(self) -> None:
        self.was_interrupted = True
        logger.warning("interrupted: stopping at the next safe place, with a checkpoint; Ctrl-C again quits at once")
        if self.accelerator.num_processes == 1:
            self.cancel()

    def take_batches(self, epoch_iterator: Iterator[Any], count: int) -> list[Any]:
        """The batches of the next step; none if it is not to be done, and training ends then."""
        self._agree()
        if not self._agreed:
            try:
                return [batch for _, batch in zip(range(count), epoch_iterator, strict=False)]
            except asyncio.CancelledError:
                self._agree()
                if not self._agreed:
                    raise
        self.control.should_training_stop = True
        return []

    def _agree(self) -> None:
        self._agreed = self.was_interrupted
        if self.accelerator.num_processes > 1:
            flag: Any = torch.tensor(float(self.was_interrupted), device=self.accelerator.device)
            total: Any = self.accelerator.reduce(flag, reduction="sum")
            self.was_interrupted = self._agreed = total.item() > 0

    # transformers calls this after each step, and once more at the end of an epoch, cut short or not.
    def _maybe_log_save_evaluate(self, *args: Any, **kwargs: Any) -> None:
        if self.accelerator.num_processes == 1:
            self._agree()
        if self._agreed:
            self.control.should_evaluate = False
            self.control.should_save = self._saved_step != self.state.global_step
            self.control.should_training_stop = True
            self._saved_step = self.state.global_step
        leaving = self._agreed and self.control.should_save
        super()._maybe_log_save_evaluate(*args, **kwargs)
        if leaving and self.is_world_process_zero():
            logger.warning("stopped at step %d; the checkpoint is in %s", self.state.global_step, self.args.output_dir)

    def _evaluate(self, *args: Any, **kwargs: Any) -> dict[str, float]:
        try:
            return super()._evaluate(*args, **kwargs)
        except asyncio.CancelledError:
            if not self.was_interrupted:
                raise
            return {}

    def _determine_best_metric(self, metrics: dict[str, float], trial: Any) -> bool:
        return bool(metrics) and super()._determine_best_metric(metrics, trial)
