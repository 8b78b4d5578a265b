"""The only file that overrides private names of `transformers.Trainer`; a test compares their signatures."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader
from transformers import Trainer, TrainerCallback, TrainingArguments


class _AroundUpdates(TrainerCallback):
    """Calls the trainer just before and just after the optimiser."""

    def __init__(self, trainer: HookedTrainer) -> None:
        self._trainer = trainer

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._trainer.before_update()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._trainer.after_update()


class HookedTrainer(Trainer):
    """`transformers.Trainer`, in which a subclass decides about batches, checkpoints and the end of training."""

    loss_is_scaled_for_ga = True  # `policy_loss` has divided gradient accumulation out
    saved_step: int | None = None  # of the last checkpoint that this training wrote

    def __init__(self, *, callbacks: Sequence[TrainerCallback], **options: Any) -> None:
        # Before the user's callbacks, so that the time of an update includes none of theirs.
        super().__init__(callbacks=[_AroundUpdates(self), *callbacks], **options)

    # Hooks for subclasses.

    def next_batches(self, count: int, device: torch.device) -> tuple[list[list[dict[str, Tensor]]], Tensor]:
        """The batches of one optimiser step, each a list of micro-batches, and their number of loss tokens.

        An empty list: no step.
        """
        raise NotImplementedError

    def batches_per_epoch(self) -> int:
        raise NotImplementedError

    def before_update(self) -> None:
        """Called when an optimiser step has its gradients."""

    def after_update(self) -> None:
        """Called when the weights are new."""

    def decide(self) -> None:
        """Called after each step and at the end of an epoch, before logs, evaluation and checkpoints."""

    def on_saved(self) -> None:
        """Called when a checkpoint has been saved after `decide`."""

    def is_ending(self) -> bool:
        """Whether an evaluation may be given up."""
        return False

    def save_more(self, folder: Path) -> None:
        """Write further files into a checkpoint."""

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

    def get_batch_samples(
        self, epoch_iterator: Iterator[Any], num_batches: int, device: torch.device
    ) -> tuple[list[Any], Any]:
        return self.next_batches(num_batches, device)

    def training_step(self, model: nn.Module, inputs: Any, num_items_in_batch: Tensor | int | None = None) -> Tensor:
        """A forward and a backward pass of each micro-batch; processes exchange gradients in the last one."""
        losses: list[Tensor] = []
        for micro_batch in inputs:
            is_last = len(losses) + 1 == len(inputs)
            with nullcontext() if is_last else self.accelerator.no_sync(model):
                losses.append(super().training_step(model, micro_batch, num_items_in_batch))
        return torch.stack(losses).sum()

    def floating_point_ops(self, inputs: Any) -> int:
        return sum(super(HookedTrainer, self).floating_point_ops(micro_batch) for micro_batch in inputs)

    # Private names.

    def _track_num_input_tokens(self, inputs: Any) -> None:
        for micro_batch in inputs:
            super()._track_num_input_tokens(micro_batch)

    def _save_rng_state(self, output_dir: str) -> None:
        super()._save_rng_state(output_dir)
        self.save_more(Path(output_dir))

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: nn.Module | None = None) -> None:
        super()._load_from_checkpoint(resume_from_checkpoint, model)
        self.load_more(Path(resume_from_checkpoint))

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        super()._save_checkpoint(model, trial)
        self.saved_step = self.state.global_step

    def _maybe_log_save_evaluate(self, *args: Any, **kwargs: Any) -> None:
        self.decide()
        before = self.saved_step
        super()._maybe_log_save_evaluate(*args, **kwargs)
        if self.saved_step != before:
            self.on_saved()

    def _evaluate(self, *args: Any, **kwargs: Any) -> dict[str, float]:
        try:
            return super()._evaluate(*args, **kwargs)
        except asyncio.CancelledError:
            if not self.is_ending():
                raise
            return {}

    def _determine_best_metric(self, metrics: dict[str, float], trial: Any) -> bool:
        return bool(metrics) and super()._determine_best_metric(metrics, trial)


def use_one_gpu(args: TrainingArguments) -> None:
    """Make transformers use one GPU; it would split each batch over all GPUs that the process sees."""
    if args.n_gpu > 1:
        warnings.warn(
            f"{args.n_gpu} GPUs are visible and one is used: start one process for each (accelerate launch, torchrun)",
            stacklevel=3,
        )
        args._n_gpu = 1
