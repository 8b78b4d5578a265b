"""ExecutorPool over Docker boxes: separation of leases, faults, cancellation, many at once."""

from __future__ import annotations

import asyncio
import subprocess
import time
from typing import Any

import pytest

from gymnast.sandbox import (
    DockerExecutor,
    Engine,
    EngineError,
    Executor,
    ExecutorPool,
    ImageError,
    Limits,
    SandboxLostError,
    Status,
)
from gymnast.sandbox.docker.client import Launched

from ..sandbox.boxes import own_containers, usable
from ..sandbox.pools import at_rest, inner

pytestmark = [pytest.mark.usefixtures("nothing_left")]

LIMITS = Limits(memory="128m", workspace="32m", tmp="16m", shm="8m", grace=0.3)


def template(**arguments: object) -> DockerExecutor:
    return DockerExecutor(limits=LIMITS, **arguments)  # type: ignore[arg-type]


def container_of(box: Executor) -> str:
    executor = inner(box)
    assert isinstance(executor, DockerExecutor)
    assert executor._launched is not None
    return executor._launched.container


def docker(*arguments: str) -> None:
    subprocess.run(["docker", *arguments], check=True, capture_output=True)


async def test_nothing_crosses_from_lease_to_lease() -> None:
    async with ExecutorPool(template(files={"task.txt": "base"}), max_boxes=1) as pool:
        async with pool.lease() as box:
            first = container_of(box)
            await box.write_file("task.txt", "changed")
            await box.python("import os; x = 1; os.environ['Z'] = '1'; os.umask(0o77); os.chdir('/tmp')")
            await box.bash("a=1; cd /tmp; umask 0; touch f /dev/shm/g; sleep 1000 & (setsid sleep 1001 &)")
        async with pool.lease() as box:
            assert container_of(box) == first
            assert await box.read_file("task.txt") == b"base"
            assert [entry.path for entry in await box.list_files()] == ["task.txt"]
            assert await box.list_files("/tmp") == await box.list_files("/dev/shm") == []
            check = "import os; ('x' in globals(), os.environ.get('Z'), os.umask(0o22), os.getcwd())"
            assert (await box.python(check)).value == "(False, None, 18, '/workspace')"
            assert (await box.bash('echo "$a"; pwd; pgrep sleep; umask')).stdout.split() == ["/workspace", "0022"]
        assert pool.statistics.reused == 1


# --- faults -----------------------------------------------------------------------------------------------------


async def test_an_idle_box_that_is_dead_is_replaced_before_a_lease_gets_it() -> None:
    async with ExecutorPool(template(), max_boxes=1) as pool:
        async with pool.lease() as box:
            first = container_of(box)
        assert await at_rest(pool)
        docker("rm", "-f", first)
        started = time.monotonic()
        async with pool.lease() as box:
            assert time.monotonic() - started < 30  # two waits for an answer, and one for the end of the container
            assert container_of(box) != first
            assert await usable(box)
        assert pool.statistics.retired.total() == 1


async def test_a_box_that_dies_under_a_lease_fails_its_calls_and_no_other_lease() -> None:
    async with ExecutorPool(template(), max_boxes=1) as pool:
        async with pool.lease() as box:
            docker("rm", "-f", container_of(box))
            with pytest.raises(SandboxLostError):
                await box.python("1", timeout=5)
        async with pool.lease() as box:
            assert await usable(box)
        assert pool.statistics.retired == {"lost": 1}


async def test_a_box_that_ran_out_of_memory_is_replaced() -> None:
    async with ExecutorPool(template(), max_boxes=1) as pool:
        async with pool.lease() as box:
            first = container_of(box)
            assert (await box.python("x = bytearray(1 << 30)", timeout=20)).status is Status.OOM
        async with pool.lease() as box:
            assert container_of(box) != first
        assert pool.statistics.retired == {"oom": 1}


