"""The boxes that an ExecutorPool keeps in advance, those that cannot be made, and the scheduler's own work."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from gymnast.sandbox import (
    ExecutionResult,
    ExecutorPool,
    ImageError,
    LocalExecutor,
    SandboxError,
    ScriptedExecutor,
    Status,
)

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
            async with pool.lease():  # this gets a new box, so spare boxes are made again
                pass
            assert await eventually(lambda: pool.statistics.idle == 1, 20)
        assert pool.statistics.failed_creations == 2  # the spare box's, and the lease's


async def test_a_spare_box_that_can_never_be_made_is_tried_once(caplog: pytest.LogCaptureFixture) -> None:
    class Unmakeable(ScriptedExecutor):
        async def start(self) -> None:
            raise ImageError("no such image")

    pool = ExecutorPool(Unmakeable([]), max_boxes=4, warm=1)
    async with pool.lease(ScriptedExecutor([])):
        assert await eventually(lambda: "no other is tried before a lease gets a new one" in caplog.text, 5)
        assert pool.statistics.failed_creations == 1
        async with pool.lease(ScriptedExecutor([])):  # this looks for missing spare boxes too
            assert (pool.statistics.creating, pool.statistics.failed_creations) == (0, 1)
        with pytest.raises(ImageError, match="no such image"):
            async with pool.lease():
                pass
        assert pool.statistics.failed_creations == 2
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


# --- the scheduler's own work -----------------------------------------------------------------------------------


def instructions_per_lease(boxes: int, templates: int = 1) -> float:
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

    async def episode(number: int) -> None:
        result = ExecutionResult(status=Status.OK, stdout=str(number % templates))  # part of the template's key
        async with pool.lease(ScriptedExecutor([result])):
            for _ in range(3):
                await asyncio.sleep(0)

    async def play() -> None:
        async with pool:
            await asyncio.gather(*map(episode, range(4 * boxes)))
            assert pool.statistics.leases == 4 * boxes

    pool, before = ExecutorPool(ScriptedExecutor([]), max_boxes=boxes), sys.gettrace()
    sys.settrace(trace)
    try:
        asyncio.run(play())
    finally:
        sys.settrace(before)
    return count / (4 * boxes)


@pytest.mark.parametrize("templates", [(1, 1), (8, 80)])
def test_the_work_for_a_lease_does_not_grow_with_boxes_waiters_and_templates(templates: tuple[int, int]) -> None:
    small, large = instructions_per_lease(4, templates[0]), instructions_per_lease(40, templates[1])
    assert large < 1.5 * small
