"""The boxes that an ExecutorPool keeps in advance, those that cannot be made, and the scheduler's own work."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from gymnast.sandbox import ExecutorPool, ImageError, LocalExecutor, SandboxError, ScriptedExecutor

from .boxes import eventually, usable
from .pools import at_rest

# --- warm boxes -------------------------------------------------------------------------------------------------


async def test_an_open_pool_has_its_warm_boxes_and_replaces_them() -> None:
    async with ExecutorPool(LocalExecutor(), max_boxes=3, warm=2, reuse=False) as pool:
        assert (pool.statistics.idle, pool.statistics.created) == (2, 2)
        async with pool.lease(), pool.lease():
            assert await eventually(lambda: pool.statistics.boxes == 3 == pool.statistics.idle + 2, 15)
        assert await at_rest(pool, 2)
        assert pool.statistics.retired == {"reuse=False": 2}


async def test_a_pool_that_nobody_uses_shrinks_to_nothing_and_comes_back() -> None:
    async with ExecutorPool(LocalExecutor(), max_boxes=2, warm=1, idle=0.2) as pool:
        assert await eventually(lambda: pool.statistics.boxes == 0, 10)
        async with pool.lease() as box:
            assert await usable(box)
            assert await eventually(lambda: pool.statistics.idle == 1, 10)
        assert await eventually(lambda: pool.statistics.boxes == 0, 10)
        assert set(pool.statistics.retired) == {"idle"}


async def test_a_warm_box_that_cannot_be_made_is_tried_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    launcher = tmp_path / "python"

    def install() -> None:
        launcher.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
        launcher.chmod(0o755)

    install()
    async with ExecutorPool(LocalExecutor(python=launcher), max_boxes=2) as pool:
        launcher.unlink()
        async with pool.lease() as box:
            assert await eventually(lambda: pool.statistics.failed_creations > 0, 10)
            assert "a spare box could not be made" in caplog.text
            assert await usable(box)
            with pytest.raises(SandboxError):
                async with pool.lease(timeout=30):
                    pass
            install()
            assert await eventually(lambda: pool.statistics.idle == 1, 20)
        assert pool.statistics.failed_creations < 6


async def test_a_spare_box_that_can_never_be_made_is_tried_three_times(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Unmakeable(ScriptedExecutor):
        async def start(self) -> None:
            raise ImageError("no such image")

    monkeypatch.setattr("gymnast.sandbox.pool.spares.PAUSE_SECONDS", 0.001)
    monkeypatch.setattr("gymnast.sandbox.pool.scheduler.TICK_SECONDS", 0.002)
    pool = ExecutorPool(Unmakeable([]), max_boxes=4, warm=1)
    async with pool.lease(ScriptedExecutor([])):
        assert await eventually(lambda: "no other is tried before a lease needs one" in caplog.text, 5)
        assert pool.statistics.failed_creations == 3
        async with pool.lease(ScriptedExecutor([])):  # this looks for missing spare boxes too
            assert (pool.statistics.creating, pool.statistics.failed_creations) == (0, 3)
        with pytest.raises(ImageError, match="no such image"):
            async with pool.lease():
                pass
        assert pool.statistics.failed_creations == 4
    await pool.close()


async def test_waiting_leases_fail_in_order_if_boxes_cannot_be_made() -> None:
    class Unmakeable(ScriptedExecutor):
        async def start(self) -> None:
            await asyncio.sleep(0)
            raise ImageError("no such image")

    told: list[int] = []

    async def episode(number: int) -> None:
        try:
            async with pool.lease():
                pass
        except ImageError:
            told.append(number)

    pool = ExecutorPool(Unmakeable([]), max_boxes=2, warm=0)
    await asyncio.gather(*(episode(number) for number in range(6)))
    await pool.close()
    assert told == list(range(6))


async def test_a_pool_keeps_fresh_boxes_once_they_are_asked_for() -> None:
    """Even while other leases hold or want every box, a fresh one is lent without waiting for its creation."""
    async with contextlib.AsyncExitStack() as leases, ExecutorPool(ScriptedExecutor([]), max_boxes=4, warm=1) as pool:
        async with pool.lease(fresh=True):
            pass
        assert await at_rest(pool, 2)
        for _ in range(3):
            await leases.enter_async_context(pool.lease())
        waiting = asyncio.ensure_future(pool.lease().__aenter__())
        assert await eventually(lambda: pool.statistics.waiting == 1, 5)
        assert (pool.statistics.leased, pool.statistics.idle) == (3, 1)  # the fresh one is held back
        for _ in range(3):
            assert await eventually(lambda: pool.statistics.idle == 1, 5)
            made = pool.statistics.created
            async with pool.lease(fresh=True, priority=True) as box:
                assert await box.list_files() == []
                assert pool.statistics.created == made
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        await leases.aclose()
        assert pool.statistics.timeouts == 0


async def test_unused_fresh_boxes_are_ready_while_others_are_in_use() -> None:
    async with ExecutorPool(ScriptedExecutor([]), max_boxes=5, warm=1) as pool, contextlib.AsyncExitStack() as leases:
        for fresh_ones in range(1, 4):
            await leases.enter_async_context(pool.lease(fresh=True))
            assert await eventually(lambda: pool.statistics.idle == 2, 5)  # an unused one, and one for other leases
            assert pool.statistics.created == fresh_ones + 2  # all but the first lease found it ready


async def test_spare_fresh_boxes_leave_a_box_to_other_leases() -> None:
    async with (
        ExecutorPool(ScriptedExecutor([]), max_boxes=3, warm=2) as pool,
        pool.lease(fresh=True),
        pool.lease(fresh=True),
        pool.lease(timeout=5),
    ):
        assert pool.statistics.leased == 3


async def test_a_fresh_box_that_is_being_made_is_kept_from_other_leases() -> None:
    may_start = asyncio.Event()
    may_start.set()

    class Slow(ScriptedExecutor):
        async def start(self) -> None:
            await may_start.wait()
            await super().start()

    async with ExecutorPool(Slow([]), max_boxes=2, warm=1) as pool:
        async with pool.lease(fresh=True):
            assert await eventually(lambda: pool.statistics.idle == 1, 5)
        assert await at_rest(pool, 2)
        async with pool.lease():
            async with pool.lease(fresh=True):
                may_start.clear()
            waiting = []
            for number in (1, 2):  # the second one comes while a fresh box is being made for graders
                waiting.append(asyncio.ensure_future(pool.lease().__aenter__()))
                assert await eventually(lambda number=number: pool.statistics.waiting == number, 5)
                assert await eventually(lambda: pool.statistics.creating == 1, 5)
            may_start.set()
            async with pool.lease(fresh=True, priority=True, timeout=5):
                assert (pool.statistics.leased, pool.statistics.waiting) == (2, 2)
            for lease in waiting:
                lease.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)


# --- the scheduler's own work -----------------------------------------------------------------------------------


def instructions_per_lease(boxes: int) -> float:
    """The Python instructions that the pool's code runs for a lease, with four times as many leases as boxes.

    They are counted and not timed, so the machine does not matter.
    """
    count = 0
    folder = os.path.dirname(sys.modules[ExecutorPool.__module__].__file__ or "")

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal count
        if not frame.f_code.co_filename.startswith(folder):
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        count += event == "opcode"
        return trace

    async def episode() -> None:
        async with pool.lease():
            for _ in range(3):
                await asyncio.sleep(0)

    async def play() -> None:
        async with pool:
            await asyncio.gather(*(episode() for _ in range(4 * boxes)))
            assert pool.statistics.leases == 4 * boxes

    pool, before = ExecutorPool(ScriptedExecutor([]), max_boxes=boxes), sys.gettrace()
    sys.settrace(trace)
    try:
        asyncio.run(play())
    finally:
        sys.settrace(before)
    return count / (4 * boxes)


def test_the_work_for_a_lease_does_not_grow_with_the_boxes_and_waiters() -> None:
    small, large = instructions_per_lease(4), instructions_per_lease(40)
    assert large < 1.5 * small
