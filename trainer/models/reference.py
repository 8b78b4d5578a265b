"""Reference: the policy that the KL term compares with; ReferenceSync: one that follows the policy in training."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from .internals import hooks
from .output_head import OutputHead
from .sharding import own_part, reshard

ADAPTER = "ref"
"""A model with an adapter of this name is compared with itself under that adapter, as in TRL."""

FILE = "reference{suffix}.pt"
"""The reference in a checkpoint, if it follows the policy; with sharded weights each process has a file."""


class Reference:
    """A copy of a model's present weights, to score with them later; or its adapter `ref`, if it has one.

    Only weights that can be trained are copied: the adapter, if the model has one. An adapter that was trained before
    is part of the reference. Of sharded weights each process copies its own part.

    The copies belong to a second model, which shares every other tensor with the first. So other threads may read the
    first while the reference scores, such as one that sends its weights.

    Args:
        model: The policy, on its device and before its first update.
        head: The output head of the policy.
        in_place: Exchange the weights inside the policy, because an engine that shards or flattens weights computes
            with no others. No other thread may read the policy meanwhile.

    Raises:
        ValueError: the adapter `ref` is the one in training.
    """

    def __init__(self, model: nn.Module, head: OutputHead | None = None, *, in_place: bool = False) -> None:
        self._model: Any = model
        self._head = head
        self._in_place = in_place
        self.is_adapter = ADAPTER in getattr(model, "peft_config", {})
        if self.is_adapter and ADAPTER in self._active_adapters():
            raise ValueError(f"the adapter {ADAPTER!r} is the reference: call set_adapter() with the one to be trained")
        reshard(model)
        copied = [] if self.is_adapter else [parameter for parameter in model.parameters() if parameter.requires_grad]
        self._weights = [(parameter, own_part(parameter).detach().clone()) for parameter in copied]

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
    def model(self) -> Iterator[tuple[nn.Module, OutputHead | None]]:
        """Lend a model with these weights, and its output head."""
        if not self._in_place:
            yield self._second
            return
        active = self._active_adapters() if self.is_adapter else []
        self._exchange([ADAPTER])
        try:
            yield self._model, self._head
        finally:
            self._exchange(active)

    @cached_property
    def _second(self) -> tuple[nn.Module, OutputHead | None]:
        """The second model; made at its first use, because accelerate changes the first one when training begins."""
        known = {id(parameter): parameter for parameter in self._model.parameters()}
        known |= {id(parameter): nn.Parameter(frozen, requires_grad=False) for parameter, frozen in self._weights}
        # The hook of the output head belongs to the copy, and so does one of a layer itself.
        owned = OutputHead | nn.Module
        known |= {id(hook): hook for hook in hooks(self._model) if not isinstance(getattr(hook, "__self__", 0), owned)}
        with _SharedTensors():
            model, head = copy.deepcopy((self._model, self._head), known)
        if self.is_adapter:
            _activate(model, ADAPTER)
        return model, head

    def _exchange(self, adapters: list[str]) -> None:
        if self.is_adapter:
            [adapter] = adapters
            _activate(self._model, adapter)
        reshard(self._model)
        for parameter, frozen in self._weights:
            _exchange(own_part(parameter), frozen)

    def _active_adapters(self) -> list[str]:
        active: Any = self._model.active_adapters  # a method of transformers' models, a property of PEFT's
        adapters: Any = active() if callable(active) else active
        return adapters


class _SharedTensors(TorchFunctionMode):
    """Copies of objects share their tensors: buffers, and those that quantised layers keep in plain attributes."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return args[0] if func is Tensor.__deepcopy__ else func(*args, **(kwargs or {}))


def _activate(model: Any, adapter: str) -> None:
    """Compute with this adapter; train the one that was in training before."""
    trainable = [(parameter, parameter.requires_grad) for parameter in model.parameters()]
    model.set_adapter(adapter)
    for parameter, requires_grad in trainable:  # `set_adapter` changes them
        parameter.requires_grad_(requires_grad)


@torch.no_grad()
def _exchange(one: Tensor, other: Tensor) -> None:
    """Exchange the values of two tensors in place: FSDP2 reads the memory of a part, not the parameter."""
    former = one.clone()
    one.copy_(other)
    other.copy_(former)


def check_stays(folder: Path) -> None:
    """Raise a `ValueError` if the reference of a checkpoint followed the policy."""
    for path in folder.glob(FILE.format(suffix="*")):
        raise ValueError(
            f"{folder} has a {path.name}, since sync_ref_model was True there: set it to True to resume. Otherwise the "
            f"KL term would compare with the model that training began with"
        )


@dataclass(kw_only=True, frozen=True)
class ReferenceSync:
    """Mixes the policy into the reference every so many steps, and keeps the reference in checkpoints.

    Without it the reference is the model that training began with, so no checkpoint needs it.
    """

    reference: Reference
    alpha: float  # the policy's share
    every: int  # optimiser steps from one mixing to the next
    suffix: str = ""  # of the file of this process, if each one has its own

    def after_step(self, step: int) -> None:
        """Mix if this number of optimiser steps says so. Called after each step of the policy."""
        if step % self.every == 0:
            self.reference.mix(self.alpha)

    def save(self, folder: Path) -> None:
        """Write the reference into a checkpoint."""
        torch.save(self.reference.copies, folder / FILE.format(suffix=self.suffix))

    def load(self, folder: Path) -> None:
        """Read the reference that `save` wrote."""
        path = folder / FILE.format(suffix=self.suffix)
        if not path.is_file():
            raise ValueError(
                f"{folder} has no {path.name}, since sync_ref_model was False there, or the weights were sharded over "
                f"other processes: give the same options and number of processes to resume"
            )
        saved = torch.load(path, weights_only=True, map_location="cpu")
        for own, value in zip(self.reference.copies, saved, strict=True):
            own.copy_(value)
