"""Opening and closing an engine, in one event loop or several; fetching images."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from gymnast.sandbox import DockerExecutor, Engine, EngineError, SandboxClosedError
from gymnast.sandbox.errors import EngineLoopError

from .boxes import LIMITS, usable
from .counterfeit import CounterfeitEngine, EngineAnswers


class Counterfeit(CounterfeitEngine):
    """Answers the requests that precede a container. An image exists once it was fetched."""

    def __init__(self, path: Path) -> None:
        super().__init__(str(path), Answers)
        self.fetched: list[str] = []
        self.asked = threading.Event()  # for its version, which is the first request
        self.may_answer = threading.Event()
        self.may_answer.set()
        self.stall = ""  # where the answer to a pull stops: "before" its beginning or "within" it
        self.pulls, self.hung_up = threading.Event(), threading.Event()
        self.may_go_on = threading.Event()


class Answers(EngineAnswers):
    @property
    def engine(self) -> Counterfeit:
        assert isinstance(self.server, Counterfeit)
        return self.server

    def do_GET(self) -> None:
        if self.path.endswith("/version"):
            self.engine.asked.set()
            self.engine.may_answer.wait(30)
            self.answer(200, {"ApiVersion": "1.41"})
        elif self.engine.fetched:
            self.answer(200, {"Id": "sha256:1", "Size": 1})
        else:
            self.answer(404, {"message": "No such image"})

    def do_POST(self) -> None:
        self.engine.pulls.set()
        if self.engine.stall == "within":
            self.send_response(200)
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            with contextlib.suppress(OSError):  # the caller may hang up before the first line
                self.wfile.write(b'14\r\n{"status": "begun"}\r\n')
                self.rfile.read(1)  # blocks until the caller hangs up
            self.engine.hung_up.set()
        if self.engine.stall:
            self.engine.may_go_on.wait(30)
            self.close_connection = True
            return
        self.engine.fetched.append(self.path)
        self.answer(200, {"status": "Pull complete"})


@pytest.fixture
def counterfeit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Counterfeit]:
    """A fake engine; DOCKER_HOST points to it."""
    with Counterfeit(tmp_path / "engine.sock") as server:
        monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/engine.sock")
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.may_answer.set()
        server.may_go_on.set()
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


async def test_all_users_share_one_connection_until_the_last_one_closes_it(counterfeit: Counterfeit) -> None:
    engine = Engine()
    await asyncio.gather(engine.open(), engine.open())
    client = engine.client
    await engine.close()
    assert engine.client is client
    await engine.close()
    async with engine:
        assert engine.client is not client


async def test_cancelling_one_open_does_not_stop_the_others(counterfeit: Counterfeit) -> None:
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
    """Open the engine twice at once, which binds its locks to the event loop."""
    await engine.open()
    await asyncio.gather(*(engine.image("any", "missing") for _ in range(3)))


@pytest.mark.parametrize("ended", [True, False])
def test_an_engine_that_an_earlier_event_loop_left_open_says_so(counterfeit: Counterfeit, ended: bool) -> None:
    engine = Engine(creators=1)
    loop = asyncio.new_event_loop()
    loop.run_until_complete(use_side_by_side(engine))
    if ended:
        loop.close()

    async def next_loop() -> None:
        with pytest.raises(EngineLoopError, match="opened in another event loop and is still open there"):
            await engine.open()
        await engine.close()  # as a remaining user may do
        await use_side_by_side(engine)
        await engine.close()

    asyncio.run(next_loop())
    with pytest.raises(EngineError, match="the engine is not open"):
        _ = engine.connection
    loop.close()


def test_an_event_loop_that_is_running_is_not_interfered_with(counterfeit: Counterfeit) -> None:
    async def main() -> None:
        async with Engine() as engine:
            with pytest.raises(EngineLoopError, match="opened in another event loop") as caught:
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


# --- an engine that falls silent ---------------------------------------------------------------------------------


async def start_of_a_pull(counterfeit: Counterfeit, stall: str) -> tuple[DockerExecutor, asyncio.Task[None]]:
    counterfeit.stall = stall
    box = DockerExecutor(image="far-away")
    starting = asyncio.create_task(box.start())
    assert await asyncio.to_thread(counterfeit.pulls.wait, 30)
    return box, starting


@pytest.mark.parametrize("stall", ["before", "within"])
async def test_a_stalled_pull_is_given_up(
    counterfeit: Counterfeit, stall: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gymnast.sandbox.docker.engine.PULL_SECONDS", 0.2)
    _, starting = await start_of_a_pull(counterfeit, stall)
    with pytest.raises(EngineError, match="does not answer"):
        await asyncio.wait_for(starting, 5)


@pytest.mark.parametrize("stall", ["before", "within"])
async def test_a_box_can_be_closed_while_its_image_is_fetched(counterfeit: Counterfeit, stall: str) -> None:
    box, starting = await start_of_a_pull(counterfeit, stall)
    async with asyncio.timeout(2):
        await box.close()
        with pytest.raises(SandboxClosedError):
            await starting


@pytest.mark.parametrize("stall", ["before", "within"])
async def test_a_start_can_be_cancelled_while_its_image_is_fetched(counterfeit: Counterfeit, stall: str) -> None:
    box, starting = await start_of_a_pull(counterfeit, stall)
    starting.cancel()
    async with asyncio.timeout(2):
        with pytest.raises(asyncio.CancelledError):
            await starting
    assert box.state == "closed"
    if stall == "within":  # the connection is closed, which makes an engine give up the pull
        assert await asyncio.to_thread(counterfeit.hung_up.wait, 30)


async def test_a_program_ends_while_an_image_is_fetched(counterfeit: Counterfeit) -> None:
    counterfeit.stall = "before"
    program = """
import asyncio, sys
from gymnast.sandbox import DockerExecutor
async def main():
    starting = asyncio.create_task(DockerExecutor(image="far-away").start())
    await asyncio.to_thread(sys.stdin.readline)
    starting.cancel()
    await asyncio.wait([starting])
asyncio.run(main())
"""
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", program, stdin=asyncio.subprocess.PIPE)
    try:
        assert await asyncio.to_thread(counterfeit.pulls.wait, 60)
        await asyncio.wait_for(process.communicate(b"cancel\n"), 20)  # the engine answers after 30 seconds
        assert process.returncode == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


# --- the Docker context -----------------------------------------------------------------------------------------


async def test_the_current_docker_context_is_followed(
    counterfeit: Counterfeit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = os.environ["DOCKER_HOST"]
    monkeypatch.delenv("DOCKER_HOST")
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "config.json").write_text(json.dumps({"currentContext": "colima"}))
    folder = tmp_path / "contexts" / "meta" / hashlib.sha256(b"colima").hexdigest()
    folder.mkdir(parents=True)
    context = {"Name": "colima", "Metadata": {}, "Endpoints": {"docker": {"Host": host, "SkipTLSVerify": False}}}
    (folder / "meta.json").write_text(json.dumps(context))
    async with Engine():
        assert counterfeit.asked.is_set()
    monkeypatch.setenv("DOCKER_CONTEXT", "missing")
    with pytest.raises(EngineError, match="the Docker context missing is not there"):
        await Engine().open()
