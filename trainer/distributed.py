"""Processes: what one of several training processes needs of the others."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from accelerate import Accelerator
from accelerate.utils import DistributedType, gather_object
from torch import Tensor
from transformers import TrainingArguments

from ..envs.core import ConfigurationError
from .transformers_hooks import use_one_gpu

Result = TypeVar("Result")

_WHOLE_WEIGHTS = (DistributedType.NO, DistributedType.MULTI_CPU, DistributedType.MULTI_GPU)


def use_one_device(args: TrainingArguments) -> None:
    """Give a process one GPU, where transformers would split each batch over all that it sees."""
    if args.n_gpu > 1:
        warnings.warn(
            f"{args.n_gpu} GPUs are visible and one is used: start one process for each (accelerate launch, torchrun)",
            stacklevel=4,
        )
        use_one_gpu(args)


class Processes:
    """The processes that train together; often there is one.

    Raises:
        ConfigurationError: the weights are sharded over them.
    """

    def __init__(self, accelerator: Accelerator) -> None:
        if accelerator.distributed_type not in _WHOLE_WEIGHTS:
            raise ConfigurationError(
                f"{accelerator.distributed_type} shards the weights, which is not supported yet: checkpoints, weight "
                f"transfer and samplers read whole weights; use one process, or several with data parallelism"
            )
        self._accelerator = accelerator
        self.index, self.count = accelerator.process_index, accelerator.num_processes
        self.suffix = f"-{self.index}" if self.count > 1 else ""  # of the files of this process
        self.all_failed = False  # whether `all_or_none` has raised, so in every process

    def gather_tensor(self, tensor: Tensor) -> Tensor:
        """The (1, n) tensors of all processes, as (P, n)."""
        if self.count == 1:
            return tensor
        gathered: Any = self._accelerator.gather(tensor.to(self._accelerator.device))
        return gathered.cpu()

    def gather_objects(self, objects: list[Any]) -> list[Any]:
        """The lists of all processes, one after the other."""
        return gather_object(objects) if self.count > 1 else objects

    def sum(self, tensor: Tensor) -> Tensor:
        """The sum over all processes."""
        total: Any = self._accelerator.reduce(tensor, reduction="sum")
        return total

    def sum_counts(self, *counts: int) -> list[int]:
        """Each number, summed over all processes."""
        return [int(each) for each in self.sum(torch.tensor(counts, device=self._accelerator.device)).tolist()]

    def all_or_none(self, work: Callable[[], Result]) -> Result:
        """The result of `work` if it raises in no process; so all processes end together, and none waits for another.

        Raises:
            Exception: whatever `work` raises here; a RuntimeError where it raised in another process only.
        """
        if self.count == 1:
            return work()
        error: Exception | None = None
        result: Any = None
        try:
            result = work()
        except Exception as raised:
            error = raised
        if self.sum_counts(error is not None) != [0]:
            self.all_failed = True
            raise error or RuntimeError("another training process failed; see its error")
        return result
