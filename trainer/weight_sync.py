"""WeightSync: a generator's weights follow the model's, once after each change."""

from __future__ import annotations

from collections.abc import Callable

from accelerate import PartialState
from transformers import PreTrainedModel

from .generation import Generator


class WeightSync:
    """Loads the model's weights into a generator when they have changed since the last time.

    Several processes must call it together, if one generator serves them all.

    Args:
        model: Whose weights.
        generator: Who is to sample with them.
        step: The number of optimiser steps that the weights have seen.
    """

    def __init__(self, model: PreTrainedModel, generator: Generator, step: Callable[[], int]) -> None:
        self._model = model
        self._generator = generator
        self._step = step
        self._loaded: tuple[int, ...] | None = None

    def __call__(self) -> None:
        """Load the weights, unless the generator has them already."""
        state = self._state()
        if state == self._loaded:
            return
        self._generator.load_weights(self._model, version=state[0])
        if self._generator.is_shared:
            PartialState().wait_for_everyone()  # one of the processes sends, and the others must not ask before
        self._loaded = state

    def _state(self) -> tuple[int, ...]:
        """Changes with the weights: PyTorch counts what is written to a tensor, such as a checkpoint that is loaded.

        The steps are counted too, as some optimisers write past PyTorch.
        """
        return self._step(), sum(parameter._version for parameter in self._model.parameters())
