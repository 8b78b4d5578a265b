"""ReferenceSync: a reference model that follows the model in training."""

from __future__ import annotations

from pathlib import Path

import torch

from .learning.reference import Reference

FILE = "reference.pt"


class ReferenceSync:
    """Mixes the policy into the reference every so many steps, and keeps the reference in checkpoints.

    Without it the reference is the model that training began with, so no checkpoint needs it.

    Args:
        reference: Changed in place.
        alpha: The policy's share.
        every: Optimiser steps.
    """

    def __init__(self, reference: Reference, *, alpha: float, every: int) -> None:
        self._reference = reference
        self._alpha = alpha
        self._every = every

    def after_step(self, step: int) -> None:
        """The policy has seen so many optimiser steps."""
        if step % self._every == 0:
            self._reference.mix(self._alpha)

    def save(self, folder: Path) -> None:
        """Write the reference into a checkpoint."""
        torch.save(self._reference.copies, folder / FILE)

    def load(self, folder: Path) -> None:
        """Read what `save` wrote.

        Raises:
            ValueError: the checkpoint has no reference.
        """
        path = folder / FILE
        if not path.is_file():
            raise ValueError(f"{folder} has no {FILE}, since sync_ref_model was False there: leave it False to resume")
        saved = torch.load(path, weights_only=True, map_location="cpu")
        for copy, value in zip(self._reference.copies, saved, strict=True):
            copy.copy_(value)
