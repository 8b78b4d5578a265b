"""WeightTransfer: sends a model's weights to vLLM servers through vLLM's weight transfer API.

- `ServerAdmin`: the administrative calls of one server. vLLM's NCCL engine on the trainer's side uses it too.
- `WeightTransfer`: sends to all servers at once, each by the backend it was started with: TCP (`over_tcp.py`) or NCCL.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import urlsplit

from torch import Tensor
from transformers import PreTrainedModel

from ...envs.core import ConfigurationError
from ..generation.contract import GenerationError
from ..generation.named_weights import named_weights
from .http_client import CONNECT_SECONDS, Client, ServerGoneError
from .installed import check_vllm
from .over_nccl import NCCLSenders
from .over_tcp import WeightListener


class ServerAdmin:
    """Updates the weights of one server, from a thread of its own.

    All methods raise `ServerGoneError` if there is no answer, and `GenerationError` if the answer is an error.

    Args:
        client: Makes the calls.
        url: The server's address.
        label: The name that the server gives to the weights it receives.
    """

    def __init__(self, client: Client, url: str, label: str) -> None:
        self.url = url
        self._client = client
        self._label = label

    def call(self, method: str, path: str, body: Mapping[str, Any] | None = None, **query: str) -> Any:
        """Return the server's answer."""
        return self._client.call_from_thread(method, f"{self.url}/{path}", body, query=query)

    def own_address(self) -> str:
        """Return this machine's address as the server reaches it."""
        parts = urlsplit(self.url)
        port = parts.port or (443 if parts.scheme == "https" else 80)
        try:
            with socket.create_connection((parts.hostname, port), timeout=CONNECT_SECONDS) as connection:
                return connection.getsockname()[0]
        except OSError as error:
            raise ServerGoneError(f"{self.url}: {error}") from error

    def world_size(self) -> int:
        """Return the number of the server's workers, over all its replicas."""
        return self.call("GET", "get_world_size")["world_size"]

    def forget_prefixes(self) -> None:
        """Drop every cached prefix: it was computed with the old weights."""
        if not self.call("POST", "reset_prefix_cache", reset_running_requests="true")["success"]:
            raise GenerationError(f"{self.url} still holds prefixes that were computed with the old weights")

    # The methods that vLLM's engines call (its protocol `VLLMWeightSyncClient`).

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
        self.call("POST", "init_weight_transfer_engine", {"init_info": init_info})

    def start_weight_update(self) -> None:
        self.call("POST", "start_weight_update")

    def update_weights(self, update_info: Any) -> None:
        self.call("POST", "update_weights", {"update_info": update_info})

    def finish_weight_update(self, weight_version: str | None = None) -> None:
        self.call("POST", "finish_weight_update", {"weight_version": weight_version or self._label})


class WeightTransfer:
    """Sends weights to servers. The servers are independent: a lost one delays no other.

    Args:
        client: Calls the servers; its event loop must run while `send` does, in another thread.
        port: Port of this machine that servers connect to; 0 takes any free one.
    """

    def __init__(self, client: Client, port: int = 0) -> None:
        self._client = client
        self._port = port
        self._nccl = NCCLSenders(port)

    def send(
        self, model: PreTrainedModel, backends: Mapping[str, str], label: str
    ) -> dict[str, ServerGoneError | GenerationError | None]:
        """Send the model's weights to these servers under this label.

        Args:
            model: Must not change meanwhile.
            backends: `gymnast` or `nccl`, by the server's URL.
            label: See `ServerAdmin`.

        Returns:
            By URL, None for success or the error.

        Raises:
            ConfigurationError: the weights cannot be sent that way from here.
        """
        for url, backend in backends.items():
            _check_backend(backend, model, url)
        weights = named_weights(model)
        with (
            WeightListener(weights, port=self._port) as listener,
            ThreadPoolExecutor(len(backends), "gymnast-weights") as threads,
        ):

            def update(url: str) -> ServerGoneError | GenerationError | None:
                try:
                    self._update(ServerAdmin(self._client, url, label), backends[url], weights, listener)
                except (ServerGoneError, GenerationError) as error:
                    return error
                except (RuntimeError, OSError) as error:  # from NCCL, or from the network on this side
                    return ServerGoneError(f"{url}: {type(error).__name__}: {error}")
                return None

            return dict(zip(backends, threads.map(update, backends), strict=True))

    def close(self) -> None:
        """Leave the groups that were formed for NCCL."""
        self._nccl.close()

    def _update(
        self, server: ServerAdmin, backend: str, weights: Mapping[str, Tensor], listener: WeightListener
    ) -> None:
        offer = listener.offer(server.own_address())
        # Abandoned requests may still run, and the model must not run while its weights arrive.
        server.call("POST", "pause", mode="abort")
        try:
            if backend == "nccl":
                self._nccl.send(server, weights)
            else:
                server.start_weight_update()
                server.update_weights(offer)
                server.finish_weight_update()
        except GenerationError as error:
            raise GenerationError(
                f"{error}. Its weights are incomplete now: start that server again, with the model that is trained"
            ) from error
        server.forget_prefixes()
        server.call("POST", "resume")


def _check_backend(backend: str, model: PreTrainedModel, url: str) -> None:
    """Raise ConfigurationError where NCCL lacks vLLM or a GPU on this side."""
    if backend != "nccl":
        return
    if model.device.type != "cuda":
        raise ConfigurationError(
            f"{url} takes weights by NCCL, but the model in training is on {model.device}; start the server with "
            f"""--weight-transfer-config '{{"backend": "gymnast"}}', which needs no GPU on this side"""
        )
    check_vllm()
