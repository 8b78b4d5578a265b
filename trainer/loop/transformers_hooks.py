"""The only file that overrides private names of `transformers.Trainer`; a test compares their signatures."""

from __future__ import annotations

import asyncio
import random
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader
from transformers import Trainer, TrainerCallback, TrainingArguments

from ..models.adapters import has_adapter, load_adapters
from ..models.file_bars import file_bars
from ..models.sharding import whole


class _Calls(TrainerCallback):
    """Calls the trainer when training begins, and just before and just after the optimiser."""

    def __init__(self, trainer: HookedTrainer) -> None:
        self._trainer = trainer

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._trainer.wrapped()
        self._trainer.begin()

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._trainer.before_update()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._trainer.loss_before_step = self._trainer.rewind = None
        self._trainer.after_update()


class HookedTrainer(Trainer, ABC):
    """`transformers.Trainer`, in which a subclass decides about batches, checkpoints and the end of training."""

    saved_step: int | None = None  # of the newest checkpoint of this training
    step_loss: Tensor  # () of this process, of the optimiser step in progress
    micro_batches: int  # of this process, in the optimiser step in progress
    loss_before_step: Tensor | None = None  # () since the last log, if a step is in progress
    rewind: Callable[[], None] | None = None  # restores the random state from before the step in progress
    grad_norm: Tensor | float  # of all processes, before clipping
    steps_of_log: int  # the number of steps that the log in progress is of
    has_gradient: bool  # whether the step in progress has a backward pass

    def __init__(self, *, callbacks: Sequence[TrainerCallback], **options: Any) -> None:
        # Before the user's callbacks, so that the time of an update includes none of theirs.
        super().__init__(callbacks=[_Calls(self), *callbacks], **options)

    # Hooks for subclasses.

    @abstractmethod
    def next_batches(self, count: int, device: torch.device) -> tuple[list[list[Any]], Tensor]:
        """The batches of one optimiser step, each a list of micro-batches, and their number of loss tokens.

        An empty list: no step.
        """

    @abstractmethod
    def batches_per_epoch(self) -> int: ...

    def wrapped(self) -> None:
        """Called when the model is wrapped, and sharded if it will be; before a checkpoint is loaded. Do so once."""

    def begin(self) -> None:
        """Called before the first step, when weights and state are loaded."""

    def waiting(self, what: str) -> AbstractContextManager[None]:
        """A context that is entered while this process waits for `what`."""
        return nullcontext()

    def before_update(self) -> None:
        """Called when an optimiser step has its gradients."""

    def after_update(self) -> None:
        """Called when the weights are new."""

    def weights_will_be_loaded(self) -> None:
        """Called after the last step, before the best weights are loaded."""

    def decide(self) -> None:
        """Called after each step and at the end of an epoch, before logs, evaluation and checkpoints."""

    def is_ending(self) -> bool:
        """Whether an evaluation may be given up."""
        return False

    def forget_loss(self) -> None:
        """Leave the step in progress out of the losses since the last log."""
        assert self.loss_before_step is not None
        self._tr_loss.copy_(self.loss_before_step)

    @property
    def unlogged_loss(self) -> tuple[float, int]:
        """The sum of the losses of finished steps since the last log, and the step of that log."""
        loss = self._tr_loss if self.loss_before_step is None else self.loss_before_step
        return loss.item(), self._globalstep_last_logged

    def restore_unlogged_loss(self, loss: float, logged_step: int) -> None:
        """Restore these; the mean loss of this `train()` stays the mean over its own steps."""
        self._tr_loss.fill_(loss)
        self._globalstep_last_logged = logged_step
        self._total_loss_scalar = -loss

    def save_more(self, folder: Path) -> None:
        """Write further files into a checkpoint, in every process."""

    def load_more(self, folder: Path) -> None:
        """Read what `save_more` wrote."""

    def save_checkpoint(self) -> None:
        """Save a checkpoint of this step, unless there is one."""
        if self.saved_step != self.state.global_step:
            model: Any = self.model_wrapped
            self._save_checkpoint(model, None)
            self.control = self.callback_handler.on_save(self.args, self.state, self.control)

    # Public names, which transformers calls with arguments that change.

    def get_train_dataloader(self) -> DataLoader[Any]:
        """A loader of the right length; its items are not used."""
        filler: Any = range(self.batches_per_epoch())
        return DataLoader(filler, batch_size=None)

    def num_examples(self, dataloader: DataLoader[Any]) -> int:
        """The completions of an epoch, so that `train_samples_per_second` counts them however its length is given."""
        return len(dataloader) * self.args.per_device_train_batch_size * self.args.world_size

    def get_batch_samples(
        self, epoch_iterator: Iterator[Any], num_batches: int, device: torch.device
    ) -> tuple[list[Any], Any]:
        self.step_loss, self.loss_before_step = torch.zeros((), device=device), None
        self.rewind = random_state()
        batches, loss_tokens = self.next_batches(num_batches, device)
        self.micro_batches = sum(map(len, batches))
        # DeepSpeed takes the step inside the backward pass: momentum and weight decay would move the weights.
        self.has_gradient = not self.is_deepspeed_enabled or bool(loss_tokens)
        return batches, loss_tokens

    def training_step(self, model: nn.Module, inputs: Any, num_items_in_batch: Tensor | int | None = None) -> Tensor:
        """A forward and a backward pass of each micro-batch.

        Processes exchange gradients in the last one; if they share weights in each, since whole gradients do not fit.
        """
        if self.loss_before_step is None:
            self.loss_before_step = self._tr_loss.clone()
        losses: list[Tensor] = []
        if not self.has_gradient:
            return torch.zeros_like(self.step_loss)
        self.current_gradient_accumulation_steps = self.micro_batches  # transformers counts batches
        ends_step = self.accelerator.sync_gradients
        for micro_batch in inputs:
            is_last = len(losses) + 1 == len(inputs)
            self.accelerator.gradient_state._set_sync_gradients(is_last and ends_step)
            with nullcontext() if is_last or self.accelerator.is_fsdp2 else self.accelerator.no_sync(model):
                losses.append(super().training_step(model, micro_batch, num_items_in_batch))
        loss = torch.stack(losses).sum()
        self.step_loss = self.step_loss + loss
        return loss

    def floating_point_ops(self, inputs: Any) -> int:
        return sum(super(HookedTrainer, self).floating_point_ops(micro_batch["inputs"]) for micro_batch in inputs)

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> Any:
        if self.is_deepspeed_enabled:  # it has the model, and loads a checkpoint next
            self.wrapped()
        return super().create_scheduler(num_training_steps, optimizer)

    # Private names.

    def _track_num_input_tokens(self, inputs: Any) -> None:
        for micro_batch in inputs:
            super()._track_num_input_tokens(micro_batch["inputs"])

    def _get_grad_norm(self, model: nn.Module, grad_norm: Tensor | float | None = None) -> Tensor | float:
        norm: Any = super()._get_grad_norm(model, grad_norm) if self.has_gradient else 0.0
        self.grad_norm = whole(norm) if isinstance(norm, Tensor) else norm
        return self.grad_norm

    def _save_rng_state(self, output_dir: str) -> None:
        if self.rewind is not None:  # a resumed training takes this step again
            self.rewind()
        super()._save_rng_state(output_dir)
        self.save_more(Path(output_dir))
        with self.waiting("the other processes to save their part of a checkpoint"):
            self.accelerator.wait_for_everyone()  # the next file, of rank 0, marks the checkpoint as complete

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: nn.Module | None = None) -> None:
        self.wrapped()
        if has_adapter(self.model) and not self.is_fsdp_enabled:
            # transformers refuses an attached adapter, and passes over `default` where there are others.
            load_adapters(self.model, Path(resume_from_checkpoint))
        else:
            super()._load_from_checkpoint(resume_from_checkpoint, model)
        self.load_more(Path(resume_from_checkpoint))

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        super()._load_optimizer_and_scheduler(checkpoint)
        if checkpoint is not None and self.is_deepspeed_enabled:  # DeepSpeed has loaded the weights
            self.load_more(Path(checkpoint))

    def _issue_warnings_after_load(self, load_result: Any) -> None:
        # Weights that are tied to others are saved once, and transformers would warn that they are missing.
        model: Any = self.model
        missing = [name for name in load_result.missing_keys if name not in model.all_tied_weights_keys]
        super()._issue_warnings_after_load(load_result._replace(missing_keys=missing))

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        with file_bars(shown=not self.args.disable_tqdm):
            super().save_model(output_dir, _internal_call)

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        if self.saved_step != self.state.global_step:  # overwriting it would make it incomplete for a while
            super()._save_checkpoint(model, trial)
            self.saved_step = self.state.global_step

    def _maybe_log_save_evaluate(self, *args: Any, **kwargs: Any) -> None:
        self.decide()
        self.steps_of_log = self.state.global_step - self._globalstep_last_logged
        super()._maybe_log_save_evaluate(*args, **kwargs)

    def _evaluate(
        self, trial: Any, ignore_keys_for_eval: list[str] | None, skip_scheduler: bool = False
    ) -> dict[str, float]:
        if skip_scheduler and self.state.global_step:  # `eval_on_start` is for the first start only
            return {}
        try:
            return super()._evaluate(trial, ignore_keys_for_eval, skip_scheduler)
        except asyncio.CancelledError:
            if not self.is_ending():
                raise
            return {}

    def _load_best_model(self) -> None:
        self.weights_will_be_loaded()
        super()._load_best_model()

    def _determine_best_metric(self, metrics: dict[str, float], trial: Any) -> bool:
        return bool(metrics) and super()._determine_best_metric(metrics, trial)


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
