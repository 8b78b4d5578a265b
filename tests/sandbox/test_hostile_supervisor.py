"""A supervisor that answers wrongly, as that of a hostile image may: each call soon ends with a SandboxError."""

from __future__ import annotations

import asyncio
import errno
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable
from typing import Any

import anyio
import pytest

from gymnast.sandbox import (
    Executor,
    Limits,
    SandboxError,
    SandboxFileError,
    SandboxFileTooLargeError,
    SandboxLostError,
    Status,
)
from gymnast.sandbox.cancellation import finish
from gymnast.sandbox.guest.protocol import MAX_LISTED, PIECE, Decoder, encode
from gymnast.sandbox.host.connection import Connection
from gymnast.sandbox.host.supervised_executor import SupervisedExecutor

Call = Callable[[Executor], Awaitable[Any]]

RAN: dict[str, Any] = {
    "status": "ok", "code": 0, "value": True, "lost": False, "dropped": 0, "retire": "", "lengths": [0, 0, 2],
}  # fmt: skip
NESTED: Any = []
for _ in range(500):
    NESTED = [NESTED]


class Supervisor(asyncio.Protocol):
    """Reads the boot program without running it, and answers as its box says."""

    def __init__(self, box: CounterfeitBox) -> None:
        self.box = box
        self.decoder, self.unread, self.asked = Decoder(), bytearray(), asyncio.Event()
        self.left: int | None = None  # of the program

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.unread += data
        if self.left is None and len(self.unread) >= 8:
            self.left = 8 + int(self.unread[:8])
        if self.left is None or len(self.unread) < self.left:
            return
        frames, self.left = self.decoder.feed(bytes(self.unread[self.left :])), 0
        self.unread.clear()
        for header, _ in frames:
            answer = (self.box.ready, b"") if "grace" in header else self.box.answer
            if answer is None:
                self.asked.set()
            else:
                self.transport.write(encode({"id": header["id"], **answer[0]}, answer[1]))


class CounterfeitBox(SupervisedExecutor):
    """A box whose supervisor is this test: `answer` holds a header and a payload for every request."""

    what = "this test"

    def __init__(self, limits: Limits | None = None) -> None:
        super().__init__(limits=limits or Limits(), files=None, start_timeout=5)
        self.ready: dict[str, Any] = {"bash": True, "lengths": []}
        self.answer: tuple[dict[str, Any], bytes] | None = RAN, b"42"  # None: it does not answer
        self.supervisor = Supervisor(self)

    async def _prepare(self) -> None:
        pass

    async def _launch(self) -> Connection:
        loop = asyncio.get_running_loop()
        ours, theirs = socket.socketpair()
        self.supervisor = Supervisor(self)
        try:
            await finish(loop.create_connection(lambda: self.supervisor, sock=theirs))
            _, connection = await loop.create_connection(lambda: Connection(self.limits), sock=ours)
        except BaseException:
            ours.close()
            self.supervisor.transport.abort()
            raise
        return connection

    def _settings(self) -> dict[str, Any]:
        return {"grace": 0.1}

    def _remove(self, *, is_silent: bool) -> None:
        """The supervisor's connection ends with ours."""

    @property
    def key(self) -> Hashable:
        return id(self)

    def clone(self) -> CounterfeitBox:
        return CounterfeitBox(self.limits)


@pytest.fixture
async def box() -> AsyncIterator[CounterfeitBox]:
    async with CounterfeitBox() as box:
        yield box


async def run(box: Executor) -> Any:
    return await box.python("6 * 7", timeout=5)


async def listed(box: Executor) -> Any:
    return await box.list_files()


async def read(box: Executor) -> Any:
    return await box.read_file("x")


def reported(report: bytes) -> tuple[dict[str, Any], bytes]:
    return {"lengths": [len(report)]}, report


async def pinged(box: Executor) -> Any:
    await box.ping()


async def test_correct_answers_of_the_counterfeit_are_accepted(box: CounterfeitBox) -> None:
    result = await run(box)
    assert (result.status, result.value, result.exit_code) == (Status.OK, "42", 0)
    box.answer = reported(encode({}, b"d40 a\0f2 b\0"))
    listing = [(file.path, file.kind, file.size) for file in await listed(box)]
    assert listing == [("a", "directory", 40), ("b", "file", 2)]


