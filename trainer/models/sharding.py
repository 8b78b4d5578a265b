"""Sharded weights: each process holds a part of every weight. Gathering is collective: all processes, in one order.

With FSDP2 a weight is a `DTensor`. With DeepSpeed's ZeRO-3 a parameter is empty, and its `ds_tensor` is the part. This
is the only file with the names that DeepSpeed gives to parameters; a training in two processes tests them.
"""

# pyright: reportMissingImports=false
# DeepSpeed is an optional dependency, so it is imported inside functions.

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor


def is_sharded(model: nn.Module) -> bool:
    """Return whether this process holds a part of the weights only."""
    return isinstance(model, FSDPModule) or by_zero3(model)


def by_zero3(model: nn.Module) -> bool:
    """Return whether ZeRO-3 has divided the parameters of this model."""
    first = next(model.parameters(), None)  # all are divided, or none
    return hasattr(first, "ds_tensor")


def whole(weight: Any) -> Tensor:
    """Return the whole of a weight; every process must call it."""
    if hasattr(weight, "ds_tensor"):
        from deepspeed.runtime.zero import GatheredParameters

        with GatheredParameters(weight):
            return weight.detach().clone()
    if not isinstance(weight, DTensor):
        return weight
    part: Any = weight.detach().to(weight.device_mesh.device_type)  # an offloaded part is on the CPU
    return part.full_tensor()


def own_part(weight: Any) -> Tensor:
    """Return the part of a weight that this process holds, in the same memory."""
    if hasattr(weight, "ds_tensor"):
        return weight.ds_tensor
    return weight.to_local() if isinstance(weight, DTensor) else weight


def without_data(weight: Any) -> Tensor:
    """Return a tensor of the shape of the whole weight under ZeRO-3, on the meta device."""
    shape = weight.ds_shape if hasattr(weight, "ds_tensor") else weight.shape
    return torch.empty(shape, dtype=weight.dtype, device="meta")


def reshard(model: nn.Module) -> None:
    """Free the weights that the last forward pass gathered, so that each parameter of the model is a part again."""
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()
    if by_zero3(model):
        _finish_prefetching(model)
        parameter: Any
        for parameter in model.parameters():
            parameter.partition()


def gather_before_use(layer: nn.Module, model: nn.Module) -> None:
    """Gather the weights of the output layer of a sharded model, outside its forward pass; nothing happens otherwise.

    They stay until the backward pass has used them, or until the next forward pass has.
    """
    if by_zero3(model):
        _finish_prefetching(model)
        parameter: Any
        for parameter in layer.parameters():
            parameter.all_gather()  # nothing happens if it is there
    owner = layer if isinstance(layer, FSDPModule) else model
    if isinstance(owner, FSDPModule):
        owner.unshard()  # nothing happens if they are there


def _finish_prefetching(model: Any) -> None:
    """Wait for weights that DeepSpeed is gathering for the layers that it expects next."""
    if hasattr(model, "ds_inflight_param_registry"):  # absent until training begins
        prefetched = model.ds_inflight_param_registry
        for parameter in [*prefetched]:
            prefetched.pop(parameter).wait()
