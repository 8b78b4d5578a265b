"""Sends weights over TCP between any two devices, as a backend of vLLM's weight transfer.

`WeightListener` is the trainer's side, `fetch_weights` that of vLLM's workers.
Each worker has its own connection, so a slow or lost server affects no other.
"""

# pyright: reportMissingImports=false

from __future__ import annotations

import secrets
import socket
import threading
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cache
from socketserver import BaseRequestHandler, ThreadingTCPServer
from typing import Any

import torch
from torch import Tensor

from .private_api import replace_weights

BACKEND = "gymnast"
_NAME_BYTES = 16  # of a dtype's name, filled with spaces
STALL_SECONDS = 300.0  # either side gives up a connection that is silent for this long


@dataclass(kw_only=True, slots=True, frozen=True)
class Offer:
    """Tells a worker how to fetch the weights. Sent through vLLM's `/update_weights`."""

    host: str
    port: int
    token: str
    weights: list[tuple[str, str, list[int], bool]]
    """Name, dtype and shape of each, and whether it keeps its dtype; others may come in that of the worker."""


class WeightListener(ThreadingTCPServer):
    """Sends weights to every client that presents the token, between `with` and its end.

    `exact` has parts of the names of weights that keep their dtype. Port 0 takes any free one.
    """

    address_family = socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET
    allow_reuse_address = daemon_threads = True
    block_on_close = False  # a worker that is gone must not hold up training

    def __init__(self, weights: Mapping[str, Tensor], *, exact: Collection[str] = (), port: int = 0) -> None:
        self.weights = weights
        self.exact = [any(part in name for part in exact) for name in weights]
        self.token = secrets.token_hex(16)
        super().__init__(("", port), _Sending)

    def server_bind(self) -> None:
        if self.address_family == socket.AF_INET6:
            self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)  # servers may be reached by IPv4, too
        super().server_bind()

    def __enter__(self) -> WeightListener:
        threading.Thread(target=self.serve_forever, args=[0.01], name="gymnast-weights", daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        self.shutdown()
        self.server_close()

    def offer(self, host: str) -> dict[str, Any]:
        """Return the offer for a server that reaches this machine as `host`."""
        weights = [
            (name, str(weight.dtype).removeprefix("torch."), list(weight.shape), exact)
            for (name, weight), exact in zip(self.weights.items(), self.exact, strict=True)
        ]
        return asdict(Offer(host=host, port=self.server_address[1], token=self.token, weights=weights))


class _Sending(BaseRequestHandler):
    """One connection to a worker. Errors are ignored here: a lost worker fails its own server's update."""

    def handle(self) -> None:
        listener: Any = self.server
        connection: socket.socket = self.request
        connection.settimeout(STALL_SECONDS)
        with suppress(OSError):
            greeting = bytearray(len(listener.token) + _NAME_BYTES)
            _read(connection, memoryview(greeting))
            token, name = greeting[:-_NAME_BYTES], greeting[-_NAME_BYTES:]
            if secrets.compare_digest(bytes(token), listener.token.encode()):
                wanted = getattr(torch, name.decode().strip())
                for tensor, exact in zip(listener.weights.values(), listener.exact, strict=True):
                    sent = tensor.detach().to(_sent_dtype(tensor.dtype, wanted, exact=exact))
                    connection.sendall(_bytes_of(sent.cpu().contiguous()))


def fetch_weights(offer: Offer, dtype: torch.dtype = torch.float32) -> Iterator[tuple[str, Tensor]]:
    """Yield the offered weights by name as they arrive; to a dtype of 16 bits they are rounded before they are sent.

    Raises:
        OSError: the trainer is gone or refuses the token.
    """
    with socket.create_connection((offer.host, offer.port), timeout=STALL_SECONDS) as connection:
        wanted = str(dtype).removeprefix("torch.").ljust(_NAME_BYTES)
        connection.sendall((offer.token + wanted).encode())
        for name, own, shape, exact in offer.weights:
            tensor = torch.empty(shape, dtype=_sent_dtype(getattr(torch, own), dtype, exact=exact))
            _read(connection, _bytes_of(tensor))
            yield name, tensor


def _sent_dtype(own: torch.dtype, wanted: torch.dtype, *, exact: bool) -> torch.dtype:
    """Return the dtype in which both sides agree to send a weight."""
    return wanted if own == torch.float32 and wanted.itemsize == 2 and not exact else own


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


@cache
def register() -> None:
    """Register the backend. vLLM calls this in each of its processes."""
    from vllm.distributed.weight_transfer.base import WeightTransferEngine
    from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory

    class TCPReceiver(WeightTransferEngine):
        """Receives all weights in one update. No connection is open between two updates."""

        init_info_cls = dict  # empty: TCP needs no set-up before the first update
        update_info_cls = Offer

        def update_weights(self, update_info: dict[str, Any]) -> None:
            """Receive weights without an accelerator, too, where vLLM's own method fails."""
            self.receive_weights(self.parse_update_info(update_info))
            if torch.accelerator.is_available():
                torch.accelerator.synchronize()

        def receive_weights(self, update_info: Offer) -> None:
            fetched = fetch_weights(update_info, self.model_config.dtype)
            arriving = ((name, tensor.to(self.device)) for name, tensor in fetched)
            replace_weights(self.model, self.model_config, arriving)

        def init_transfer_engine(self, init_info: dict[str, Any]) -> None: ...

        def start_weight_update(self) -> None: ...

        def finish_weight_update(self) -> None: ...

        def shutdown(self) -> None: ...

    WeightTransferEngineFactory.register_engine(BACKEND, TCPReceiver)
