"""Sends weights over NCCL, the fastest way between GPUs, with vLLM's engine for the trainer's side."""

# pyright: reportMissingImports=false

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ..generation.contract import GenerationError, settle
from .server import Server, ServerGoneError

TRANSFER_SECONDS = 600.0  # for a whole transfer, as for a collective of PyTorch
STUCK_SECONDS = 10.0  # for a transfer to end by itself once its server has failed, and once its group is aborted


@dataclass(slots=True, frozen=True)
class SyncClient:
    """The calls that vLLM's engine makes from a thread: its protocol `VLLMWeightSyncClient`."""

    server: Server
    loop: asyncio.AbstractEventLoop  # the server's
    label: str
    failed: Future[None] = field(default_factory=Future)  # has the error of the first call that fails

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
        self._post("init_weight_transfer_engine", {"init_info": init_info})

    def start_weight_update(self) -> None:
        self._post("start_weight_update")

    def update_weights(self, update_info: Any) -> None:
        self._post("update_weights", {"update_info": update_info})

    def finish_weight_update(self, weight_version: str | None = None) -> None:
        self._post("finish_weight_update", {"weight_version": weight_version or self.label})

    def _post(self, path: str, body: Mapping[str, Any] | None = None) -> None:
        call = asyncio.run_coroutine_threadsafe(self.server.post(path, body), self.loop)
        ended, _ = wait([call, self.failed], return_when=FIRST_COMPLETED)
        call.cancel()  # no effect once it has ended
        try:
            ended.pop().result()
        except BaseException as error:
            settle(self.failed, error)
            raise


class NCCLSenders:
    """Forms one NCCL group with the workers of each server: a lost server does not break other groups.

    The groups take the ports of this machine after `port`, one each; 0 takes any free ones.
    """

    def __init__(self, port: int) -> None:
        self._port = port
        self._engines: dict[str, Any] = {}
        self._ports: dict[str, int] = {}
        self._turn = threading.Lock()  # vLLM's engines share CUDA streams, so only one may send at a time

    def send(
        self, client: SyncClient, weights: Mapping[str, Tensor], *, device: torch.device, host: str, num_workers: int
    ) -> None:
        """Update the weights of this server from a GPU; `host` is the address at which it reaches this machine."""
        url, source = client.server.url, _source(weights, device)
        with self._turn:
            engine = self._engines.pop(url, None)

            def transfer() -> None:
                nonlocal engine
                with torch.cuda.device(device):
                    engine = engine or self._join(client, source, host, num_workers)
                    engine.client, engine.source = client, source
                    engine.send_weights()

            def leave() -> None:
                if engine is not None:
                    engine.shutdown()

            try:
                run_collective(transfer, client, abort=leave)
            except BaseException:
                leave()  # a group that has lost a member cannot be used again
                raise
            self._engines[url] = engine

    def close(self) -> None:
        """Destroy the NCCL process groups."""
        for engine in self._engines.values():
            engine.shutdown()
        self._engines.clear()

    def _join(self, client: SyncClient, source: Any, host: str, num_workers: int) -> Any:
        from vllm.distributed.weight_transfer.factory import WeightTransferTrainerFactory
        from vllm.distributed.weight_transfer.nccl_engine import NCCLTrainerInitInfo
        from vllm.utils.network_utils import get_open_port

        index = self._ports.setdefault(client.server.url, len(self._ports))
        info = NCCLTrainerInitInfo(
            rank=0,
            master_address=host,
            master_port=self._port + 1 + index if self._port else get_open_port(),
            world_size=num_workers + 1,
        )
        return WeightTransferTrainerFactory.trainer_init(info, client=client, source=source)


def run_collective(transfer: Callable[[], None], client: SyncClient, abort: Callable[[], None]) -> None:
    """Run a transfer in a daemon thread, and abort it if a call to its server fails: NCCL itself has no time limit.

    The calls do fail when the server dies or hangs, because they watch its health. A worker may hang behind a healthy
    server, so the transfer has a time limit, too. Raise the error of a call, a ServerGoneError after
    `TRANSFER_SECONDS`, or a GenerationError if the transfer does not end after it was aborted.
    """
    ended: Future[None] = Future()

    def run() -> None:
        try:
            transfer()
        except BaseException as error:
            settle(ended, error)
        else:
            settle(ended, None)

    threading.Thread(target=run, name="gymnast-nccl", daemon=True).start()
    if not wait([ended, client.failed], timeout=TRANSFER_SECONDS, return_when=FIRST_COMPLETED).done:
        late = f"{client.server.url} has not taken its weights by NCCL within {TRANSFER_SECONDS:.0f} s"
        settle(client.failed, ServerGoneError(late))
    if client.failed.done():
        if not wait([ended], timeout=STUCK_SECONDS).done:
            abort()
            if not wait([ended], timeout=STUCK_SECONDS).done:
                raise GenerationError(
                    f"{client.server.url} was lost while it received weights by NCCL, and this process cannot leave "
                    f"the transfer or the group that it was joining: start the training again from its last checkpoint"
                ) from client.failed.exception()
        client.failed.result()
    ended.result()


def _source(weights: Mapping[str, Tensor], device: torch.device) -> Any:
    from vllm.distributed.weight_transfer.base import ParamMeta, WeightSource

    class Source(WeightSource):
        def metadata(self) -> list[Any]:
            return [ParamMeta(name, weight.dtype, tuple(weight.shape)) for name, weight in weights.items()]

        def __iter__(self) -> Iterator[tuple[str, Tensor]]:
            return ((name, weight.detach().to(device)) for name, weight in weights.items())

    return Source()
