"""HookedTrainer: `transformers.Trainer`, whose moments one `Loop` decides about.

The only file that overrides private names of `transformers.Trainer`; a test compares their signatures.
"""

from __future__ import annotations

import ast
import asyncio
import logging
import math
import random
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader
from transformers import Trainer, TrainerCallback, TrainerControl, TrainingArguments
from transformers.trainer_utils import TrainOutput

from ..learning.samples import MicroBatch
from ..models.adapters import has_adapter, load_adapters
from ..models.sharding import whole


class Loop(ABC):
    """One training: `HookedTrainer` calls it at each moment of `transformers.Trainer.train`."""

    batches_per_epoch: int

    @abstractmethod
    def wrapped(self) -> None:
        """The model is wrapped, and sharded if it will be; a checkpoint is loaded next. It may come twice."""

    @abstractmethod
    def begin(self) -> None:
        """The first step comes next: weights and state are loaded."""

    @abstractmethod
    def next_batches(self, count: int, device: torch.device) -> tuple[list[list[MicroBatch]], Tensor]:
        """Return the batches of one optimiser step, each a list of micro-batches, and their number of loss tokens.

        An empty list: no step.
        """

    @abstractmethod
    def before_update(self) -> None:
        """An optimiser step has its gradients."""

    @abstractmethod
    def after_update(self) -> None:
        """The weights are new."""

    @abstractmethod
    def decide(self, control: TrainerControl) -> None:
        """Logs, evaluation and checkpoints of a step come next, or those at the end of an epoch."""

    @abstractmethod
    def complete(self, logs: dict[str, float]) -> bool:
        """Complete the logs of a step, or the summary after the last one; return whether there is something to log."""

    @abstractmethod
    def save(self, folder: Path) -> None:
        """Write further files into a checkpoint, in every process, and wait for those of the others."""


LoopT = TypeVar("LoopT", bound=Loop)


class HookedTrainer(Trainer, Generic[LoopT]):
    """`transformers.Trainer` for batches that are made of several micro-batches, and that its loop gives it."""

    loop: LoopT  # of the latest `train()`
    was_interrupted = False  # whether SIGINT (Ctrl-C) or SIGTERM ended the last train()
    saved_step: int | None = None  # of the newest checkpoint of this training
    step_loss: Tensor  # () of this process, of the optimiser step in progress
    micro_batches: int  # of this process, in the optimiser step in progress
    grad_norm: Tensor | float  # of all processes, before clipping
    steps_of_log: int  # the number of steps that the log in progress is of
    _loss_before_step: Tensor | None = None  # () since the last log, if a step is in progress
    _rewind: Callable[[], None] | None = None  # restores the random state from before the step in progress
    _has_gradient: bool  # whether the step in progress has a backward pass

    def __init__(self, *, callbacks: Sequence[TrainerCallback], **options: Any) -> None:
        # Before the user's callbacks, so that the time of an update includes none of theirs.
        super().__init__(callbacks=[_First(self), *callbacks], **options)
        self._last = _Last(self)
        super().add_callback(self._last)

    def train(self, *args: Any, **kwargs: Any) -> TrainOutput:
        self.remove_callback(self._last)
        super().add_callback(self._last)  # after callbacks that users have added meanwhile
        with _tied_weights_are_no_loss(self.model):
            return super().train(*args, **kwargs)

    def save_checkpoint(self) -> None:
        """Save a checkpoint of this step, unless there is one."""
        if self.saved_step != self.state.global_step:
            model: Any = self.model_wrapped
            self._save_checkpoint(model, None)
            self.control = self.callback_handler.on_save(self.args, self.state, self.control)

    def forget_loss(self) -> None:
        """Leave the step in progress out of the losses since the last log."""
        assert self._loss_before_step is not None
        self._tr_loss.copy_(self._loss_before_step)

    @property
    def unlogged_loss(self) -> tuple[float, int]:
        """The sum of the losses of finished steps since the last log, and the step of that log."""
        loss = self._tr_loss if self._loss_before_step is None else self._loss_before_step
        return loss.item(), self._globalstep_last_logged

    def restore_unlogged_loss(self, loss: float, logged_step: int) -> None:
        """Restore these; the mean loss of this `train()` stays the mean over its own steps."""
        self._tr_loss.fill_(loss)
        self._globalstep_last_logged = logged_step
        self._total_loss_scalar = -loss

    # Public names, which transformers calls with arguments that change.

    def get_train_dataloader(self) -> DataLoader[Any]:
        """Return a loader of the right length; its items are not used."""
        filler: Any = range(self.loop.batches_per_epoch)
        return DataLoader(filler, batch_size=None)

    def num_examples(self, dataloader: DataLoader[Any]) -> int:
        """Return the completions of an epoch: `train_samples_per_second` counts them however its length is given."""
        return len(dataloader) * self.args.per_device_train_batch_size * self.args.world_size

    def get_batch_samples(
        self, epoch_iterator: Iterator[Any], num_batches: int, device: torch.device
    ) -> tuple[list[Any], Any]:
        self.step_loss, self._loss_before_step = torch.zeros((), device=device), None
        self._rewind = random_state()
        batches, loss_tokens = self.loop.next_batches(num_batches, device)
        self.micro_batches = sum(map(len, batches))
        # DeepSpeed takes the step inside the backward pass: momentum and weight decay would move the weights.
        self._has_gradient = not self.is_deepspeed_enabled or bool(loss_tokens)
        return [_as_inputs(micro_batches) for micro_batches in batches], loss_tokens

    def training_step(self, model: nn.Module, inputs: Any, num_items_in_batch: Tensor | int | None = None) -> Tensor:
        """Do a forward and a backward pass of each micro-batch.

        Processes exchange gradients in the last one; if they share weights in each, since whole gradients do not fit.
        """
        if self._loss_before_step is None:
            self._loss_before_step = self._tr_loss.clone()
        losses: list[Tensor] = []
        if not self._has_gradient:
            return torch.zeros_like(self.step_loss)
        self.current_gradient_accumulation_steps = self.micro_batches  # transformers counts batches
        ends_step = self.accelerator.sync_gradients
        for micro_batch in inputs["micro_batches"]:
            is_last = len(losses) + 1 == len(inputs["micro_batches"])
            self.accelerator.gradient_state._set_sync_gradients(is_last and ends_step)
            with nullcontext() if is_last or self.accelerator.is_fsdp2 else self.accelerator.no_sync(model):
                losses.append(super().training_step(model, micro_batch, num_items_in_batch))
        loss = torch.stack(losses).sum()
        self.step_loss = self.step_loss + loss
        return loss

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> Any:
        self.loop.wrapped()
        return super().create_scheduler(num_training_steps, optimizer)

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        is_of_training = "loss" in logs or "train_loss" in logs  # a step's, or the summary after the last one
        if not is_of_training or self.loop.complete(logs):
            super().log(logs, start_time)

    # Private names, for which there is no public way.

    def _get_grad_norm(self, model: nn.Module, grad_norm: Tensor | float | None = None) -> Tensor | float:
        """Keep the norm from before clipping; DeepSpeed has none if there was no backward pass."""
        norm: Any = super()._get_grad_norm(model, grad_norm) if self._has_gradient else 0.0
        self.grad_norm = whole(norm) if isinstance(norm, Tensor) else norm
        return self.grad_norm

    def _save_rng_state(self, output_dir: str) -> None:
        """Write further files before the one that marks a checkpoint as complete."""
        if self._rewind is not None:  # a resumed training takes this step again
            self._rewind()
        super()._save_rng_state(output_dir)
        self.loop.save(Path(output_dir))

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: nn.Module | None = None) -> None:
        """Load adapters: transformers refuses an attached one, and passes over `default` where there are others."""
        if has_adapter(self.model) and not self.is_fsdp_enabled:
            load_adapters(self.model, Path(resume_from_checkpoint))
        else:
            super()._load_from_checkpoint(resume_from_checkpoint, model)

    def _evaluate(
        self, trial: Any, ignore_keys_for_eval: list[str] | None, skip_scheduler: bool = False
    ) -> dict[str, float]:
        """Give an evaluation up: it has no metrics, which the schedule and the choice of the best model would read."""
        try:
            if not (skip_scheduler and self.state.global_step):  # `eval_on_start` is for the first start only
                return super()._evaluate(trial, ignore_keys_for_eval, skip_scheduler)
        except asyncio.CancelledError:
            if not self.was_interrupted:
                raise
        name, best = self.args.metric_for_best_model, self.state.best_metric
        return {} if name is None else {f"eval_{name.removeprefix('eval_')}": math.nan if best is None else best}


