"""Keys and values that grow in place: PyTorch's concatenation would copy those of all tokens for each new one."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from transformers.cache_utils import DynamicCache, DynamicLayer

SPARE = 32  # columns that are allocated beyond those in use


class GrowingLayer(DynamicLayer):
    """A layer of a cache whose `keys` and `values` are the filled part of larger tensors, until they are replaced."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._keys, self._values = _Columns(), _Columns()

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **options: Any) -> tuple[Tensor, Tensor]:
        # Rotary embeddings leave keys in float32. Under autocast, attention would round all of them in each step.
        key_states = key_states.to(value_states.dtype)
        if not self.is_initialized:
            return super().update(key_states, value_states, *args, **options)
        keys, values = self.keys, self.values
        assert keys is not None
        assert values is not None
        self.keys, self.values = self._keys.append(keys, key_states), self._values.append(values, value_states)
        return self.keys, self.values


class _Columns:
    """The memory behind keys or values."""

    def __init__(self) -> None:
        self._memory: Tensor | None = None
        self._filled: Tensor | None = None  # the view that was returned last

    def append(self, old: Tensor, new: Tensor) -> Tensor:
        """Return a tensor (B, H, T + N, D) with the columns of both, in the memory of the one returned before."""
        start, end = old.shape[-2], old.shape[-2] + new.shape[-2]
        if self._memory is None or old is not self._filled or end > self._memory.shape[-2]:
            self._memory = old.new_empty(*old.shape[:-2], end + SPARE, old.shape[-1])
            self._memory[..., :start, :] = old
        self._memory[..., start:end, :] = new
        self._filled = self._memory[..., :end, :]
        return self._filled


def growing(cache: DynamicCache) -> DynamicCache:
    """Let the layers of an empty cache that hold keys and values of all tokens grow in place."""
    cache.layers = [GrowingLayer() if type(layer) is DynamicLayer else layer for layer in cache.layers]
    return cache
