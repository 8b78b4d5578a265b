"""Measures the engine alone: `cat` in containers with a box's options, over the same socket.

A box's time minus this time is our own cost.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

from gymnast.sandbox import Engine, Limits
from gymnast.sandbox.docker.images import default_image
from gymnast.sandbox.docker.labels import labels
from gymnast.sandbox.docker.options import BoxOptions, container_config

LINE = b"x" * 99 + b"\n"  # about as much as a small execution sends
STREAM_HEADER = 8  # bytes that the engine puts before each piece
WARM_UP = 100


async def echo_seconds(count: int) -> list[float]:
    """How long each of so many lines took to come back, one after the other."""
    async with Engine() as engine, _cat(engine) as echo:
        return [await echo.once() for _ in range(WARM_UP + count)][WARM_UP:]


async def echo_rate(containers: int, seconds: float) -> float:
    """Lines a second that come back from so many containers, one at a time from each."""
    async with Engine() as engine, AsyncExitStack() as stack:
        starts = [stack.enter_async_context(_cat(engine)) for _ in range(containers)]
        echoes = await asyncio.gather(*starts)
        end = time.perf_counter() + seconds

        async def count(echo: _Echo) -> int:
            lines = 0
            while time.perf_counter() < end:
                await echo.once()
                lines += 1
            return lines

        return sum(await asyncio.gather(*map(count, echoes))) / seconds


async def start_seconds(count: int) -> list[float]:
    """How long each of so many containers took from nothing to the first line that came back."""
    seconds = []
    for _ in range(count):
        started = time.perf_counter()
        async with Engine() as engine, _cat(engine) as echo:
            await echo.once()
            seconds.append(time.perf_counter() - started)
    return seconds


@asynccontextmanager
async def _cat(engine: Engine) -> AsyncIterator[_Echo]:
    image = await default_image(engine)
    options = BoxOptions(limits=Limits())
    config = container_config(options, image.id, labels(lifetime=600), image.volumes)
    config["Entrypoint"] = ["cat"]
    launched = await engine.launch(f"gymnast-echo-{uuid.uuid4().hex[:12]}", config)
    try:
        _, echo = await asyncio.get_running_loop().create_connection(_Echo, sock=launched.socket)
        try:
            yield echo
        finally:
            echo.transport.abort()
    finally:
        await asyncio.wrap_future(engine.connection.remove(launched.container))


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
