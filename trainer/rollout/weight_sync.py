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

    `step` returns how many optimiser steps the weights have seen.
    """

    def __init__(self, model: PreTrainedModel, generator: Generator, step: Callable[[], int]) -> None:
        self._model = model
        self._generator = generator
        self._step = step
        self._loaded: tuple[int, ...] | None = None

    @property
    def is_collective(self) -> bool:
        """Whether all processes must call it together, because they share the generator or the weights.

        Then it must be called in the main thread: other collective operations could begin in another order elsewhere.
        """
        return PartialState().num_processes > 1 and (self._generator.is_shared or is_sharded(self._model))

    def __call__(self) -> None:
        """Load the weights, unless the generator has them already.

        Raises:
            Exception: any exception of `load_weights`, here or in the process that sends.
        """
        state = self._state()  # before the weights are read: if they change meanwhile, they must be loaded again
        if not self._in_any_process(state != self._loaded):
            return
        error: Exception | None = None
        try:
            self._generator.load_weights(self._model, version=state[0])
        except Exception as raised:
            error = raised
        # The processes wait for each other, and must learn if one failed.
        if self._in_any_process(error is not None):
            raise error or GenerationError("another training process could not load the weights; see its error")
        self._loaded = state

    def _in_any_process(self, here: bool) -> bool:
        """Whether `here` is True in any of the processes that call it together."""
        return any(gather_object([here])) if self.is_collective else here

    def _state(self) -> tuple[int, ...]:
        """Changes with the weights. PyTorch counts writes to a tensor, but misses those of some optimisers."""
        return self._step(), sum(parameter._version for parameter in self._model.parameters())
