"""Begins and ends a training: resumes it, and saves a checkpoint when a signal or an error ends it."""

from __future__ import annotations

import asyncio
import logging
import signal
import threading
from abc import abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, TypeVar

import torch
from transformers.trainer_utils import TrainOutput

from .checkpoints import move_checkpoints_aside, newest_whole_checkpoint, step_of
from .transformers_hooks import HookedTrainer

logger = logging.getLogger(__name__)

Result = TypeVar("Result")


SIGNALS = (signal.SIGINT, signal.SIGTERM)
"""Ctrl-C, and the signal that a scheduler sends before it kills the process."""


@contextmanager
def stop_on_interrupt(stop: Callable[[str], None]) -> Iterator[None]:
    """While this is open, the first of `SIGNALS` calls `stop` with its name; the second ends the program, as usual.

    It does nothing outside the main thread, because Python delivers signals only there.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    # None: the handler is not one of Python's.
    previous = {number: signal.getsignal(number) or signal.SIG_DFL for number in SIGNALS}

    def restore() -> None:
        for number, handler in previous.items():
            signal.signal(number, handler)

    def handle(number: int, frame: FrameType | None) -> None:
        restore()
        stop(signal.Signals(number).name)

    for number in SIGNALS:
        signal.signal(number, handle)
    try:
        yield
    finally:
        restore()


class InterruptibleTrainer(HookedTrainer):
    """A trainer that saves a checkpoint when a signal or an error ends it; resuming a finished training does nothing.

    The first signal cancels a round or an evaluation in progress, or lets an update in progress finish. Several
    processes stop together, before their next step: if one stopped alone, the others would wait for it.
    """

    was_interrupted = False  # whether SIGINT (Ctrl-C) or SIGTERM ended the last train()
    _agreed = False  # whether all processes have agreed to stop
    _began_at: int | None = None  # the step of the first batch of this train()
    _is_over = False  # whether a finished training was resumed

    @abstractmethod
    def cancel(self) -> None:
        """Make every wait for episodes raise `asyncio.CancelledError` until `go_on`; called from a signal handler."""

    @abstractmethod
    def go_on(self) -> None:
        """Let episodes be played again."""

    def train(self, resume_from_checkpoint: str | bool | None = None, *args: Any, **kwargs: Any) -> TrainOutput:
        """Train; arguments are those of `transformers.Trainer.train`.

        Ctrl-C, like SIGTERM, cancels the round in play, or finishes the update in progress, then saves a
        checkpoint and returns. A second one interrupts at once. `resume_from_checkpoint=True` takes the newest complete
        checkpoint.

        Raises:
            ValueError: the checkpoint is incomplete, or belongs to another training.
        """
        if resume_from_checkpoint is True:
            resume_from_checkpoint = newest_whole_checkpoint(self.args.output_dir)
        self.was_interrupted = self._agreed = self._is_over = False
        self.saved_step = self._began_at = None
        self._make_room(resume_from_checkpoint or None)
        try:
            with stop_on_interrupt(self._interrupt):
                output = super().train(resume_from_checkpoint, *args, **kwargs)
            if self._agreed and self.saved_step == self.state.global_step:
                self.say_how_to_resume("interrupted")
            return output
        except Exception as error:
            if self._began_at not in (None, self.state.global_step):  # there are new weights to lose
                self._save_before(error)
            raise
        finally:
            self.go_on()  # a signal may have come after the last episodes

    def _make_room(self, checkpoint: str | None) -> None:
        """Move the checkpoints of other trainings aside, for this one, which continues from `checkpoint`."""
        folder, step = self.args.output_dir or ".", None
        if checkpoint is not None:
            step = step_of(checkpoint)
            is_ours = Path(checkpoint).resolve() == Path(folder, f"checkpoint-{step}").resolve()
            self.saved_step = step if is_ours else None
        if self.is_world_process_zero():
            move_checkpoints_aside(folder, after=step)

    def fails_everywhere(self, error: Exception) -> bool:
        """Whether every training process ends with this error now. Saving waits for all of them."""
        return self.accelerator.num_processes == 1

    def _save_before(self, error: Exception) -> None:
        if not self.fails_everywhere(error):
            return  # the others still train: saving would wait for them, and the deadlock would hide the error
        try:
            self.save_checkpoint()
        except Exception:  # the error that ends the training matters more
            logger.exception("no checkpoint could be saved before the error below ends the training")
        else:
            self.say_how_to_resume("an error ends the training")

    def _interrupt(self, signal_name: str) -> None:
        self.was_interrupted = True
        text = "interrupted by %s: stopping at the next safe place, with a checkpoint; a second signal quits at once"
        logger.warning(text, signal_name)
        if self.accelerator.num_processes == 1:
            self.cancel()

    def unless_interrupted(self, play: Callable[[], Result]) -> Result | None:
        """The result of `play`; None if training is over, or was interrupted before or during `play`."""
        if self._began_at is None:
            self._began_at = self.state.global_step
        self._is_over = self.state.global_step >= self.state.max_steps
        if self.did_nothing:
            logger.warning(
                "the checkpoint is of step %d and max_steps is %d: there is nothing left to train",
                self.state.global_step,
                self.state.max_steps,
            )
        self._agree()
        if not (self._agreed or self._is_over):
            try:
                return play()
            except asyncio.CancelledError:
                self._agree()
                if not self._agreed:
                    raise
        self.control.should_training_stop = True
        return None

    def _agree(self) -> None:
        self._agreed = self.was_interrupted
        if self._agreed:  # no round begins any more; a callback may evaluate at the end
            self.go_on()
        if self.accelerator.num_processes > 1:
            flag: Any = torch.tensor(float(self.was_interrupted), device=self.accelerator.device)
            with self.waiting("the other processes"):
                total: Any = self.accelerator.reduce(flag, reduction="sum")
                self.was_interrupted = self._agreed = total.item() > 0

    def is_ending(self) -> bool:
        return self.was_interrupted

    def decide(self) -> None:
        if self.accelerator.num_processes == 1:
            self._agree()
        if self._is_over:
            self.control.should_evaluate = self.control.should_save = False
        if not self._agreed or self._is_over:
            return
        self.control.should_evaluate = False
        self.control.should_save = self.saved_step != self.state.global_step
        self.control.should_training_stop = True

    @property
    def did_nothing(self) -> bool:
        """Whether a finished training was resumed."""
        return self._is_over and self._began_at == self.state.global_step

    def say_how_to_resume(self, why: str) -> None:
        """Log the place of this step's checkpoint and the call that resumes from it."""
        if self.is_world_process_zero():
            step = self.state.global_step
            folder = str(Path(self.args.output_dir or ".", f"checkpoint-{step}"))
            text = "%s after step %d; the checkpoint is in %s, and train(resume_from_checkpoint=%r) goes on from it"
            if self.args.save_only_model:
                text = "%s after step %d; save_only_model=True left weights alone in %s; a new training has model=%r"
            logger.warning(text, why, step, folder, folder)
