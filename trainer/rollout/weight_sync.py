"""WeightSync: a generator's weights follow the model's, once after each change."""

from __future__ import annotations

from collections.abc import Callable

from accelerate import PartialState
from accelerate.utils import gather_object
from transformers import PreTrainedModel

from ..generation.contract import GenerationError, Generator
from ..models.sharding import is_sharded


class WeightSync:
    """Loads the model's weights into a generator when they have changed since the last time.

    Several processes must call it together if one generator serves them all, or if the weights are sharded over them.
    `step` returns how many optimiser steps the weights have seen.
    """

    def __init__(self, model: PreTrainedModel, generator: Generator, step: Callable[[], int]) -> None:
        self._model = model
        self._generator = generator
        self._step = step
        self._loaded: tuple[int, ...] | None = None

    def __call__(self) -> None:
        """Load the weights, unless the generator has them already.

        Raises:
            Exception: any exception of `load_weights`, here or in the process that sends.
        """
        if not self._in_any_process(self._state() != self._loaded):
            return
        error: Exception | None = None
        try:
            self._generator.load_weights(self._model, version=self._step())
        except Exception as raised:
            error = raised
        # The processes wait for each other, and must learn if one failed.
        if self._in_any_process(error is not None):
            raise error or GenerationError("another training process could not load the weights; see its error")
        self._loaded = self._state()

    def _in_any_process(self, here: bool) -> bool:
        """Whether `here` is True in any process that shares the generator or the weights; all of them must call it."""
        together = self._generator.is_shared or is_sharded(self._model)
        return any(gather_object([here])) if together and PartialState().num_processes > 1 else here

    def _state(self) -> tuple[int, ...]:
        """Changes with the weights. PyTorch counts writes to a tensor, but misses those of some optimisers."""
        return self._step(), sum(parameter._version for parameter in self._model.parameters())
