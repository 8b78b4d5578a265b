"""Containers that the engine makes after we stopped waiting are removed, and a stalled engine delays no close."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gymnast.sandbox import DockerExecutor, Engine, EngineError, ExecutorPool, SandboxTimeoutError

from ..sandbox.boxes import LIMITS, eventually, own_containers

ENGINE = os.environ.get("DOCKER_HOST", "unix:///var/run/docker.sock")


class Delay:
    """A socket in front of the engine that holds back requests for a container until `may_make` is set.

    While `answers` is not set, it holds back everything.
    """

    def __init__(self) -> None:
        self.asked, self.may_make, self.made = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self.answers = asyncio.Event()
        self.answers.set()
        self.tasks: set[asyncio.Task[None]] = set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        way, _, address = ENGINE.partition("://")
        host, _, port = address.rpartition(":")
        there = await (asyncio.open_connection(host, port) if way == "tcp" else asyncio.open_unix_connection(address))
        creates = asyncio.Event()
        task = asyncio.current_task()
        assert task is not None
        self.tasks.add(task)
        back = asyncio.create_task(self.pass_back(there[0], writer, creates))
        try:
            await self.pass_on(reader, there[1], creates)
        finally:
            back.cancel()
            for end in (writer, there[1]):
                end.close()
                with contextlib.suppress(OSError):
                    await end.wait_closed()

    async def pass_on(self, reader: asyncio.StreamReader, engine: asyncio.StreamWriter, creates: asyncio.Event) -> None:
        while data := await reader.read(1 << 20):
            if b"/containers/create" in data.partition(b"\r\n")[0]:
                creates.set()
                self.asked.set()
                await self.may_make.wait()
            await self.answers.wait()
            engine.write(data)
        if creates.is_set():
            await self.made.wait()  # the engine must not notice that its client has gone

    async def pass_back(
        self, engine: asyncio.StreamReader, writer: asyncio.StreamWriter, creates: asyncio.Event
    ) -> None:
        while data := await engine.read(1 << 20):
            if creates.is_set():
                self.made.set()
            writer.write(data)

    async def end(self) -> None:
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)


@pytest.fixture
async def delay(
    image: str, nothing_left: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Delay]:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/delay.sock")
    monkeypatch.setattr("gymnast.sandbox.docker.client.CALL_SECONDS", 1.0)
    delay = Delay()
    async with await asyncio.start_unix_server(delay.serve, tmp_path / "delay.sock"):
        yield delay
        await delay.end()


@pytest.mark.parametrize("start_timeout", [30.0, 0.5], ids=["unanswered", "cancelled"])
async def test_a_container_that_comes_after_its_start_has_failed_is_removed(
    delay: Delay, start_timeout: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Engine() as engine:
        monkeypatch.setenv("DOCKER_HOST", ENGINE)  # for the search for containers below
        with pytest.raises((EngineError, SandboxTimeoutError), match=r"does not answer|was not ready within"):
            await DockerExecutor(limits=LIMITS, engine=engine, start_timeout=start_timeout).start()
        delay.may_make.set()
        await asyncio.wait_for(delay.made.wait(), 30)
    assert await eventually(lambda: not own_containers(), 10)


async def test_a_container_that_never_comes_does_not_delay_close(delay: Delay, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gymnast.sandbox.docker.engine.CLOSE_SECONDS", 0.5)
    started = time.monotonic()
    with pytest.raises(EngineError, match="does not answer"):
        await DockerExecutor(limits=LIMITS).start()
    assert delay.asked.is_set()
    assert time.monotonic() - started < 15


async def test_a_stalled_engine_delays_the_close_of_a_pool_by_one_time_limit(
    delay: Delay, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The removal of the boxes and the close of the engine share one limit."""
    monkeypatch.setattr("gymnast.sandbox.docker.client.CALL_SECONDS", 30.0)
    monkeypatch.setattr("gymnast.sandbox.docker.engine.CLOSE_SECONDS", 4.0)
    monkeypatch.setattr("gymnast.sandbox.host.supervised.CLOSE_SECONDS", 4.0)
    delay.may_make.set()
    pool = await ExecutorPool(DockerExecutor(limits=LIMITS), max_boxes=2, warm=2).open()
    delay.answers.clear()
    started = time.monotonic()
    await pool.close()
    assert time.monotonic() - started < 7.5
    delay.answers.set()
