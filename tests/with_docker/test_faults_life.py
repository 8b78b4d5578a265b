"""Boxes that die, freeze, or are abandoned by their owner or a cancelled call: clear errors, no hang, nothing left."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
import signal
import subprocess
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from gymnast.sandbox import DockerExecutor, ExecutorPool, Limits, LocalExecutor, SandboxLostError, Status

from ..sandbox import faults
from ..sandbox.boxes import LIMITS, containers_of, eventually, processes_of, usable
from ..sandbox.faults import RealBox

LONG = 60.0  # seconds that a test must not take, whatever else the machine does

kind, shared_box, box = faults.kind, faults.shared_box, faults.box


@pytest.fixture
async def own_box(kind: str) -> AsyncIterator[RealBox]:
    """A box for a test that kills it."""
    async with faults.recipe(kind) as box:
        yield box


def kill(box: RealBox) -> None:
    """Kill the container or process of a box."""
    if isinstance(box, DockerExecutor):
        assert box._launched is not None
        subprocess.run(["docker", "rm", "-f", box._launched.container], check=True, capture_output=True)
    else:
        assert box._process is not None
        box._process.popen.kill()


@pytest.fixture
def much_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """The help for a box with an overdue answer, and the wait for a box to end by itself, take long."""
    monkeypatch.setattr("gymnast.sandbox.host.client.REVIVAL_SECONDS", LONG)
    monkeypatch.setattr("gymnast.sandbox.docker.client._ENDING_SECONDS", LONG)


@contextlib.contextmanager
def frozen(box: RealBox) -> Iterator[None]:
    """Freeze the container or process of a box; it may be gone at the end."""
    if isinstance(box, DockerExecutor):
        assert box._launched is not None
        container = box._launched.container
        subprocess.run(["docker", "pause", container], check=True, capture_output=True)
        try:
            yield
        finally:
            subprocess.run(["docker", "unpause", container], check=False, capture_output=True)
    else:
        assert box._process is not None
        process = box._process.popen
        process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            process.send_signal(signal.SIGCONT)  # has no effect if it is gone


def is_busy(box: RealBox) -> bool:
    """A call holds the box's turn, and its request is on the way."""
    return box._box is not None and bool(box._box.connection._waiting)


# --- loss -------------------------------------------------------------------------------------------------------


@pytest.mark.fault(35)
async def test_a_box_that_is_killed_under_a_call(own_box: RealBox) -> None:
    running = asyncio.ensure_future(own_box.python("while True: pass", timeout=60))
    assert await eventually(lambda: is_busy(own_box), 5)
    await asyncio.to_thread(kill, own_box)
    with pytest.raises(SandboxLostError):
        await asyncio.wait_for(running, 10)
    for call in (own_box.ping(), own_box.bash("true"), own_box.read_file("f")):
        with pytest.raises(SandboxLostError, match="reset"):
            await call
    assert "lost" in str(own_box.retire_reason)
    await own_box.reset()
    assert await usable(own_box)
    assert own_box.retire_reason is None