WRONG: list[tuple[Call, dict[str, Any], bytes]] = [
    *((run, {**RAN, **change}, b"42") for change in (
        {"status": "sandbox_lost"}, {"status": "fine"}, {"status": ["ok"]}, {"status": None}, {"status": {}},
        {"code": [1]}, {"code": True}, {"code": 1e400}, {"code": 10**30}, {"code": "0"}, {"code": 4096},
        {"value": 1}, {"value": None}, {"lost": "no"}, {"lost": 0}, {"lost": NESTED},
        {"dropped": -5}, {"dropped": "x"}, {"dropped": [3]}, {"dropped": None}, {"dropped": True}, {"dropped": 1 << 70},
        {"dropped": 0.5}, {"dropped": NESTED},
        {"retire": {"a": 1}}, {"retire": 5}, {"retire": None}, {"retire": ["x"]},
        {"lengths": [2]}, {"lengths": [0, 0, 3]}, {"lengths": "2"}, {"lengths": [2, 0, 0.0]},
        {"id": 99}, {"id": "1"}, {"id": True}, {"id": 1.0}, {"id": None}, {"id": []},
    )),
    (run, {"lengths": []}, b""),
    *((run, {name: field for name, field in RAN.items() if name != left_out}, b"42")
      for left_out in ("status", "value", "lost", "dropped", "lengths")),
    (listed, {"lengths": []}, b""),
    *((call, {"lengths": [], **change}, b"") for call in (read, listed) for change in (
        {"errno": "2"}, {"errno": 2.0}, {"errno": 0}, {"errno": -1}, {"errno": 1 << 40}, {"errno": None},
        {"errno": True}, {"errno": 2, "detail": 5}, {"errno": 2, "detail": NESTED}, {"lengths": [0, 0]},
    )),
    (pinged, {"lengths": [], "retire": 1}, b""),
    (pinged, {}, b""),
]  # fmt: skip


@pytest.mark.parametrize(("call", "header", "payload"), WRONG)
async def test_a_wrong_answer_costs_the_box(
    box: CounterfeitBox, call: Call, header: dict[str, Any], payload: bytes
) -> None:
    box.answer = header, payload
    with pytest.raises(SandboxLostError, match="it broke the protocol"):
        await call(box)
    assert str(box.retire_reason).startswith("lost: it broke the protocol")
    box.answer = RAN, b"42"
    with pytest.raises(SandboxLostError):
        await run(box)
    await box.reset()
    assert (await run(box)).value == "42"


FORGED: list[tuple[Call, bytes]] = [
    *((listed, encode({}, content)) for content in (
        b"[]", b"f1 a", b"\0", b"x1 a\0", b"f-5 a\0", b"f a\0", b"f1 \0", b"f1\0", b"f" + b"9" * 5000 + b" a\0",
        b"f\xb2 a\0",
    )),
    *((call, encode(header)) for call in (read, listed) for header in (
        {"errno": "2"}, {"errno": 2.0}, {"errno": 0}, {"errno": -1}, {"errno": 1 << 40}, {"errno": None},
        {"errno": True}, {"errno": 2, "detail": 5}, {"errno": 2, "detail": NESTED}, {"errno": 5, "fault": "user"},
    )),
    *((read, report) for report in (b"", b"x", b"\xff" * 100, encode({}, b"x")[:-1], 2 * encode({}))),
]  # fmt: skip


@pytest.mark.parametrize(("call", "report"), FORGED)
async def test_a_report_that_the_code_has_forged_is_an_error_of_the_file(
    box: CounterfeitBox, call: Call, report: bytes
) -> None:
    box.answer = reported(report)
    with pytest.raises(SandboxFileError) as caught:
        await call(box)
    assert caught.value.errno == errno.EIO
    assert box.retire_reason is None


@pytest.mark.parametrize(
    "ready", [{"bash": "yes"}, {"bash": None}, {}, {"unfit": 5}, {"unfit": ["x"]}, {"bash": 1, "id": 7}]
)
async def test_a_wrong_greeting_is_a_start_that_fails(ready: dict[str, Any]) -> None:
    box = CounterfeitBox()
    box.ready = {"lengths": [], **ready}
    with pytest.raises(SandboxError, match="the box ended while it was started: it broke the protocol"):
        await box.start()


@pytest.mark.parametrize(
    "listing",
    [b"[[],[]," + b"[]," * 8_000_000 + b"[]]", bytes(24 << 20), b"f1 a\0" * (MAX_LISTED + 1)],
    ids=["nested", "empty", "long"],
)
async def test_a_huge_listing_is_refused_at_once(box: CounterfeitBox, listing: bytes) -> None:
    box.answer = reported(encode({}, listing))
    started = time.process_time()
    with pytest.raises(SandboxFileError, match="listing"):
        await listed(box)
    assert time.process_time() - started < 1.0  # including the transfer of 24 MB; it once took five seconds


