"""Processes: sums, lists and errors of several training processes."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar

import torch
from accelerate import Accelerator
from accelerate.utils import DistributedType, gather_object, parse_flag_from_env
from torch import Tensor

from ...envs.core import ConfigurationError

Result = TypeVar("Result")

_SUPPORTED = ("NO", "MULTI_CPU", "MULTI_GPU", "FSDP", "DEEPSPEED")


class Processes:
    """The processes that train together; often there is one. An unsupported engine is a `ConfigurationError`."""

    def __init__(self, accelerator: Accelerator) -> None:
        fsdp = accelerator.distributed_type == DistributedType.FSDP
        deepspeed = accelerator.distributed_type == DistributedType.DEEPSPEED
        self.in_lockstep = fsdp or deepspeed  # all processes compute each micro-batch together
        plugin: Any = accelerator.deepspeed_plugin
        self.share_weights = fsdp or (deepspeed and plugin.zero_stage == 3)
        if accelerator.distributed_type.value not in _SUPPORTED or (fsdp and not accelerator.is_fsdp2):
            raise ConfigurationError(
                f"{accelerator.distributed_type.value} is not supported: use data parallelism, or shard with FSDP2 "
                f"(fsdp_version: 2) or DeepSpeed; examples/accelerate has files for them"
            )
        if parse_flag_from_env("ACCELERATE_USE_FSDP") and not fsdp:
            raise ConfigurationError(
                f"accelerate does not shard weights here ({accelerator.distributed_type.value} on "
                f"{accelerator.device.type}): FSDP needs several processes, each with a GPU"
            )
        self._accelerator = accelerator
        self.index, self.count = accelerator.process_index, accelerator.num_processes
        self.suffix = f"-{self.index}" if self.count > 1 else ""  # of the files of this process
        self.all_failed = False  # whether `all_or_none` has raised, so in every process
        self.waiting: Callable[[str], AbstractContextManager[Any]] = nullcontext  # see `Watchdog.during`

    def gather_tensor(self, tensor: Tensor) -> Tensor:
        """Return the (1, n) tensors of all processes, as (P, n)."""
        if self.count == 1:
            return tensor
        with self.waiting("the other processes"):
            gathered: Any = self._accelerator.gather(tensor.to(self._accelerator.device))
            return gathered.cpu()

    def sum(self, tensor: Tensor) -> Tensor:
        """Return the sum over all processes."""
        with self.waiting("the other processes"):
            total: Any = self._accelerator.reduce(tensor, reduction="sum")
            return total

    def gather(self, mine: list[Result]) -> list[Result]:
        """Return the concatenated lists of all processes."""
        with self.waiting("the other processes"):
            return gather_object(mine)

    def in_first(self, mine: Result) -> list[Result]:
        """Return the objects of all processes, in process 0; an empty list in the others."""
        gathered = self.gather([mine])
        return gathered if self.index == 0 else []

    def most(self, count: int) -> int:
        """Return the largest of the numbers of all processes."""
        return int(self.gather_tensor(torch.tensor([[count]])).max())

    def sum_counts(self, *counts: int) -> list[int]:
        """Sum each number over all processes."""
        with self.waiting("the other processes"):  # reading the sums waits, too: a device works asynchronously
            return [int(total) for total in self.sum(torch.tensor(counts, device=self._accelerator.device)).tolist()]

    def all_or_none(self, work: Callable[[], Result]) -> Result:
        """Run `work` in every process. If it fails in one, raise in all of them, so that none waits for ever."""
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