@pytest.mark.fault(36)
@pytest.mark.usefixtures("much_patience")
async def test_a_frozen_box_is_given_up(own_box: RealBox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gymnast.sandbox.host.supervised_executor.MARGIN", 0.5)
    patience = 0.2 + LIMITS.grace + 0.5
    with frozen(own_box):
        started = time.monotonic()
        with pytest.raises(SandboxLostError, match="did not answer within") as caught:
            await own_box.python("1", timeout=0.2)
        took = time.monotonic() - started
        assert patience < float(str(caught.value).split()[-2]) + 0.05 < took + 0.1
        assert took < LONG  # one look at the box, and no help
        await asyncio.wait_for(own_box.reset(), 60)
        assert await usable(own_box)


@pytest.mark.fault(36)
@pytest.mark.usefixtures("much_patience")
async def test_a_cancelled_call_on_a_frozen_box_ends(own_box: RealBox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gymnast.sandbox.host.supervised_executor.MARGIN", 0.5)
    with frozen(own_box):
        running = asyncio.ensure_future(own_box.python("1", timeout=60))
        assert await eventually(lambda: is_busy(own_box), 5)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(running, LONG / 2)
        with pytest.raises(SandboxLostError, match="did not end a cancelled call"):
            await own_box.ping()


@pytest.mark.usefixtures("much_patience")
async def test_a_pool_with_a_frozen_box_lends_another_soon(kind: str) -> None:
    async with ExecutorPool(faults.recipe(kind), max_boxes=1) as pool:
        async with pool.lease() as lease:
            box = lease._box  # type: ignore[attr-defined]
        assert await eventually(lambda: pool.statistics.idle == 1, 10)
        with frozen(box):
            async with pool.lease(timeout=LONG / 2) as lease:  # the ping takes two seconds
                assert await usable(lease)


@pytest.mark.usefixtures("much_patience")
async def test_a_paused_box_is_closed_at_once(image: str, caplog: pytest.LogCaptureFixture) -> None:
    async with DockerExecutor(limits=LIMITS) as box:
        with frozen(box):
            await box.close()
            assert "not known to be gone" not in caplog.text


# --- death of the owner -----------------------------------------------------------------------------------------

OWNER = """
async with make() as box:
    await box.python("1")
    print("ready", flush=True)
    await box.python("import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)\\nwhile True: pass", timeout=600)
"""


@pytest.mark.fault(37)
async def test_the_death_of_the_owner_ends_the_box(kind: str, tmp_path: Path) -> None:
    owner = await asyncio.create_subprocess_exec(
        *faults.owner_program(kind, OWNER), stdout=subprocess.PIPE, env={**os.environ, "TMPDIR": str(tmp_path)}
    )

    def left() -> list[Any]:
        return containers_of(owner.pid) if kind == "docker" else processes_of(tmp_path)

    try:
        assert owner.stdout is not None
        assert await asyncio.wait_for(owner.stdout.readline(), 60) == b"ready\n"
        assert left()
    finally:
        owner.kill()
        await owner.wait()
    assert await eventually(lambda: left() == [], 10)  # within 2 s on an idle machine
    assert await eventually(lambda: os.listdir(tmp_path) == [], 10)


# --- cancellation -----------------------------------------------------------------------------------------------


@pytest.mark.fault(38)
@pytest.mark.parametrize("call", ["python", "bash"])
async def test_a_call_cancelled_before_its_code_has_begun_keeps_the_state(box: RealBox, call: str) -> None:
    """An interruption that arrives too early is repeated."""
    await box.python("kept = 1")
    await box.bash("kept=1")
    for _ in range(5):
        code = "import time; time.sleep(60)" if call == "python" else "sleep 60"
        running = asyncio.ensure_future(getattr(box, call)(code, timeout=60))
        await asyncio.sleep(0)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
    assert (await box.python("kept")).value == "1"
    assert (await box.bash("echo $kept")).stdout == "1\n"
    assert box.retire_reason is None


@pytest.mark.fault(38)
async def test_a_cancelled_reset_leaves_the_box_as_it_was_or_says_so(kind: str) -> None:
    async with faults.recipe(kind, files={"task.txt": "given"}) as box:
        for milliseconds in (0, 1, 2, 3, 4, 5, 6, 8, 10, 15, 20):
            await box.python("kept = 1")
            resetting = asyncio.ensure_future(box.reset())
            await asyncio.sleep(milliseconds / 1000)
            resetting.cancel()
            [ended] = await asyncio.gather(resetting, return_exceptions=True)
            result = await box.python("'kept' in globals()")
            if ended is not None and box.retire_reason is None:
                assert (result.value, result.state_lost) == ("True", False)
            elif ended is not None:
                assert result.state_lost
            if box.retire_reason is None:
                assert [entry.path for entry in await box.list_files()] == ["task.txt"]
            await box.reset()


@pytest.mark.fault(38)
@pytest.mark.usefixtures("nothing_left")
@pytest.mark.parametrize("milliseconds", [0, 15, 60, 120, 200, 350])
async def test_a_start_cancelled_at_any_point_leaves_nothing(
    kind: str, milliseconds: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    box = faults.recipe(kind)
    starting = asyncio.ensure_future(box.start())
    await asyncio.sleep(milliseconds / 1000)
    starting.cancel()
    await asyncio.gather(starting, return_exceptions=True)
    await box.close()
    assert processes_of(tmp_path) == []
    assert os.listdir(tmp_path) == []


@pytest.mark.fault(38)
async def test_a_lease_cancelled_anywhere_is_returned(kind: str) -> None:
    """While it waits for a box, in a call, and while the box is cleaned."""

    async def episode() -> None:
        async with pool.lease(timeout=60) as box:
            await box.python("import time; time.sleep(0.02)")

    async with ExecutorPool(faults.recipe(kind), max_boxes=2, warm=0) as pool:
        for milliseconds in (0, 1, 50, 3, 200, 10, 20, 25, 30):
            episodes = [asyncio.ensure_future(episode()) for _ in range(4)]
            await asyncio.sleep(milliseconds / 1000)
            for running in episodes:
                running.cancel()
            await asyncio.gather(*episodes, return_exceptions=True)
            assert (pool.statistics.leased, pool.statistics.waiting) == (0, 0)
        async with pool.lease(timeout=60) as first, pool.lease(timeout=60) as second:
            assert await usable(first)
            assert await usable(second)


# --- the box's own time -----------------------------------------------------------------------------------------


async def test_a_lifetime_ends_a_call_too(kind: str) -> None:
    limits = dataclasses.replace(faults.recipe(kind).limits, lifetime=2.0)
    async with (DockerExecutor if kind == "docker" else LocalExecutor)(limits=limits) as box:
        result = await box.python("import time\nprint('begun')\ntime.sleep(60)", timeout=60)
        assert (result.status, result.stdout) == (Status.TIMEOUT, "begun\n")
        assert result.duration < 10
        await asyncio.sleep(1)
        with pytest.raises(SandboxLostError):
            await box.ping()


@pytest.mark.usefixtures("nothing_left")
@pytest.mark.parametrize("limit", ["idle", "lifetime"])
async def test_a_box_ends_itself_when_its_time_is_over(kind: str, limit: str) -> None:
    limits = dataclasses.replace(faults.recipe(kind).limits, **{limit: 0.3})
    async with (DockerExecutor if kind == "docker" else LocalExecutor)(limits=limits) as box:
        assert await eventually(lambda: box.retire_reason is not None, 5)
        with pytest.raises(SandboxLostError, match="lifetime or idle time is over"):
            await box.ping()


async def test_a_box_may_live_longer_than_the_kernel_can_wait(kind: str) -> None:
    limits = dataclasses.replace(faults.recipe(kind).limits, lifetime=1e7, idle=1e7)
    async with (DockerExecutor if kind == "docker" else LocalExecutor)(limits=limits) as box:
        assert await usable(box)
        assert await usable(box)


async def test_a_box_whose_answer_is_not_read_ends_with_its_lifetime() -> None:
    async with LocalExecutor(limits=Limits(lifetime=1.0)) as box:
        await box.write_file("large", bytes(8 << 20))
        assert box._box is not None
        transport = box._box.connection._transport
        assert transport is not None
        assert box._process is not None
        transport.pause_reading()
        call = asyncio.create_task(box.read_file("large"))
        process = box._process.popen
        assert await eventually(lambda: process.poll() is not None, 5)
        transport.resume_reading()
        with pytest.raises(SandboxLostError):
            await call
