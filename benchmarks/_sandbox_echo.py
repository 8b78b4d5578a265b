"""A reference for the round trip: `cat` in a container like a box, and nothing of ours on either side of the socket.

What this takes is the engine's and the machine's; only what a box takes beyond it is ours.
"""

from __future__ import annotations

import asyncio
import time
import uuid

from gymnast.sandbox import Engine, Limits
from gymnast.sandbox.container import BoxOptions, container_config
from gymnast.sandbox.images import default_image
from gymnast.sandbox.owner import labels

LINE = b"x" * 99 + b"\n"  # about as much as a small execution sends
STREAM_HEADER = 8  # bytes that the engine puts before each piece
WARM_UP = 100


async def echo_seconds(count: int) -> list[float]:
    """How long each of so many lines took to come back, one after the other."""
    async with Engine() as engine:
        image = await default_image(engine)
        options = BoxOptions(image=image.id, limits=Limits())
        config = container_config(options, image.id, labels(lifetime=600), image.volumes)
        launched = await engine.launch(f"gymnast-echo-{uuid.uuid4().hex[:12]}", {**config, "Entrypoint": ["cat"]})
        try:
            _, echo = await asyncio.get_running_loop().create_connection(_Echo, sock=launched.socket)
            try:
                return [await echo.once() for _ in range(WARM_UP + count)][WARM_UP:]
            finally:
                echo.transport.abort()
        finally:
            await engine.remove(launched.container)


class _Echo(asyncio.Protocol):
    transport: asyncio.Transport
    answer: asyncio.Future[None]

    async def once(self) -> float:
        self.answer = asyncio.get_running_loop().create_future()
        self.received = bytearray()
        started = time.perf_counter()
        self.transport.write(LINE)
        await self.answer
        seconds = time.perf_counter() - started
        assert self.received[STREAM_HEADER:] == LINE, self.received
        return seconds

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.received += data
        if len(self.received) >= STREAM_HEADER + len(LINE) and not self.answer.done():
            self.answer.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.answer.done():
            self.answer.set_exception(exc or ConnectionError("the container has ended"))
