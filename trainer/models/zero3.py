"""DeepSpeed's ZeRO-3: a parameter is empty, and its `ds_tensor` is the part that this process holds.

The only file with the names that DeepSpeed gives to parameters; a training in two processes tests them.
"""

# pyright: reportMissingImports=false
# DeepSpeed is an optional dependency, so it is imported inside functions.

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


def is_part(weight: Tensor) -> bool:
    """Return whether ZeRO-3 has divided this parameter among the processes."""
    return hasattr(weight, "ds_tensor")


def is_sharded(model: nn.Module) -> bool:
    """Return whether ZeRO-3 has divided the parameters of this model."""
    first = next(model.parameters(), None)  # all are divided, or none
    return first is not None and is_part(first)


def own_part(weight: Any) -> Tensor:
    """Return the part of a weight that this process holds, in the same memory."""
    return weight.ds_tensor


def whole(weight: Any) -> Tensor:
    """Return the whole of a weight; every process must call it."""
    from deepspeed.runtime.zero import GatheredParameters

    with GatheredParameters(weight):
        return weight.detach().clone()


def without_data(weight: Any) -> Tensor:
    """Return a tensor of the shape of the whole weight, on the meta device."""
    return torch.empty(weight.ds_shape if is_part(weight) else weight.shape, dtype=weight.dtype, device="meta")


def gather(layer: nn.Module, model: nn.Module) -> None:
    """Gather the weights of a layer; nothing happens if they are there. Every process must call it."""
    _finish_prefetching(model)
    parameter: Any
    for parameter in layer.parameters():
        parameter.all_gather()


def free(model: nn.Module) -> None:
    """Free all weights that were gathered: each process keeps its parts."""
    _finish_prefetching(model)
    parameter: Any
    for parameter in model.parameters():
        parameter.partition()


def _finish_prefetching(model: Any) -> None:
    """Wait for weights that DeepSpeed is gathering for the layers that it expects next."""
    if hasattr(model, "ds_inflight_param_registry"):  # absent until training begins
        prefetched = model.ds_inflight_param_registry
        for parameter in [*prefetched]:
            prefetched.pop(parameter).wait()
