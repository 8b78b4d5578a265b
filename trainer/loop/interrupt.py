"""Interruption: ends a training early, at a safe place and with a checkpoint, after a signal or an error."""

from __future__ import annotations

import asyncio
import logging
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, TypeVar

from transformers import TrainerControl

from ..models.distributed import Processes
from ..rollout.episode_player import EpisodePlayer
from ..rollout.failures import RolloutError
from .checkpoints import move_checkpoints_aside, step_of
from .nonfinite import NonFiniteError
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


@dataclass(eq=False)
class Interruption:
    """Saves a checkpoint when a signal or an error ends a training; resuming a finished training does nothing.

    The first signal cancels a round or an evaluation in progress, or lets an update in progress finish. Several
    processes stop together, before their next step: if one stopped alone, the others would wait for it.
    """

    _trainer: HookedTrainer[Any]
    _player: EpisodePlayer
    _processes: Processes
    _agreed: bool = False  # whether all processes have agreed to stop
    _began_at: int | None = None  # the step of the first batch of this train()
    _is_over: bool = False  # whether a finished training was resumed

    @contextmanager
    def watching(self, checkpoint: str | None) -> Iterator[None]:
        """Open a context in which a training, which continues from this checkpoint, may be ended early."""
        trainer = self._trainer
        trainer.was_interrupted, trainer.saved_step = False, None
        self._make_room(checkpoint)
        try:
            with stop_on_interrupt(self._interrupt):
                yield
            if self._agreed and trainer.saved_step == trainer.state.global_step:
                self._say_how_to_resume("interrupted")
        except Exception as error:
            if self._began_at not in (None, trainer.state.global_step):  # there are new weights to lose
                self._save_before(error)
            raise
        finally:
            self._player.go_on()  # a signal may have come after the last episodes

    def _make_room(self, checkpoint: str | None) -> None:
        """Move the checkpoints of other trainings aside, for this one, which continues from `checkpoint`."""
        folder, step = self._trainer.args.output_dir or ".", None
        if checkpoint is not None:
            step = step_of(checkpoint)
            is_ours = Path(checkpoint).resolve() == Path(folder, f"checkpoint-{step}").resolve()
            self._trainer.saved_step = step if is_ours else None
        if self._trainer.is_world_process_zero():
            move_checkpoints_aside(folder, after=step)

    def _save_before(self, error: Exception) -> None:
        # Saving waits for all processes. These errors follow from counts over all of them.
        ends_all = isinstance(error, RolloutError | NonFiniteError) or self._processes.all_failed
        if self._processes.count > 1 and not ends_all:
            return  # the others still train: saving would wait for them, and the deadlock would hide the error
        try:
            self._trainer.save_checkpoint()
        except Exception:  # the error that ends the training matters more
            logger.exception("no checkpoint could be saved before the error below ends the training")
        else:
            self._say_how_to_resume("an error ends the training")

    def _interrupt(self, signal_name: str) -> None:
        self._trainer.was_interrupted = True
        text = "interrupted by %s: stopping at the next safe place, with a checkpoint; a second signal quits at once"
        logger.warning(text, signal_name)
        if self._processes.count == 1:
            self._player.cancel()

    def unless_interrupted(self, play: Callable[[], Result]) -> Result | None:
        """Return the result of `play`; None if training is over, or was interrupted before or during `play`."""
        state = self._trainer.state
        if self._began_at is None:
            self._began_at = state.global_step
        self._is_over = state.global_step >= state.max_steps
        if self.did_nothing:
            text = "the checkpoint is of step %d and max_steps is %d: there is nothing left to train"
            logger.warning(text, state.global_step, state.max_steps)
        self._agree()
        if not (self._agreed or self._is_over):
            try:
                return play()
            except asyncio.CancelledError:
                self._agree()
                if not self._agreed:
                    raise
        self._trainer.control.should_training_stop = True
        return None

    def _agree(self) -> None:
        self._agreed = self._trainer.was_interrupted
        if self._agreed:  # no round begins any more; a callback may evaluate at the end
            self._player.go_on()
        if self._processes.count > 1:
            self._agreed = self._trainer.was_interrupted = self._processes.sum_counts(self._agreed) != [0]

    def decide(self, control: TrainerControl) -> None:
        """Decide about logs, evaluation and checkpoint after a step, and at the end of an epoch."""
        if self._processes.count == 1:
            self._agree()
        is_saved = self._trainer.saved_step == self._trainer.state.global_step
        if self._is_over:
            control.should_evaluate = control.should_save = False
        elif self._agreed:
            control.should_evaluate, control.should_save, control.should_training_stop = False, True, True
        if is_saved:  # to overwrite it would make it incomplete for a while
            control.should_save = False

    @property
    def did_nothing(self) -> bool:
        """Whether a finished training was resumed."""
        return self._is_over and self._began_at == self._trainer.state.global_step

    def _say_how_to_resume(self, why: str) -> None:
        """Log the place of this step's checkpoint and the call that resumes from it."""
        trainer = self._trainer
        if trainer.is_world_process_zero():
            step = trainer.state.global_step
            folder = str(Path(trainer.args.output_dir or ".", f"checkpoint-{step}"))
            text = "%s after step %d; the checkpoint is in %s, and train(resume_from_checkpoint=%r) goes on from it"
            if trainer.args.save_only_model:
                text = "%s after step %d; save_only_model=True left weights alone in %s; a new training has model=%r"
            logger.warning(text, why, step, folder, folder)
