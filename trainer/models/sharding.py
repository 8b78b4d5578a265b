"""Sharded weights: with FSDP2 each process holds a part of every weight, a `DTensor`.

Gathering is collective: all processes must gather the same weights in the same order.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor


def is_sharded(model: nn.Module) -> bool:
    """Whether this process holds a part of the weights only."""
    return isinstance(model, FSDPModule)


def whole(weight: Tensor) -> Tensor:
    """The whole of a weight; every process must call it."""
    if not isinstance(weight, DTensor):
        return weight
    part: Any = weight.detach().to(weight.device_mesh.device_type)  # an offloaded part is on the CPU
    return part.full_tensor()


def own_part(weight: Tensor) -> Tensor:
    """The part of a weight that this process holds, in the same memory."""
    return weight.to_local() if isinstance(weight, DTensor) else weight


def reshard(model: nn.Module) -> None:
    """Free the weights that the last forward pass gathered, so that each parameter of the model is a part again."""
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()


def gather_before_use(layer: nn.Module, model: nn.Module) -> None:
    """Gather the weights of the output layer of a sharded model, outside its forward pass; nothing happens otherwise.

    They stay until the backward pass has used them, or until the next forward pass has.
    """
    owner = layer if isinstance(layer, FSDPModule) else model
    if isinstance(owner, FSDPModule):
        owner.unshard()  # nothing happens if they are there
