"""Engine: who opens and closes it, in which event loop, how often an image is fetched, and what comes too late."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from gymnast.sandbox import DockerExecutor, Engine, EngineError, SandboxTimeoutError
from gymnast.sandbox.errors import EngineLoopError

from .boxes import LIMITS, eventually, own_containers, usable
from .counterfeit import CounterfeitEngine, EngineAnswers


class Counterfeit(CounterfeitEngine):
    """Answers what is asked before a container is made; an image is there once it was fetched."""

    def __init__(self, path: Path) -> None:
        super().__init__(str(path), Answers)
        self.fetched: list[str] = []
        self.asked = threading.Event()  # for its version, which is the first thing that is asked
        self.may_answer = threading.Event()
        self.may_answer.set()


class Answers(EngineAnswers):
    @property
    def engine(self) -> Counterfeit:
        assert isinstance(self.server, Counterfeit)
        return self.server

    def do_GET(self) -> None:
        if self.path == "/version":
            self.engine.asked.set()
            self.engine.may_answer.wait(30)
            self.answer(200, {"ApiVersion": "1.41"})
        elif self.engine.fetched:
            self.answer(200, {"Id": "sha256:1", "Size": 1})
        else:
            self.answer(404, {"message": "No such image"})

    def do_POST(self) -> None:
        self.engine.fetched.append(self.path)
        self.answer(200, {"status": "Pull complete"})


@pytest.fixture
def counterfeit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Counterfeit]:
    """A process of our own that DOCKER_HOST points to."""
    with Counterfeit(tmp_path / "engine.sock") as server:
        monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/engine.sock")
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.may_answer.set()
        server.shutdown()
        thread.join()


# --- open and close ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("turns", range(6))
async def test_an_open_that_is_cancelled_takes_nothing_from_the_next(counterfeit: Counterfeit, turns: int) -> None:
    counterfeit.may_answer.clear()
    engine = Engine()
    first = asyncio.create_task(engine.open())
    assert await asyncio.to_thread(counterfeit.asked.wait, 30)
    first.cancel()
    for _ in range(turns):
        await asyncio.sleep(0)
    second = asyncio.create_task(engine.open())
    for _ in range(3):
        await asyncio.sleep(0)
    counterfeit.may_answer.set()
    outcomes = await asyncio.gather(first, second, return_exceptions=True)
    assert isinstance(outcomes[0], asyncio.CancelledError)
    assert outcomes[1] is engine
    assert await engine.call(engine.client.inspect, "any") is None
    await engine.close()
    with pytest.raises(EngineError, match="the engine is not open"):
        _ = engine.client


async def test_one_connection_for_all_who_open_it_until_the_last_has_closed_it(counterfeit: Counterfeit) -> None:
    engine = Engine()
    await asyncio.gather(engine.open(), engine.open())
    client = engine.client
    await engine.close()
    assert engine.client is client
    await engine.close()
    async with engine:
        assert engine.client is not client


async def test_one_who_is_cancelled_while_it_opens_does_not_stop_the_others(counterfeit: Counterfeit) -> None:
    counterfeit.may_answer.clear()
    engine = Engine()
    first, second = asyncio.create_task(engine.open()), asyncio.create_task(engine.open())
    assert await asyncio.to_thread(counterfeit.asked.wait, 30)
    first.cancel()
    await asyncio.wait([first])
    counterfeit.may_answer.set()
    await second
    assert await engine.call(engine.client.inspect, "any") is None
    await engine.close()


# --- event loops ------------------------------------------------------------------------------------------------


async def use_side_by_side(engine: Engine) -> None:
    """Open the engine, and wait for one another in it, which binds what one waits with to the event loop."""
    await engine.open()
    await asyncio.gather(*(engine.image("any", "missing") for _ in range(3)))


@pytest.mark.parametrize("closed", [True, False])
def test_users_that_a_dead_event_loop_has_left_do_not_stand_in_the_way(counterfeit: Counterfeit, closed: bool) -> None:
    engine = Engine(creators=1)
    loop = asyncio.new_event_loop()
    loop.run_until_complete(use_side_by_side(engine))
    left = engine.session
    if closed:
        loop.close()

    async def next_loop() -> None:
        await use_side_by_side(engine)
        await engine.close(left)  # as an executor does that is closed here
        assert await engine.call(engine.client.inspect, "any") is not None
        await engine.close()

    asyncio.run(next_loop())
    with pytest.raises(EngineError, match="the engine is not open"):
        _ = engine.session
    loop.close()


def test_an_event_loop_that_is_running_is_not_interfered_with(counterfeit: Counterfeit) -> None:
    async def main() -> None:
        async with Engine() as engine:
            with pytest.raises(EngineLoopError, match=r"in use in another event loop, .* still running") as caught:
                await asyncio.to_thread(asyncio.run, engine.open())
            assert isinstance(caught.value, RuntimeError)
            assert await engine.call(engine.client.inspect, "any") is None

    asyncio.run(main())


def test_boxes_in_two_event_loops_one_after_the_other(image: str) -> None:
    recipe = DockerExecutor(limits=LIMITS, engine=Engine(creators=1))

    async def use() -> None:
        async with recipe.clone() as one, recipe.clone() as other:
            assert [await usable(box) for box in (one, other)] == [True, True]

    asyncio.run(use())
    asyncio.run(use())


# --- images -----------------------------------------------------------------------------------------------------


async def test_an_image_that_is_always_fetched_is_fetched_once_for_an_engine(counterfeit: Counterfeit) -> None:
    for fetches in (1, 2):
        async with Engine() as engine:
            await asyncio.gather(*(engine.image("some", "always") for _ in range(3)))
            await engine.image("some", "missing")
        assert len(counterfeit.fetched) == fetches


# --- containers that come too late ------------------------------------------------------------------------------

ENGINE = os.environ.get("DOCKER_HOST", "unix:///var/run/docker.sock")


class Delay:
    """The engine behind a socket of ours, which holds back what asks it for a container until `may_make` is set."""

    def __init__(self) -> None:
        self.asked, self.may_make, self.made = asyncio.Event(), asyncio.Event(), asyncio.Event()
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
            engine.write(data)
        if creates.is_set():
            await self.made.wait()  # the engine may not find out that its client has gone

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
    monkeypatch.setattr("gymnast.sandbox.client.CALL_SECONDS", 1.0)
    delay = Delay()
    async with await asyncio.start_unix_server(delay.serve, tmp_path / "delay.sock"):
        yield delay
        await delay.end()


@pytest.mark.parametrize("start_timeout", [30.0, 0.5], ids=["unanswered", "cancelled"])
async def test_a_container_that_comes_after_its_start_has_failed_is_removed(
    delay: Delay, start_timeout: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Engine() as engine:
        monkeypatch.setenv("DOCKER_HOST", ENGINE)  # for whoever looks for containers
        with pytest.raises((EngineError, SandboxTimeoutError), match=r"does not answer|was not ready within"):
            await DockerExecutor(limits=LIMITS, engine=engine, start_timeout=start_timeout).start()
        delay.may_make.set()
        await asyncio.wait_for(delay.made.wait(), 30)
        assert await eventually(lambda: not own_containers(), 10)


async def test_one_that_does_not_come_holds_no_close(delay: Delay, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gymnast.sandbox.engine.CLOSE_SECONDS", 0.5)
    started = time.monotonic()
    with pytest.raises(EngineError, match="does not answer"):
        await DockerExecutor(limits=LIMITS).start()
    assert delay.asked.is_set()
    assert time.monotonic() - started < 5
