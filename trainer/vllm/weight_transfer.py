"""WeightTransfer: sends a model's weights to all vLLM servers at once, to each by the backend it was started with."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor
from transformers import PreTrainedModel

from ...envs.core import ConfigurationError
from ...envs.threads import run_in_thread
from ..generation.contract import GenerationError
from ..models.internals import kept_in_float32
from ..models.named_weights import named_weights
from . import check_vllm
from .over_nccl import NCCLSenders, SyncClient
from .over_tcp import WeightListener
from .server import Server, ServerGoneError


class WeightTransfer:
    """Sends weights to servers. The servers are independent: a lost server does not delay the others.

    Args:
        port: Port of this machine that servers connect to; 0 takes any free one.
    """

    def __init__(self, port: int = 0) -> None:
        self._port = port
        self._nccl = NCCLSenders(port)

    async def send(
        self,
        model: PreTrainedModel,
        servers: Sequence[Server],
        label: str,
        *,
        gathered: Mapping[str, Tensor] | None = None,
    ) -> dict[Server, Exception | None]:
        """Send the model's weights to these servers.

        Args:
            model: Must not change during the transfer.
            servers: Each with its backend, `gymnast` or `nccl`.
            label: The name that the servers give to these weights.
            gathered: The weights by name, if those of the model are sharded.

        Returns:
            By server, None for success or the error.

        Raises:
            ConfigurationError: NCCL cannot be used because vLLM or a GPU is missing.
        """
        for url in [each.url for each in servers if each.backend == "nccl"]:
            if model.device.type != "cuda":
                raise ConfigurationError(
                    f"{url} takes weights by NCCL, but the model in training is on {model.device}; start the server "
                    f"""with --weight-transfer-config '{{"backend": "gymnast"}}', which needs no GPU on this side"""
                )
            check_vllm()
        weights = await run_in_thread(named_weights, model) if gathered is None else gathered
        self._device = model.device
        with WeightListener(weights, exact=kept_in_float32(model), port=self._port) as listener:
            updates = [self._update(each, weights, listener, label) for each in servers]
            return dict(zip(servers, await asyncio.gather(*updates), strict=True))

    def close(self) -> None:
        """Destroy the NCCL process groups."""
        self._nccl.close()

    async def _update(
        self, server: Server, weights: Mapping[str, Tensor], listener: WeightListener, label: str
    ) -> Exception | None:
        try:
            # Abandoned requests may still run, and the model must not run while its weights arrive.
            await server.post("pause", mode="abort")
            try:
                await self._replace(server, weights, listener, label)
            except GenerationError as error:
                return GenerationError(
                    f"{error}. Its weights are incomplete now: start that server again, with the model that is trained"
                )
            if not (await server.post("reset_prefix_cache", reset_running_requests="true"))["success"]:
                return GenerationError(f"{server.url} still holds prefixes that were computed with the old weights")
            await server.post("resume")
        except (ServerGoneError, GenerationError) as error:
            return error
        except (RuntimeError, OSError) as error:  # from NCCL, or from the network on this side
            return ServerGoneError(f"{server.url}: {type(error).__name__}: {error}")
        return None

    async def _replace(
        self, server: Server, weights: Mapping[str, Tensor], listener: WeightListener, label: str
    ) -> None:
        host = await server.own_address()
        if server.backend == "nccl":
            world_size = (await server.get("get_world_size"))["world_size"]  # workers, over all replicas
            client = SyncClient(server, asyncio.get_running_loop(), label)
            where: dict[str, Any] = {"device": self._device, "host": host, "num_workers": world_size}
            await run_in_thread(self._nccl.send, client, weights, **where)
        else:
            await server.post("start_weight_update")
            await server.post("update_weights", {"update_info": listener.offer(host)})
            await server.post("finish_weight_update", {"weight_version": label})