class _First(TrainerCallback):
    """Tells the loop when training begins, just before and just after the optimiser, and after a checkpoint."""

    def __init__(self, trainer: HookedTrainer[Any]) -> None:
        self._trainer = trainer

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._trainer.loop.begin()

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._trainer.loop.before_update()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._trainer._loss_before_step = self._trainer._rewind = None
        self._trainer.loop.after_update()

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._trainer.saved_step = state.global_step


class _Last(TrainerCallback):
    """Lets the loop decide when all other callbacks have: logs, evaluation and checkpoint come next."""

    def __init__(self, trainer: HookedTrainer[Any]) -> None:
        self._trainer = trainer

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._trainer.steps_of_log = state.global_step - self._trainer._globalstep_last_logged
        self._trainer.loop.decide(control)

    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.on_step_end(args, state, control)


def _as_inputs(micro_batches: list[MicroBatch]) -> dict[str, Any]:
    """Return a batch as transformers counts its tokens and operations; `training_step` takes its micro-batches."""
    names = ("input_ids", "attention_mask")
    counted = {name: torch.cat([part["inputs"][name].flatten() for part in micro_batches]) for name in names}
    return {**counted, "micro_batches": micro_batches}


@contextmanager
def _tied_weights_are_no_loss(model: Any) -> Iterator[None]:
    """Silence a warning of transformers: weights that are tied to others are saved once, and are no missing keys."""
    text = "There were missing keys in the checkpoint model loaded: "

    def is_of_interest(record: logging.LogRecord) -> bool:
        message = record.getMessage()
        is_it = message.startswith(text)
        return not is_it or not {*ast.literal_eval(message[len(text) : -1])} <= {*model.all_tied_weights_keys}

    logger = logging.getLogger(Trainer.__module__)
    logger.addFilter(is_of_interest)
    try:
        yield
    finally:
        logger.removeFilter(is_of_interest)


def random_state() -> Callable[[], None]:
    """Return a function that restores the present random state of Python, NumPy and PyTorch."""
    python, numpy, cpu = random.getstate(), np.random.get_state(), torch.get_rng_state()
    gpu = torch.cuda.get_rng_state() if torch.cuda.is_available() else None

    def restore() -> None:
        random.setstate(python)
        np.random.set_state(numpy)
        torch.set_rng_state(cpu)
        if gpu is not None:
            torch.cuda.set_rng_state(gpu)

    return restore


def use_one_gpu(args: TrainingArguments) -> None:
    """Make transformers use one GPU; it would split each batch over all GPUs that the process sees."""
    if args.n_gpu > 1:
        warnings.warn(
            f"{args.n_gpu} GPUs are visible and one is used: start one process for each (accelerate launch, torchrun)",
            stacklevel=3,
        )
        args._n_gpu = 1