async def test_a_file_that_grows_over_the_limit_names_the_option() -> None:
    async with CounterfeitBox(Limits(max_file="1m", max_code="1m")) as box:
        box.answer = reported(encode({}, bytes(PIECE)))
        with pytest.raises(SandboxFileTooLargeError, match=r"over 1048576 bytes, which is Limits\.max_file"):
            await read(box)


async def test_half_a_character_in_an_answer_can_be_printed(box: CounterfeitBox) -> None:
    box.answer = {**RAN, "retire": "\ud800 tired"}, b"42"
    await run(box)
    assert str(box.retire_reason) == "? tired"


async def test_a_long_answer_survives_a_stall_of_the_hosts_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gymnast.sandbox.host.supervised_executor.MARGIN", 0.01)
    async with CounterfeitBox(Limits(grace=0.01, max_output="2m")) as box:
        box.answer = {**RAN, "value": False, "lengths": [8 << 20, 0, 0]}, bytes(8 << 20)
        call = asyncio.create_task(box.python("print()", timeout=0.1))
        await asyncio.sleep(0.02)  # the answer is on its way
        time.sleep(0.2)  # noqa: ASYNC251  # as training does
        assert len((await call).stdout) == 8 << 20


# --- the life of a box, seen with a supervisor that does as it is told -------------------------------------------


@pytest.mark.parametrize("turns", range(12))
async def test_a_cancelled_reset_of_a_lost_box_leaves_it_usable(box: CounterfeitBox, turns: int) -> None:
    box.answer = {}, b""
    with pytest.raises(SandboxLostError):
        await run(box)
    box.answer = RAN, b"42"
    resetting = asyncio.create_task(box.reset())
    for _ in range(turns):
        await asyncio.sleep(0)
    resetting.cancel()
    await asyncio.wait({resetting})
    if turns == 0:  # it was cancelled before it began
        await box.reset()
    result = await run(box)
    assert result.value == "42"
    if resetting.cancelled() and turns:
        assert result.state_lost
        assert not (await run(box)).state_lost


class OutOfMemory(CounterfeitBox):
    async def _ran_out_of_memory(self) -> bool:
        return True


async def test_a_box_that_runs_out_of_memory_gives_a_result_and_restarts() -> None:
    async with OutOfMemory() as box:
        for call in ("python", "file"):
            box.supervisor.transport.abort()
            if call == "python":
                result = await run(box)
                assert (result.status, result.state_lost, result.value) == (Status.OOM, True, None)
                assert "ran out of memory" in result.stderr
            else:
                with pytest.raises(SandboxFileError, match="ran out of memory") as caught:
                    await read(box)
                assert caught.value.errno == errno.ENOMEM
            assert str(box.retire_reason).startswith("lost: it ran out of memory")
            assert (await box.bash("true")).state_lost
            assert not (await box.bash("true")).state_lost
            assert box.retire_reason is None
            await box.reset()


async def test_a_cancelled_call_that_uses_up_the_memory_is_reported_later() -> None:
    async with OutOfMemory() as box:
        box.answer = None
        running = asyncio.create_task(box.python("...", timeout=60))
        await asyncio.wait_for(box.supervisor.asked.wait(), 10)
        running.cancel()
        box.supervisor.transport.abort()
        with pytest.raises(asyncio.CancelledError):
            await running
        box.answer = RAN, b"42"
        assert (await run(box)).status is Status.OOM
        assert (await box.bash("true")).state_lost
        assert (await run(box)).value == "42"


async def test_a_cleanup_does_not_spin_under_anyio() -> None:
    """anyio cancels a task again in every pass of the event loop."""
    selector = asyncio.get_running_loop()._selector  # type: ignore[attr-defined]
    passes, select = 0, selector.select

    def counted(timeout: float | None) -> object:
        nonlocal passes
        passes += 1
        return select(timeout)

    selector.select = counted
    with anyio.move_on_after(0.01) as scope:
        try:
            await asyncio.sleep(5)
        finally:
            await finish(asyncio.sleep(0.1))
    del selector.select
    assert scope.cancelled_caught
    assert passes < 50  # it was once thousands


async def test_the_preparation_does_not_count_as_time_of_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    class UnpreparedBox(CounterfeitBox):
        """A box that takes long to get ready for its start, as one does whose image is unpacked first."""

        async def _prepare(self) -> None:
            loop, seconds = asyncio.get_running_loop(), self.start_timeout + 1
            monkeypatch.setattr(loop, "time", lambda: time.monotonic() + seconds)
            await asyncio.sleep(0)  # a timeout that runs would end this now

    async with UnpreparedBox() as box:
        assert (await run(box)).value == "42"
