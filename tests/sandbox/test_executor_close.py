"""Closing an executor at any moment, while it does something else: nothing is left behind, and no call hangs."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable

import pytest

from gymnast.sandbox import (
    DockerExecutor,
    Engine,
    Executor,
    LocalExecutor,
    SandboxClosedError,
    SandboxError,
    SandboxLostError,
)
from gymnast.sandbox.cancellation import finish
from gymnast.sandbox.host.connection import Connection
from gymnast.sandbox.host.messages import decode_nothing

from .boxes import LIMITS, eventually, own_containers, usable

MAKERS: dict[str, Callable[[], Executor]] = {"docker": lambda: DockerExecutor(limits=LIMITS), "local": LocalExecutor}


@pytest.fixture(params=MAKERS)
def executor(request: pytest.FixtureRequest) -> Executor:
    if request.param == "docker":
        request.getfixturevalue("image")
    return MAKERS[request.param]()


@pytest.mark.parametrize("milliseconds", [0, 5, 20, 60, 120, 200, 300])
async def test_closed_while_it_starts(executor: Executor, milliseconds: int) -> None:
    starting = asyncio.ensure_future(executor.start())
    await asyncio.sleep(milliseconds / 1000)
    async with asyncio.timeout(20):
        await executor.close()
        [outcome] = await asyncio.gather(starting, return_exceptions=True)
    assert outcome is None or isinstance(outcome, SandboxClosedError)
    await check_closed(executor)


@pytest.mark.parametrize("milliseconds", [0, 2, 5, 10, 20])
async def test_closed_while_it_is_reset(executor: Executor, milliseconds: int) -> None:
    await executor.start()
    resetting = asyncio.ensure_future(executor.reset())
    await asyncio.sleep(milliseconds / 1000)
    async with asyncio.timeout(20):
        await executor.close()
        [outcome] = await asyncio.gather(resetting, return_exceptions=True)
    assert outcome is None or isinstance(outcome, SandboxError)
    await check_closed(executor)


async def test_closed_in_a_call_it_is_gone_before_the_close_returns(engine: Engine) -> None:
    """The call fails and gives up the box, too; the engine stays open."""
    box = DockerExecutor(limits=LIMITS, engine=engine)
    await box.start()
    running = asyncio.ensure_future(box.python("while True: pass", timeout=60))
    assert await eventually(lambda: box._box is not None and bool(box._box.connection._waiting), 5)
    await box.close()
    assert own_containers() == set()
    with pytest.raises(SandboxLostError, match="it was closed"):
        await running


def test_closed_from_another_event_loop_while_its_own_stands_still() -> None:
    loop, boxes = asyncio.new_event_loop(), [LocalExecutor() for _ in range(3)]

    async def start() -> None:
        await asyncio.gather(*(box.start() for box in boxes))

    async def close() -> None:
        await asyncio.gather(*(box.close() for box in boxes))

    loop.run_until_complete(start())
    processes = [box._process for box in boxes]
    asyncio.run(close())
    # They ended by themselves when their connections did; they were not killed after a wait of ten seconds.
    assert [process.popen.returncode for process in processes if process is not None] == [0, 0, 0]
    loop.run_until_complete(asyncio.sleep(0))
    loop.close()


async def test_the_end_of_a_box_is_seen_while_a_request_to_it_is_still_being_written() -> None:
    ours, theirs = socket.socketpair()
    with theirs:
        _, connection = await asyncio.get_running_loop().create_connection(lambda: Connection(LIMITS), sock=ours)
        connection.send_raw(bytes(16 << 20))
        _, reply = connection.request({"op": "ping"}, b"", decode_nothing)
        theirs.shutdown(socket.SHUT_WR)
        with pytest.raises(SandboxLostError, match="it has ended"):
            await asyncio.wait_for(reply, 10)
        assert connection.lost == "it has ended"


async def test_a_box_that_has_died_says_so_before_the_next_call() -> None:
    async with LocalExecutor() as box:
        assert box._process is not None
        assert box.retire_reason is None
        box._process.popen.kill()
        assert await eventually(lambda: box.retire_reason is not None, 10)
        assert box.retire_reason is not None
        assert box.retire_reason.category == "lost"
        await box.reset()
        assert box.retire_reason is None
        assert await usable(box)


@pytest.mark.parametrize("fails", [False, True])
async def test_a_cancellation_continues_after_the_shielded_work(fails: bool) -> None:
    begun, may_end = asyncio.Event(), asyncio.Event()

    async def work() -> None:
        begun.set()
        await may_end.wait()
        if fails:
            raise OSError("the disk is full")

    task = asyncio.create_task(finish(work()))
    await begun.wait()
    task.cancel()
    await asyncio.sleep(0)
    may_end.set()
    with pytest.raises(asyncio.CancelledError) as caught:
        await task
    assert isinstance(caught.value.__cause__, OSError) is fails


async def check_closed(executor: Executor) -> None:
    assert executor.state == "closed"
    with pytest.raises(SandboxClosedError):
        await executor.python("1")
    if isinstance(executor, DockerExecutor):
        assert await eventually(lambda: not own_containers(), 2)
    else:
        assert executor._process is None  # type: ignore[attr-defined]
