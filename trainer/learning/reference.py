"""Reference: the frozen policy that the KL term compares with."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn


class Reference:
    """The weights that a model has now, so that it can be run with them later.

    Only weights that can be trained are copied: the adapter, if the model has one. An adapter that was trained before
    is part of the reference.

    Args:
        model: The policy, on its device and before its first update.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._weights = [(each, each.detach().clone()) for each in model.parameters() if each.requires_grad]

    @contextmanager
    def weights(self) -> Iterator[nn.Module]:
        """The model with these weights, which are exchanged for its own without copying."""
        self._exchange()
        try:
            yield self._model
        finally:
            self._exchange()

    def _exchange(self) -> None:
        exchanged = []
        for parameter, frozen in self._weights:
            exchanged.append((parameter, parameter.data))
            parameter.data = frozen
        self._weights = exchanged
