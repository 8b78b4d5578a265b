"""An ExecutorPool and its event loop, and how both end."""

from __future__ import annotations

import asyncio
import gc
import os
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import AsyncIterator, Callable
from typing import cast

import pytest

from gymnast.sandbox import (
    DockerExecutor,
    Executor,
    ExecutorPool,
    LocalExecutor,
    PoolLoopError,
    SandboxClosedError,
    SandboxError,
    ScriptedExecutor,
    pool_of,
)

from . import pools
from .boxes import eventually, usable
from .pools import inner

no_process_left = pools.no_process_left


# --- event loops ------------------------------------------------------------------------------------------------


def test_a_pool_is_closed_from_another_loop_and_opened_there() -> None:
    pool = ExecutorPool(LocalExecutor(), max_boxes=2)
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        asyncio.run_coroutine_threadsafe(pool.open(), loop).result(30)

        async def here() -> None:
            with pytest.raises(PoolLoopError, match="event loop that first leased from it"):
                async with pool.lease():
                    pass
            await pool.close()
            assert pool.statistics.boxes == 0
            async with pool, pool.lease() as box:
                assert await usable(box)

        asyncio.run(here())
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
    assert pool.statistics.leases == 1


@pytest.mark.parametrize("executor", [LocalExecutor, DockerExecutor])
def test_a_pool_whose_loop_ends_before_it_is_closed_leaves_nothing(
    executor: Callable[[], Executor], caplog: pytest.LogCaptureFixture
) -> None:
    def held() -> set[str]:
        gc.collect()
        return {f"{kind} {item}" for kind in ("fd", "task") for item in os.listdir(f"/proc/self/{kind}")}

    async def use() -> None:
        async with pool.lease(fresh=True) as box:
            assert await usable(box)  # the loop ends while this box is closed, and spare ones are made

    pool, before = ExecutorPool(executor(), max_boxes=3, warm=1), held()
    for _ in range(2):
        asyncio.run(use())
        assert pool.statistics.boxes == 0
    deadline = time.monotonic() + 10
    while (left := held() - before) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert left == set()
    assert "destroyed" not in caplog.text


@pytest.mark.parametrize("passes", range(5))
def test_a_pool_whose_loop_ends_while_it_is_being_closed_is_closed_and_may_be_opened_again(passes: int) -> None:
    async def use(pool: ExecutorPool) -> None:
        await pool.open()
        tasks.append(asyncio.ensure_future(pool.close()))
        for _ in range(passes):  # of the event loop
            await asyncio.sleep(0)

    pool, tasks = ExecutorPool(ScriptedExecutor([])), list[asyncio.Task[None]]()
    for _ in range(2):
        asyncio.run(use(pool))
        assert pool.statistics.boxes == 0
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        del pool
        gc.collect()
    assert found == []


def test_a_generator_that_closes_a_pool_when_its_loop_ends_waits_for_the_boxes(
    caplog: pytest.LogCaptureFixture,
) -> None:
    left: list[int] = []

    async def hold() -> AsyncIterator[None]:
        try:
            async with pool:
                yield
        finally:
            left.append(pool.statistics.boxes)

    async def use() -> None:
        await anext(holder)

    pool = ExecutorPool(LocalExecutor())
    holder = hold()
    asyncio.run(use())
    gc.collect()
    assert (left, caplog.text) == ([0], "")


@pytest.mark.parametrize(("make", "warnings_of_it"), [(ExecutorPool, 1), (pool_of, 0)])
async def test_a_pool_that_is_dropped_while_its_loop_runs_is_closed(
    make: Callable[[Executor], ExecutorPool], warnings_of_it: int, caplog: pytest.LogCaptureFixture
) -> None:
    before, executor = asyncio.all_tasks(), LocalExecutor()
    pool = make(executor)
    async with pool.lease() as box:
        workspace = cast(LocalExecutor, inner(box)).workspace
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        del executor, pool
        gc.collect()
        assert await eventually(lambda: not workspace.exists() and asyncio.all_tasks() <= before, 10)
    assert [(warning.category, "was dropped while it was open" in str(warning.message)) for warning in found] == [
        (ResourceWarning, True)
    ] * warnings_of_it
    assert caplog.text == ""


def test_a_pool_whose_loop_stands_still_says_so() -> None:
    async def use() -> None:
        async with pool.lease():
            pass

    pool, loop = ExecutorPool(ScriptedExecutor([]), max_boxes=1), asyncio.new_event_loop()
    loop.run_until_complete(use())
    with pytest.raises(PoolLoopError, match="close a pool in its own loop"):
        asyncio.run(pool.close())
    loop.run_until_complete(eventually(lambda: len(asyncio.all_tasks(loop)) == 1, 5))  # the boxes are closed after all
    loop.close()


@pytest.mark.parametrize("executor", ["LocalExecutor", "DockerExecutor"])
def test_a_program_that_ends_with_a_pool_in_a_background_loop_ends_quietly(executor: str) -> None:
    program = (
        "from gymnast.envs.runtime.threads import run_in_loop\n"
        f"from gymnast.sandbox import ExecutorPool, {executor}\n"
        f"pool = ExecutorPool({executor}())\n"
        "run_in_loop(pool.open())\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


async def test_closing_ends_leases_and_waiting_and_may_be_repeated() -> None:
    pool = ExecutorPool(LocalExecutor(), max_boxes=1)
    async with pool.lease() as box:
        waiting = asyncio.ensure_future(pool.lease().__aenter__())
        running = asyncio.ensure_future(box.python("while True: pass", timeout=60))
        assert await eventually(lambda: pool.statistics.waiting == 1, 5)
        await asyncio.gather(pool.close(), pool.close())
        with pytest.raises(SandboxError):
            await asyncio.wait_for(running, 10)
        with pytest.raises(SandboxClosedError, match="closed while"):
            await waiting
        with pytest.raises(SandboxClosedError, match="was closed"):
            await box.python("1")
        assert pool.statistics.boxes == 0
    await pool.close()
    async with pool.lease() as box:  # it opens again
        assert await usable(box)
    await pool.close()
