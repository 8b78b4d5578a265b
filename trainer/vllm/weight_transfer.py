"""WeightTransfer: sends a model's weights to all vLLM servers at once, to each by the backend it was started with.

An adapter goes over HTTP: it is small. The base weights are then sent only to servers that do not have them.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch.distributed as dist
from torch import Tensor, device
from transformers import PreTrainedModel

from ...envs.core import ConfigurationError
from ...envs.runtime.threads import run_in_thread
from ..generation.contract import GenerationError
from ..models.internals import kept_in_float32
from ..models.named_weights import named_weights, whole_weights
from . import check_vllm
from .lora import base_version, packed_adapter
from .over_nccl import NCCLSenders, SyncClient
from .over_tcp import WeightListener
from .server import Server, ServerGoneError


class WeightTransfer:
    """Sends weights to servers. The servers are independent: a lost server does not delay the others.

    They connect to this port of this machine; 0 takes any free one.
    """

    def __init__(self, port: int) -> None:
        self._port = port
        self._nccl = NCCLSenders(port)

    async def send(
        self,
        model: PreTrainedModel,
        servers: Sequence[Server],
        label: str,
        *,
        gathered: Mapping[str, Tensor] | None,
        lora_rank: int | None,
    ) -> dict[Server, Exception | None]:
        """Send the weights of a model, which must not change meanwhile. Return None or the error for each server.

        The servers name the weights by this label. `gathered` are all weights, if those of the model are sharded.
        `lora_rank` is the rank of an adapter that is sent as an adapter; None merges it. Raise a ConfigurationError if
        a server needs NCCL, and vLLM or a GPU is missing here.
        """
        for url in [server.url for server in servers if server.backend == "nccl"]:
            if model.device.type != "cuda":
                raise ConfigurationError(
                    f"{url} takes weights by NCCL, but the model in training is on {model.device}; start the server "
                    f"""with --weight-transfer-config '{{"backend": "gymnast"}}', which needs no GPU on this side"""
                )
            check_vllm()
        base, adapter, has_base = None, None, [False] * len(servers)
        if lora_rank is not None:
            base = base_version(model)
            has_base = await asyncio.gather(*[server.has_base(base) for server in servers])
            adapter = await run_in_thread(packed_adapter, model)
        weights = gathered or {}
        if gathered is None and not all(has_base):
            weights = await run_in_thread(named_weights, model, merge=base is None)
        with WeightListener(weights, exact=kept_in_float32(model), port=self._port) as listener:
            shipment = _Shipment(label, model.device, weights, listener, adapter, base, lora_rank or 0)
            updates = [
                self._update(server, shipment, has_base=has) for server, has in zip(servers, has_base, strict=True)
            ]
            return dict(zip(servers, await asyncio.gather(*updates), strict=True))

    def close(self) -> None:
        """Destroy the NCCL process groups."""
        self._nccl.close()

    async def _update(self, server: Server, shipment: _Shipment, *, has_base: bool) -> Exception | None:
        if server.lora_rank < shipment.lora_rank:  # it was started again
            return ConfigurationError(
                f"{server.url} takes adapters up to rank {server.lora_rank} (--enable-lora, --max-lora-rank), and the "
                f"adapter in training has rank {shipment.lora_rank}: start that server again, as it was"
            )
        server.base = None
        try:
            # Abandoned requests may still run, and the model must not run while its weights arrive.
            await server.post("pause", mode="abort")
            try:
                if not has_base:
                    await self._replace(server, shipment)
                if shipment.adapter is not None:  # after the base: then vLLM forgets all adapters
                    await server.load_adapter(shipment.adapter, shipment.label)
            except GenerationError as error:
                return GenerationError(
                    f"{error}. Its weights are incomplete now: start that server again, with the model that is trained"
                )
            if not (await server.post("reset_prefix_cache", reset_running_requests="true"))["success"]:
                return GenerationError(f"{server.url} still holds prefixes that were computed with the old weights")
            await server.post("reset_encoder_cache")  # the features of pictures, by the old vision tower
            await server.post("resume")
        except (ServerGoneError, GenerationError) as error:
            return error
        except (RuntimeError, OSError) as error:  # from NCCL, or from the network on this side
            return ServerGoneError(f"{server.url}: {type(error).__name__}: {error}")
        server.base = None if shipment.base is None else (shipment.label, shipment.base)
        return None

    async def _replace(self, server: Server, shipment: _Shipment) -> None:
        host = await server.own_address()
        if server.backend == "nccl":
            world_size = (await server.get("get_world_size"))["world_size"]  # workers, over all replicas
            client = SyncClient(server, asyncio.get_running_loop(), shipment.label)
            where: dict[str, Any] = {"device": shipment.device, "host": host, "num_workers": world_size}
            await run_in_thread(self._nccl.send, client, shipment.weights, **where)
        else:
            await server.post("start_weight_update")
            await server.post("update_weights", {"update_info": shipment.listener.offer(host)})
            await server.post("finish_weight_update", {"weight_version": shipment.label})


@dataclass(slots=True, frozen=True)
class _Shipment:
    """The weights of one update, as all servers get them."""

    label: str
    device: device  # of the model
    weights: Mapping[str, Tensor]  # with an adapter, the base weights
    listener: WeightListener  # of the weights
    adapter: bytes | None
    base: tuple[int, ...] | None  # version of the base weights
    lora_rank: int


def gather(model: PreTrainedModel) -> dict[str, Tensor]:
    """Return all weights of a sharded model, in the memory of rank 0's machine; other ranks take part and keep none.

    A server may return at any time, when the other ranks cannot help to gather.
    """
    return {name: weight.cpu() for name, weight in whole_weights(model) if rank() == 0}


def rank() -> int:
    return dist.get_rank() if dist.is_initialized() else 0


def shared_name() -> str:
    """Return a random name of this run, the same in all its processes: labels of other runs never match."""
    names = [secrets.token_hex(4)]
    if dist.is_initialized():
        dist.broadcast_object_list(names, src=0)
    return names[0]
