"""Sharded weights: each process holds a part of every weight. With FSDP2 a weight is a `DTensor`; ZeRO-3: see `zero3`.

Gathering is collective: all processes must gather the same weights in the same order.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from . import zero3


def is_sharded(model: nn.Module) -> bool:
    """Return whether this process holds a part of the weights only."""
    return isinstance(model, FSDPModule) or zero3.is_sharded(model)


def whole(weight: Tensor) -> Tensor:
    """Return the whole of a weight; every process must call it."""
    if zero3.is_part(weight):
        return zero3.whole(weight)
    if not isinstance(weight, DTensor):
        return weight
    part: Any = weight.detach().to(weight.device_mesh.device_type)  # an offloaded part is on the CPU
    return part.full_tensor()


def own_part(weight: Tensor) -> Tensor:
    """Return the part of a weight that this process holds, in the same memory."""
    if zero3.is_part(weight):
        return zero3.own_part(weight)
    return weight.to_local() if isinstance(weight, DTensor) else weight


def reshard(model: nn.Module) -> None:
    """Free the weights that the last forward pass gathered, so that each parameter of the model is a part again."""
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()
    if zero3.is_sharded(model):
        zero3.free(model)


def gather_before_use(layer: nn.Module, model: nn.Module) -> None:
    """Gather the weights of the output layer of a sharded model, outside its forward pass; nothing happens otherwise.

    They stay until the backward pass has used them, or until the next forward pass has.
    """
    if zero3.is_sharded(model):
        zero3.gather(layer, model)
    owner = layer if isinstance(layer, FSDPModule) else model
    if isinstance(owner, FSDPModule):
        owner.unshard()  # nothing happens if they are there
