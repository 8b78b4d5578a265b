"""Weights over TCP: vLLM's weight transfer between any two devices, where NCCL cannot be had.

- `WeightListener`: the trainer's side. It sends all weights to every connection that shows its token.
- `TCPReceiver`: the side of vLLM's workers, which fetch them; `register` makes it a backend named `gymnast`.

Each worker has a connection of its own, so no server waits for another one, nor fails with it.
"""

# pyright: reportMissingImports=false
# vLLM is an extra, and imported where it is needed.

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

from .vllm_models import check_complete, pack_tied_head, weight_names

BACKEND = "gymnast"
HANDSHAKE_SECONDS = 30.0  # to connect, and to show the token
STALL_SECONDS = 300.0  # a worker gives up when nothing has come for this long


@dataclass(kw_only=True, slots=True, frozen=True)
class Offer:
    """What a worker must know to fetch the weights; sent through vLLM's `/update_weights`."""

    host: str
    port: int
    token: str
    names: list[str]
    dtypes: list[str]
    shapes: list[list[int]]


@dataclass(kw_only=True, slots=True, frozen=True)
class NothingToAgree:
    """There is no group to form before the first update."""


class WeightListener:
    """Sends weights to whoever shows the token; while it is open, they must not change.

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
        """Cut the connections that are left: their workers are gone, and nobody must read the weights any more."""
        self._socket.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts; closing alone does not
        self._threads[0].join()
        self._socket.close()
        with self._lock:
            for connection in self._connections:
                with contextlib.suppress(OSError):  # it has ended by itself
                    connection.shutdown(socket.SHUT_RDWR)
        for thread in self._threads[1:]:
            thread.join()

    def offer(self, host: str) -> dict[str, Any]:
        """What to tell a server that reaches this machine as `host`."""
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
        """Send everything; a worker that has gone fails its own server's update, which is where that is noticed."""
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
    """The weights that a trainer offers, by name, as they arrive.

    Raises:
        OSError: the trainer has gone, or refuses the token.
    """
    with socket.create_connection((offer.host, offer.port), timeout=HANDSHAKE_SECONDS) as connection:
        connection.settimeout(STALL_SECONDS)
        connection.sendall(offer.token.encode())
        for name, dtype, shape in zip(offer.names, offer.dtypes, offer.shapes, strict=True):
            tensor = torch.empty(shape, dtype=getattr(torch, dtype))
            _read(connection, _bytes_of(tensor))
            yield name, tensor


def _bytes_of(tensor: Tensor) -> memoryview:
    """The memory of a contiguous tensor on the CPU."""
    array: Any = tensor.reshape(-1).view(torch.uint8).numpy()
    return memoryview(array)


def _read(connection: socket.socket, target: memoryview) -> None:
    """Fill the target."""
    while target:
        count = connection.recv_into(target)
        if not count:
            raise ConnectionError("the trainer ended the connection before all weights had come")
        target = target[count:]


# In vLLM's workers.


class TCPReceiver:
    """The methods of vLLM's `WeightTransferEngine`, which knows the attributes that they use."""

    init_info_cls = NothingToAgree
    update_info_cls = Offer
    model: Any
    model_config: Any
    device: torch.device
    parse_update_info: Any
    _wanted: set[str]

    def init_transfer_engine(self, init_info: NothingToAgree) -> None:
        """There is nothing to do."""

    def start_weight_update(self) -> None:
        from vllm.model_executor.model_loader.reload import initialize_layerwise_reload

        self._wanted = weight_names(self.model)
        initialize_layerwise_reload(self.model)

    def update_weights(self, update_info: dict[str, Any]) -> None:
        """Receive all weights; vLLM's own method waits for an accelerator, which need not be there."""
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
        from vllm.model_executor.model_loader.reload import finalize_layerwise_reload

        finalize_layerwise_reload(self.model, self.model_config)
        pack_tied_head(self.model)

    def shutdown(self) -> None:
        """Nothing is open between two updates."""


@cache
def register() -> None:
    """Make the backend known to vLLM, which calls this in each of its processes."""
    from vllm.distributed.weight_transfer.base import WeightTransferEngine
    from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory

    engine = type("TCPWeightTransferEngine", (TCPReceiver, WeightTransferEngine), {})
    WeightTransferEngineFactory.register_engine(BACKEND, engine)
