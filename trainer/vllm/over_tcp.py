"""Sends weights over TCP between any two devices, as a backend of vLLM's weight transfer.

- `WeightListener`: the trainer's side. It sends all weights over every connection that presents its token.
- `TCPReceiver`: the side of vLLM's workers, which fetch the weights. `register` makes it the backend `gymnast`.

Each worker has its own connection, so a slow or lost server affects no other.
"""

# pyright: reportMissingImports=false
# vLLM is an optional dependency, so it is imported inside functions.

from __future__ import annotations

import contextlib
import secrets
import socket
import threading
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import cache
from types import TracebackType
from typing import Any

import torch
from torch import Tensor

from .private_api import begin_reload, check_complete, end_reload, pack_tied_head, weight_names

BACKEND = "gymnast"
HANDSHAKE_SECONDS = 30.0  # to connect and to present the token
STALL_SECONDS = 300.0  # a worker gives up after receiving nothing for this long


@dataclass(kw_only=True, slots=True, frozen=True)
class Offer:
    """Tells a worker how to fetch the weights. Sent through vLLM's `/update_weights`."""

    host: str
    port: int
    token: str
    names: list[str]
    dtypes: list[str]
    shapes: list[list[int]]


@dataclass(kw_only=True, slots=True, frozen=True)
class NothingToAgree:
    """Empty: TCP needs no set-up before the first update."""


class WeightListener:
    """Sends weights to every client that presents the token. The weights must not change while it is open.

    Args:
        weights: In the order in which they are sent.
        port: 0 takes any free one.
    """

    def __init__(self, weights: Mapping[str, Tensor], *, port: int = 0) -> None:
        self._weights = weights
        self._token = secrets.token_hex(16)
        both = socket.has_dualstack_ipv6()  # servers are reached by IPv4 or IPv6
        family = socket.AF_INET6 if both else socket.AF_INET
        self._socket = socket.create_server(("", port), family=family, backlog=64, dualstack_ipv6=both)
        self._connections: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._threads = [threading.Thread(target=self._accept, name="gymnast-weights", daemon=True)]

    def __enter__(self) -> WeightListener:
        self._threads[0].start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Cut the remaining connections: their workers are gone, and the weights may change from now on."""
        self._socket.shutdown(socket.SHUT_RDWR)  # wakes the accepting thread; close() alone does not
        self._threads[0].join()
        self._socket.close()
        with self._lock:
            for connection in self._connections:
                with contextlib.suppress(OSError):  # already closed by the worker
                    connection.shutdown(socket.SHUT_RDWR)
        for thread in self._threads[1:]:
            thread.join()

    def offer(self, host: str) -> dict[str, Any]:
        """Return the offer for a server that reaches this machine as `host`."""
        return asdict(
            Offer(
                host=host,
                port=self._socket.getsockname()[1],
                token=self._token,
                names=list(self._weights),
                dtypes=[str(each.dtype).removeprefix("torch.") for each in self._weights.values()],
                shapes=[list(each.shape) for each in self._weights.values()],
            )
        )

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:  # closed
                return
            with self._lock:
                self._connections.add(connection)
            thread = threading.Thread(target=self._serve, args=[connection], name="gymnast-weights", daemon=True)
            self._threads.append(thread)
            thread.start()

    def _serve(self, connection: socket.socket) -> None:
        """Send all weights. Errors are ignored here: a lost worker fails its own server's update."""
        try:
            with contextlib.suppress(OSError):
                connection.settimeout(HANDSHAKE_SECONDS)
                token = bytearray(len(self._token))
                _read(connection, memoryview(token))
                if not secrets.compare_digest(bytes(token), self._token.encode()):
                    return
                connection.settimeout(None)
                for tensor in self._weights.values():
                    connection.sendall(_bytes_of(tensor.detach().cpu().contiguous()))
        finally:
            with self._lock:
                self._connections.discard(connection)
                connection.close()


def fetch_weights(offer: Offer) -> Iterator[tuple[str, Tensor]]:
    """Yield the offered weights by name as they arrive.

    Raises:
        OSError: the trainer is gone or refuses the token.
    """
    with socket.create_connection((offer.host, offer.port), timeout=HANDSHAKE_SECONDS) as connection:
        connection.settimeout(STALL_SECONDS)
        connection.sendall(offer.token.encode())
        for name, dtype, shape in zip(offer.names, offer.dtypes, offer.shapes, strict=True):
            tensor = torch.empty(shape, dtype=getattr(torch, dtype))
            _read(connection, _bytes_of(tensor))
            yield name, tensor


def _bytes_of(tensor: Tensor) -> memoryview:
    """Return the memory of a contiguous CPU tensor."""
    array: Any = tensor.reshape(-1).view(torch.uint8).numpy()
    return memoryview(array)


def _read(connection: socket.socket, target: memoryview) -> None:
    """Read until the target is full."""
    while target:
        count = connection.recv_into(target)
        if not count:
            raise ConnectionError("the trainer closed the connection before all weights arrived")
        target = target[count:]


# In vLLM's workers.


class TCPReceiver:
    """Mixin for vLLM's `WeightTransferEngine`, which sets the attributes below."""

    init_info_cls = NothingToAgree
    update_info_cls = Offer
    model: Any
    model_config: Any
    device: torch.device
    parse_update_info: Any
    _wanted: set[str]

    def init_transfer_engine(self, init_info: NothingToAgree) -> None:
        """Do nothing: TCP needs no set-up."""

    def start_weight_update(self) -> None:
        self._wanted = weight_names(self.model)
        begin_reload(self.model)

    def update_weights(self, update_info: dict[str, Any]) -> None:
        """Receive all weights. Replaces vLLM's method, which fails without an accelerator."""
        self.receive_weights(self.parse_update_info(update_info))
        if torch.accelerator.is_available():
            torch.accelerator.synchronize()

    def receive_weights(self, update_info: Offer) -> None:
        latest = ""

        def arriving() -> Iterator[tuple[str, Tensor]]:
            nonlocal latest
            for name, tensor in fetch_weights(update_info):
                latest = f"{name} of shape {list(tensor.shape)}"
                yield name, tensor.to(self.device)

        try:
            loaded = self.model.load_weights(arriving())
        except (AssertionError, KeyError, RuntimeError, ValueError) as error:
            raise ValueError(f"the trainer's model does not fit this server's: {latest}: {error!r}") from error
        check_complete(self._wanted, loaded)

    def finish_weight_update(self) -> None:
        end_reload(self.model, self.model_config)
        pack_tied_head(self.model)

    def shutdown(self) -> None:
        """Do nothing: no connection is open between two updates."""


@cache
def register() -> None:
    """Register the backend. vLLM calls this in each of its processes."""
    from vllm.distributed.weight_transfer.base import WeightTransferEngine
    from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory

    engine = type("TCPWeightTransferEngine", (TCPReceiver, WeightTransferEngine), {})
    WeightTransferEngineFactory.register_engine(BACKEND, engine)
