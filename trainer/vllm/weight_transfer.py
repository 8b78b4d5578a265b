"""WeightTransfer: sends a model's weights to vLLM servers, by the API that vLLM has for it.

- `Control`: the calls that one server understands; vLLM's own engines for the trainer's side drive it, too.
- `WeightTransfer`: all servers at once, each in the way it was started for: TCP (`vllm_tcp.py`) or NCCL.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPException
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlencode, urlsplit
from urllib.request import ProxyHandler, Request, build_opener

from torch import Tensor
from transformers import PreTrainedModel

from ..envs.core import ConfigurationError
from .generation import GenerationError
from .vllm_installed import check_vllm
from .vllm_nccl import NCCLSenders
from .vllm_tcp import WeightListener
from .weights import named_weights

CONNECT_SECONDS = 10.0
UPDATE_SECONDS = 1800.0  # all weights, over a slow network


class ServerGoneError(Exception):
    """A server cannot be reached, or has ended while it was asked."""


def read_answer(url: str, status: int, data: bytes) -> Any:
    """The JSON that a server answered.

    Raises:
        GenerationError: it refused or failed; with the message that it gave.
    """
    if status < 400:
        try:
            return json.loads(data) if data else None
        except ValueError as error:  # of something between us and the server
            raise GenerationError(f"{url} answered no JSON: {data[:200]!r}") from error
    try:
        message = json.loads(data)["error"]["message"]
    except (ValueError, KeyError, TypeError):  # not in vLLM's form
        message = " ".join(data.decode(errors="replace").split())[:200]
    raise GenerationError(f"{url} answered {status}: {message}")


class Control:
    """One server, as whoever loads weights into it sees it.

    All methods raise `ServerGoneError` if there is no answer, and `GenerationError` if it is an error.

    Args:
        url: The server's address.
        label: What the server is to call the weights that it gets.
    """

    def __init__(self, url: str, label: str) -> None:
        self.url = url
        self._label = label
        self._opener = build_opener(ProxyHandler({}))  # servers are near

    def call(self, method: str, path: str, body: Mapping[str, Any] | None = None, **query: str) -> Any:
        """The server's answer."""
        url = f"{self.url}/{path}?{urlencode(query)}" if query else f"{self.url}/{path}"
        data = b"" if body is None else json.dumps(body).encode()
        request = Request(url, data=data, method=method, headers={"Content-Type": "application/json"})
        try:
            with self._opener.open(request, timeout=UPDATE_SECONDS) as response:
                status, answer = response.status, response.read()
        except HTTPError as error:
            status, answer = error.code, error.read()
        except (OSError, HTTPException) as error:
            raise ServerGoneError(f"{self.url}: {type(error).__name__} {error}") from error
        return read_answer(url, status, answer)

    def own_address(self) -> str:
        """The address of this machine on the way to the server, which is where the server finds us."""
        parts = urlsplit(self.url)
        port = parts.port or (443 if parts.scheme == "https" else 80)
        try:
            with socket.create_connection((parts.hostname, port), timeout=CONNECT_SECONDS) as connection:
                return connection.getsockname()[0]
        except OSError as error:
            raise ServerGoneError(f"{self.url}: {error}") from error

    def world_size(self) -> int:
        """The workers of this server, those of all its replicas."""
        return self.call("GET", "get_world_size")["world_size"]

    def forget_prefixes(self) -> None:
        """Drop all that was computed with former weights."""
        if not self.call("POST", "reset_prefix_cache", reset_running_requests="true")["success"]:
            raise GenerationError(f"{self.url} still holds prefixes that were computed with former weights")

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
    """Sends weights; the servers are independent of each other, so one that is lost holds up no other.

    Args:
        port: The port of this machine that servers connect to; 0 takes any free one.
    """

    def __init__(self, port: int = 0) -> None:
        self._port = port
        self._nccl = NCCLSenders(port)

    def send(
        self, model: PreTrainedModel, backends: Mapping[str, str], label: str
    ) -> dict[str, ServerGoneError | GenerationError | None]:
        """Give these servers the model's weights under this label; what became of each, None where all is well.

        Args:
            model: Must not change meanwhile.
            backends: `gymnast` or `nccl`, by the server's URL.
            label: See `Control`.

        Raises:
            ConfigurationError: the weights cannot be sent that way from here.
        """
        for url, backend in backends.items():
            _check_backend(backend, model, url)
        with (
            named_weights(model) as weights,
            WeightListener(weights, port=self._port) as listener,
            ThreadPoolExecutor(len(backends), "gymnast-weights") as threads,
        ):

            def update(url: str) -> ServerGoneError | GenerationError | None:
                try:
                    self._update(Control(url, label), backends[url], weights, listener)
                except (ServerGoneError, GenerationError) as error:
                    return error
                except (RuntimeError, OSError) as error:  # of NCCL, or of the network on this side
                    return ServerGoneError(f"{url}: {type(error).__name__}: {error}")
                return None

            return dict(zip(backends, threads.map(update, backends), strict=True))

    def close(self) -> None:
        """Leave the groups that were formed for NCCL."""
        self._nccl.close()

    def _update(self, server: Control, backend: str, weights: Mapping[str, Tensor], listener: WeightListener) -> None:
        offer = listener.offer(server.own_address())
        # Requests that nobody waits for any more may still run, and the model must not while its weights come.
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
    """Raises: ConfigurationError: NCCL needs vLLM and a GPU on this side, too."""
    if backend != "nccl":
        return
    if model.device.type != "cuda":
        raise ConfigurationError(
            f"{url} takes weights by NCCL, but the model in training is on {model.device}; start the server with "
            f"""--weight-transfer-config '{{"backend": "gymnast"}}', which needs no GPU on this side"""
        )
    check_vllm()
