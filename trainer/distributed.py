"""Processes: what one of several training processes needs of the others."""

from __future__ import annotations

import warnings
from typing import Any

from accelerate import Accelerator
from accelerate.utils import DistributedType, gather_object
from torch import Tensor

from ..envs.core import ConfigurationError
from .config import AgentConfig

_WHOLE_WEIGHTS = (DistributedType.NO, DistributedType.MULTI_CPU, DistributedType.MULTI_GPU)


def use_one_device(args: AgentConfig) -> None:
    """Give a process one GPU, where transformers would split each batch over all that it sees."""
    if args.n_gpu > 1:
        warnings.warn(
            f"{args.n_gpu} GPUs are visible and one is used: start one process for each (accelerate launch, torchrun)",
            stacklevel=4,
        )
        args._n_gpu = 1


class Processes:
    """The processes that train together; often there is one.

    Raises:
        ConfigurationError: they share one copy of the weights.
    """

    def __init__(self, accelerator: Accelerator) -> None:
        if accelerator.distributed_type not in _WHOLE_WEIGHTS:
            raise ConfigurationError(
                f"each process needs whole weights to play episodes, but {accelerator.distributed_type} shards them; "
                f"use one process, or several with plain data parallelism"
            )
        self._accelerator = accelerator
        self.index, self.count = accelerator.process_index, accelerator.num_processes
        self.suffix = f"-{self.index}" if self.count > 1 else ""  # of the files of this process

    def gather_tensor(self, tensor: Tensor) -> Tensor:
        """The (1, n) tensors of all processes, as (P, n)."""
        gathered: Any = self._accelerator.gather(tensor.to(self._accelerator.device))
        return gathered.cpu()

    def gather_objects(self, objects: list[Any]) -> list[Any]:
        """The lists of all processes, one after the other."""
        return gather_object(objects) if self.count > 1 else objects

    def sum(self, tensor: Tensor) -> Tensor:
        """The sum over all processes."""
        total: Any = self._accelerator.reduce(tensor, reduction="sum")
        return total
