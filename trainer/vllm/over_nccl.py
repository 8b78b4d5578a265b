"""Sends weights over NCCL, the fastest way between GPUs, with vLLM's engine for the trainer's side."""

# pyright: reportMissingImports=false
# vLLM is an optional dependency, so it is imported inside functions.

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator, Mapping
from typing import Any, Protocol

import torch
from torch import Tensor


class Server(Protocol):
    """The calls that this file needs; vLLM's engine also calls those of its `VLLMWeightSyncClient`."""

    url: str

    def own_address(self) -> str: ...

    def world_size(self) -> int: ...


class NCCLSenders:
    """Forms one NCCL group with the workers of each server, so a lost server breaks no other group.

    Args:
        port: Port of this machine for the first server's group; each further group takes the next one. 0: any free.
    """

    def __init__(self, port: int = 0) -> None:
        self._port = port
        self._engines: dict[str, Any] = {}
        self._ports: dict[str, int] = {}
        self._turn = threading.Lock()  # vLLM's engines share CUDA streams, so only one may send at a time

    def send(self, server: Server, weights: Mapping[str, Tensor]) -> None:
        """Update the weights of this server."""
        device = next(iter(weights.values())).device
        source = _source(weights)
        with self._turn, torch.cuda.device(device):
            engine = self._engines.pop(server.url, None) or self._join(server, source)
            engine.client, engine.source = server, source
            try:
                engine.send_weights()
            except BaseException:
                engine.shutdown()  # a group that has lost a member cannot be used again
                raise
            self._engines[server.url] = engine

    def close(self) -> None:
        """Leave the groups."""
        for engine in self._engines.values():
            engine.shutdown()
        self._engines.clear()

    def _join(self, server: Server, source: Any) -> Any:
        from vllm.distributed.weight_transfer.factory import WeightTransferTrainerFactory
        from vllm.distributed.weight_transfer.nccl_engine import NCCLTrainerInitInfo

        index = self._ports.setdefault(server.url, len(self._ports))
        info = NCCLTrainerInitInfo(
            rank=0,
            master_address=server.own_address(),
            master_port=self._port + 1 + index if self._port else _free_port(),
            world_size=server.world_size() + 1,
        )
        client: Any = server
        return WeightTransferTrainerFactory.trainer_init(info, client=client, source=source)


def _source(weights: Mapping[str, Tensor]) -> Any:
    from vllm.distributed.weight_transfer.base import ParamMeta, WeightSource

    class Source(WeightSource):
        def metadata(self) -> list[Any]:
            return [ParamMeta(name, each.dtype, tuple(each.shape)) for name, each in weights.items()]

        def __iter__(self) -> Iterator[tuple[str, Tensor]]:
            return iter(weights.items())

    return Source()


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("", 0))
        return listener.getsockname()[1]
