"""Engine: who opens and closes it, in which event loop, how often an image is fetched, and what comes too late."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import ClassVar

import pytest

from gymnast.sandbox import (
    DockerExecutor,
    Engine,
    EngineError,
    ExecutorPool,
    SandboxClosedError,
    SandboxTimeoutError,
)
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
        self.stall = ""  # where the answer to a pull stops: "before" its beginning, or "within" it
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
                self.rfile.read(1)  # nothing but the end comes
            self.engine.hung_up.set()
        if self.engine.stall:
            self.engine.may_go_on.wait(30)
            self.close_connection = True
            return
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
        await engine.close()  # as whoever is left may do
        await use_side_by_side(engine)
        await engine.close()

    asyncio.run(next_loop())
    with pytest.raises(EngineError, match="the engine is not open"):
        _ = engine.session
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


# --- containers that are removed --------------------------------------------------------------------------------


class Removals(EngineAnswers):
    """An engine with one container, which goes as `ends` says: "itself", "asked", "late" or "never"."""

    ends = "itself"
    requests: ClassVar[list[str]] = []
    there = True

    def do_GET(self) -> None:
        if self.path.endswith("/version"):
            self.answer(200, {"ApiVersion": "1.41"})
        elif Removals.there:
            limits = {"CpuPeriod": 100_000, "CpuQuota": 20_000}
            self.answer(200, {"State": {"Status": "running"}, "HostConfig": limits})
        else:
            self.answer(404, {"message": "No such container"})

    def do_POST(self) -> None:
        if self.path.endswith("/update"):
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            Removals.requests.append(f"update {body['CpuQuota']}")
            self.answer(200, {"Warnings": None})
            return
        Removals.requests.append("wait")
        gone = Removals.ends == "itself" or (Removals.ends == "late" and "delete" in Removals.requests)
        if gone:
            Removals.there = False
            self.answer(200, {"StatusCode": 0})
        else:
            time.sleep(0.3)  # longer than anybody waits
            self.answer(200, {"StatusCode": 0})

    def do_DELETE(self) -> None:
        Removals.requests.append("delete")
        if Removals.ends == "asked":
            Removals.there = False
            self.answer(204)
        else:
            self.answer(409, {"message": "removal is already in progress"})


@pytest.fixture
def removals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Removals]]:
    Removals.requests.clear()
    Removals.there = True
    monkeypatch.setattr("gymnast.sandbox.docker.client._ENDING_SECONDS", 0.1)
    with CounterfeitEngine(f"{tmp_path}/removals.sock", Removals) as server:
        monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/removals.sock")
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield Removals
        server.shutdown()
        thread.join()


@pytest.mark.parametrize(
    ("ends", "requests"),
    [
        ("itself", ["wait"]),
        ("asked", ["wait", "update 20000", "delete"]),
        ("late", ["wait", "update 20000", "delete", "wait"]),
    ],
)
async def test_a_container_that_ends_is_left_to_the_engine_and_one_that_does_not_is_removed(
    removals: type[Removals], ends: str, requests: list[str]
) -> None:
    removals.ends = ends
    async with Engine() as engine:
        for _ in range(2):  # nothing is there any more the second time
            await asyncio.wrap_future(engine.session.remove("one"))
    assert removals.requests == requests


async def test_one_that_is_never_removed_is_named_and_tried_again_at_the_end(
    removals: type[Removals], caplog: pytest.LogCaptureFixture
) -> None:
    removals.ends = "never"
    async with Engine() as engine:
        await asyncio.wrap_future(engine.session.remove("stuck"))
        assert "the container stuck is still there after 3 requests to remove it" in caplog.text
        removals.ends = "asked"
    assert not removals.there
    assert "the engine is closed" not in caplog.text
    removals.ends, removals.there = "never", True
    async with Engine() as engine:
        engine.session.remove("stuck")
    assert "the engine is closed" in caplog.text
    assert caplog.text.rstrip().endswith("until they end: stuck")


# --- engines that are not what they should be -------------------------------------------------------------------


class Grudging(EngineAnswers):
    """An engine that does not hold one limit."""

    version: ClassVar[dict[str, object]] = {"ApiVersion": "1.41"}
    removed: ClassVar[list[str]] = []

    def do_GET(self) -> None:
        if self.path.endswith("/version"):
            self.answer(200, Grudging.version)
        elif "/images/" in self.path:
            self.answer(200, {"Id": "sha256:1", "Size": 1})
        elif self.path.endswith("/info") or "/containers/json" in self.path:
            self.answer(200, {"SystemTime": "2026-01-01T00:00:00Z"} if self.path.endswith("/info") else [])
        else:
            self.answer(404 if Grudging.removed else 200, {"State": {"Status": "created"}, "message": "none"})

    def do_POST(self) -> None:
        self.answer(201, {"Id": "one", "Warnings": ["Your kernel does not support PIDs limit. PIDs limit discarded."]})

    def do_DELETE(self) -> None:
        Grudging.removed.append(self.path)
        self.answer(204)


@pytest.fixture
def grudging(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Grudging]]:
    Grudging.removed.clear()
    with CounterfeitEngine(f"{tmp_path}/grudging.sock", Grudging) as server:
        monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/grudging.sock")
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield Grudging
        server.shutdown()
        thread.join()


async def test_a_limit_that_the_engine_discards_is_an_error(grudging: type[Grudging]) -> None:
    with pytest.raises(EngineError, match=r"does not hold a limit: .* PIDs limit discarded.*best_effort=True"):
        await DockerExecutor(image="any").start()
    assert len(grudging.removed) == 1


async def test_podman_is_refused_by_name(grudging: type[Grudging], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grudging, "version", {"ApiVersion": "1.41", "Components": [{"Name": "Podman Engine"}]})
    with pytest.raises(EngineError, match="this engine is Podman"):
        await Engine().open()


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


# --- containers that come too late ------------------------------------------------------------------------------

ENGINE = os.environ.get("DOCKER_HOST", "unix:///var/run/docker.sock")


class Delay:
    """The engine behind a socket of ours, which holds back what asks it for a container until `may_make` is set.

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
        monkeypatch.setenv("DOCKER_HOST", ENGINE)  # for whoever looks for containers
        with pytest.raises((EngineError, SandboxTimeoutError), match=r"does not answer|was not ready within"):
            await DockerExecutor(limits=LIMITS, engine=engine, start_timeout=start_timeout).start()
        delay.may_make.set()
        await asyncio.wait_for(delay.made.wait(), 30)
    assert await eventually(lambda: not own_containers(), 10)


async def test_one_that_does_not_come_holds_no_close(delay: Delay, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gymnast.sandbox.docker.engine.CLOSE_SECONDS", 0.5)
    started = time.monotonic()
    with pytest.raises(EngineError, match="does not answer"):
        await DockerExecutor(limits=LIMITS).start()
    assert delay.asked.is_set()
    assert time.monotonic() - started < 5


async def test_an_engine_that_stalls_holds_the_close_of_a_pool_for_one_time_limit(
    delay: Delay, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not for one in the removal of the boxes and for another in the close of the engine."""
    monkeypatch.setattr("gymnast.sandbox.docker.client.CALL_SECONDS", 30.0)
    monkeypatch.setattr("gymnast.sandbox.docker.engine.CLOSE_SECONDS", 3.0)
    monkeypatch.setattr("gymnast.sandbox.host.executor.CLOSE_SECONDS", 3.0)
    delay.may_make.set()
    pool = await ExecutorPool(DockerExecutor(limits=LIMITS), max_boxes=2, warm=2).open()
    delay.answers.clear()
    started = time.monotonic()
    await pool.close()
    assert time.monotonic() - started < 5
    delay.answers.set()