async def test_a_container_that_is_killed_while_it_starts_costs_no_lease() -> None:
    class Unlucky(Engine):
        killed = 0

        async def launch(self, name: str, config: dict[str, Any], *, best_effort: bool = False) -> Launched:
            launched = await super().launch(name, config, best_effort=best_effort)
            if self.killed < 1:
                self.killed += 1
                await self.call(self.client.api.kill, launched.container)
            return launched

    engine = Unlucky()
    async with ExecutorPool(template(engine=engine), max_boxes=1, warm=0) as pool, pool.lease(timeout=60) as box:
        assert await usable(box)
        assert pool.statistics.failed_creations == engine.killed == 1


async def test_an_engine_that_makes_no_box_is_asked_twice_for_a_lease() -> None:
    async with ExecutorPool(template(network="nonsense"), max_boxes=1, warm=0) as pool:
        with pytest.raises(EngineError, match="nonsense"):
            async with pool.lease(timeout=60):
                pass
        assert pool.statistics.failed_creations == 2


async def test_an_image_that_is_missing_fails_its_own_lease_at_once_and_no_other() -> None:
    async with ExecutorPool(template(), max_boxes=1) as pool:
        with pytest.raises(ImageError, match="no-such-image"):
            async with pool.lease(template(image="no-such-image", pull="never"), timeout=30):
                pass
        async with pool.lease(timeout=30) as box:
            assert await usable(box)
        assert pool.statistics.failed_creations == 1


async def test_opening_a_pool_that_can_make_no_box_fails() -> None:
    pool = ExecutorPool(template(image="no-such-image", pull="never"))
    with pytest.raises(ImageError, match="no-such-image"):
        await pool.open()
    assert pool.statistics.boxes == 0


# --- cancellation -----------------------------------------------------------------------------------------------


# --- event loops ------------------------------------------------------------------------------------------------


async def test_a_pool_is_closed_when_its_event_loop_ends_and_serves_the_next_one() -> None:
    async def use() -> None:
        async with pool.lease() as box:
            assert await usable(box)

    pool = ExecutorPool(template(), max_boxes=1)
    for _ in range(2):
        await asyncio.to_thread(asyncio.run, use())
        assert pool.statistics.boxes == 0
    assert pool.statistics.leases == 2


# --- many -------------------------------------------------------------------------------------------------------


async def test_of_64_leases_at_once_few_boxes_are_made_at_a_time(engine: Engine) -> None:
    async def episode() -> None:
        async with pool.lease() as box:
            assert await usable(box)

    pool = ExecutorPool(template(engine=engine), max_boxes=12)
    episodes = asyncio.gather(*(episode() for _ in range(64)))
    unready = []
    try:
        while not episodes.done():
            there = await asyncio.to_thread(own_containers)
            unready.append(len(there) - pool.statistics.created)
        await episodes
        assert max(unready) <= engine.creators
        assert pool.statistics.created <= 12
        assert pool.statistics.leases == 64
    finally:
        await pool.close()


async def test_hundreds_of_episodes_on_a_few_boxes() -> None:
    numbers = iter(range(300))

    async def worker() -> None:
        for number in numbers:
            async with pool.lease() as box:
                await box.write_file("number", str(number))
                assert (await box.python(f"x = {number}; 'y' in globals()")).value == "False"
                assert (await box.python("y = 1; x, open('number').read()")).value == f"({number}, '{number}')"

    async with ExecutorPool(template(), max_boxes=4, max_uses=40) as pool:
        await asyncio.gather(*(worker() for _ in range(32)))
        assert await at_rest(pool)
        now = pool.statistics
        assert (now.leases, now.timeouts, now.failed_creations) == (300, 0, 0)
        assert set(now.retired) == {"max_uses"}
        assert now.retired["max_uses"] >= 4  # 300 leases need eight boxes, of which four may be left
        assert now.created == now.boxes + now.retired.total()
