"""Reference: the policy that the KL term compares with; ReferenceSync: one that follows the policy in training."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from .sharding import own_part, reshard

ADAPTER = "ref"
"""A model with an adapter of this name is compared with itself under that adapter, as in TRL."""

FILE = "reference{suffix}.pt"
"""The reference in a checkpoint, if it follows the policy; with sharded weights each process has a file."""


class Reference:
    """A copy of a model's present weights, to run the model with them later; or its adapter `ref`, if it has one.

    Only weights that can be trained are copied: the adapter, if the model has one. An adapter that was trained before
    is part of the reference. Of sharded weights each process copies its own part.

    Args:
        model: The policy, on its device and before its first update.

    Raises:
        ValueError: the adapter `ref` is the one in training.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model: Any = model
        self.is_adapter = ADAPTER in getattr(model, "peft_config", {})
        if self.is_adapter and ADAPTER in self._active_adapters():
            raise ValueError(f"the adapter {ADAPTER!r} is the reference: call set_adapter() with the one to be trained")
        reshard(model)
        copied = [] if self.is_adapter else [each for each in model.parameters() if each.requires_grad]
        self._weights = [(each, own_part(each).detach().clone()) for each in copied]

    @property
    def copies(self) -> list[Tensor]:
        """The copied weights, in the order of the model's parameters."""
        return [frozen for _, frozen in self._weights]

    @torch.no_grad()
    def mix(self, alpha: float) -> None:
        """Set the copies to alpha * model + (1 - alpha) * copies (Gorbatovski et al. 2024, arXiv 2404.09656)."""
        for parameter, frozen in self._weights:
            frozen.mul_(1 - alpha).add_(own_part(parameter), alpha=alpha)

    @contextmanager
    def weights(self) -> Iterator[nn.Module]:
        """The model with these weights, which are exchanged for its own; without copying, unless they are sharded."""
        active = self._active_adapters() if self.is_adapter else []
        trainable = [(each, each.requires_grad) for each in self._model.parameters()]
        self._exchange([ADAPTER])
        try:
            yield self._model
        finally:
            self._exchange(active)
            for parameter, requires_grad in trainable:  # `set_adapter` changes them
                parameter.requires_grad_(requires_grad)

    def _exchange(self, adapters: list[str]) -> None:
        if self.is_adapter:
            [adapter] = adapters
            self._model.set_adapter(adapter)
        reshard(self._model)
        self._weights = [(parameter, _exchange(parameter, frozen)) for parameter, frozen in self._weights]

    def _active_adapters(self) -> list[str]:
        active: Any = self._model.active_adapters  # a method of transformers' models, a property of PEFT's
        adapters: Any = active() if callable(active) else active
        return adapters


@torch.no_grad()
def _exchange(parameter: Tensor, frozen: Tensor) -> Tensor:
    """Give a parameter these values; return a tensor with its former ones."""
    own = own_part(parameter)
    if own is parameter:
        former = parameter.data
        parameter.data = frozen
        return former
    former = own.clone()
    own.copy_(frozen)  # in place: FSDP2 reads the memory of a part, not the parameter
    return frozen.copy_(former)


def check_stays(folder: Path) -> None:
    """Check that the reference of a checkpoint is the model that its training began with.

    Raises:
        ValueError: it followed the policy.
    """
    for path in folder.glob(FILE.format(suffix="*")):
        raise ValueError(
            f"{folder} has a {path.name}, since sync_ref_model was True there: set it to True to resume. Otherwise the "
            f"KL term would compare with the model that training began with"
        )


class ReferenceSync:
    """Mixes the policy into the reference every so many steps, and keeps the reference in checkpoints.

    Without it the reference is the model that training began with, so no checkpoint needs it.

    Args:
        reference: Changed in place.
        alpha: The policy's share.
        every: Optimiser steps.
        suffix: Of the file of this process, if each one has its own.
    """

    def __init__(self, reference: Reference, *, alpha: float, every: int, suffix: str = "") -> None:
        self._reference = reference
        self._alpha = alpha
        self._every = every
        self._file = FILE.format(suffix=suffix)

    def after_step(self, step: int) -> None:
        """Called when the policy has seen so many optimiser steps."""
        if step % self._every == 0:
            self._reference.mix(self._alpha)

    def save(self, folder: Path) -> None:
        """Write the reference into a checkpoint."""
        torch.save(self._reference.copies, folder / self._file)

    def load(self, folder: Path) -> None:
        """Read the reference that `save` wrote.

        Raises:
            ValueError: the checkpoint has no reference.
        """
        path = folder / self._file
        if not path.is_file():
            raise ValueError(
                f"{folder} has no {self._file}, since sync_ref_model was False there, or the weights were sharded over "
                f"other processes: give the same options and number of processes to resume"
            )
        saved = torch.load(path, weights_only=True, map_location="cpu")
        for copy, value in zip(self._reference.copies, saved, strict=True):
            copy.copy_(value)
