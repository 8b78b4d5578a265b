"""The rules of ExecutorPool, with boxes that are made fast: turns, reuse, numbers, arguments."""

from __future__ import annotations

import asyncio
import gc
import inspect
import weakref
from typing import Any

import pytest

from gymnast.sandbox import (
    Box,
    Executor,
    ExecutorPool,
    Limits,
    LocalExecutor,
    SandboxClosedError,
    SandboxError,
    SandboxTimeoutError,
    ScriptedExecutor,
    pool_of,
)
from gymnast.sandbox.pool.lease import LeasedBox, LeasedExecutor

from . import pools
from .boxes import eventually, usable
from .pools import at_rest, inner

no_process_left = pools.no_process_left


# --- turns ------------------------------------------------------------------------------------------------------


async def test_leases_are_served_in_the_order_in_which_they_came() -> None:
    served: list[int] = []

    async def episode(number: int) -> None:
        async with pool.lease():
            served.append(number)

    async with ExecutorPool(LocalExecutor(), max_boxes=1) as pool:
        await asyncio.gather(*(episode(number) for number in range(12)))
    assert served == list(range(12))


async def test_a_lease_that_gets_no_box_in_time_says_who_has_them() -> None:
    async with ExecutorPool(LocalExecutor(), max_boxes=1, lease_timeout=60) as pool:
        async with pool.lease():
            message = r"within 0\.1 s: 1 of 1 boxes are leased, the longest for 0\.\d s, .* raise max_boxes=1, or run"
            with pytest.raises(SandboxTimeoutError, match=message):
                async with pool.lease(timeout=0.1):
                    pass
            assert (pool.statistics.timeouts, pool.statistics.waiting) == (1, 0)
        async with pool.lease() as box:
            assert await usable(box)


async def test_a_cancelled_lease_costs_no_other_its_place() -> None:
    served: list[int] = []

    async def episode(number: int) -> None:
        async with pool.lease():
            served.append(number)

    async with ExecutorPool(LocalExecutor(), max_boxes=1) as pool:
        async with pool.lease():
            episodes = [asyncio.ensure_future(episode(number)) for number in range(6)]
            assert await eventually(lambda: pool.statistics.waiting == 6, 5)
            episodes[0].cancel()
            episodes[3].cancel()
        await asyncio.gather(*episodes, return_exceptions=True)
    assert served == [1, 2, 4, 5]


async def test_a_lease_with_priority_is_served_before_the_others_and_in_order() -> None:
    served: list[str] = []

    async def episode(name: str) -> None:
        async with pool.lease(priority=name.isupper(), fresh=name == "B"):
            served.append(name)

    async with ExecutorPool(LocalExecutor(), max_boxes=1) as pool:
        async with pool.lease():
            episodes = [asyncio.ensure_future(episode(name)) for name in "aAbBcC"]
            assert await eventually(lambda: pool.statistics.waiting == 6, 5)
        await asyncio.gather(*episodes)
    assert "".join(served) == "ABCabc"


async def test_two_templates_share_the_boxes_and_the_longest_idle_one_makes_room() -> None:
    async with ExecutorPool(LocalExecutor(env={"NAME": "a"}), max_boxes=2, warm=0) as pool:
        for name in "abc":
            async with pool.lease(LocalExecutor(env={"NAME": name})) as box:
                assert (await box.bash("echo $NAME")).stdout == f"{name}\n"
            assert await at_rest(pool, min(2, "abc".index(name) + 1))
        assert pool.statistics.retired == {"evicted": 1}
        async with pool.lease(LocalExecutor(env={"NAME": "b"})):  # its box made room
            assert (pool.statistics.reused, pool.statistics.boxes) == (1, 2)


def test_the_methods_of_a_lease_have_the_signatures_and_texts_of_its_box() -> None:
    for leased, base in ((LeasedExecutor, Executor), (LeasedBox, Box)):
        for name in ("read_file", "write_file"):
            of_lease, of_box = getattr(leased, name), getattr(base, name)
            assert inspect.signature(of_lease) == inspect.signature(of_box)
            assert (of_lease.__name__, of_lease.__doc__) == (name, of_box.__doc__)


# --- reuse ------------------------------------------------------------------------------------------------------


async def test_leases_with_different_files_share_a_box() -> None:
    async with ExecutorPool(ScriptedExecutor([]), max_boxes=1) as pool:
        for name in "abc":
            async with pool.lease(ScriptedExecutor([], files={name: "x", "d/e": name})) as box:
                for _ in range(2):
                    assert [entry.path for entry in await box.list_files()] == [name, "d"]
                    assert await box.read_file("d/e") == name.encode()
                    await box.write_file("more", "y")
                    await box.reset()
        async with pool.lease() as box:
            assert await box.list_files() == []
        assert (pool.statistics.created, pool.statistics.reused) == (1, 3)


async def test_an_ended_lease_refuses_every_call() -> None:
    async with ExecutorPool(LocalExecutor(), max_boxes=1) as pool:
        async with pool.lease() as box:
            with pytest.raises(SandboxClosedError, match="started already"):
                await box.start()
            with pytest.raises(SandboxClosedError, match="leave the `async with"):
                await box.close()
            await box.reset()
            assert await usable(box)
        async with pool.lease() as other:
            for call in (box.python("1"), box.bash("1"), box.reset(), box.ping(), box.read_file("x"),
                         box.write_file("x", ""), box.list_files()):  # fmt: skip
                with pytest.raises(SandboxClosedError, match="lease of this box is over"):
                    await call
            await box.close()
            assert inner(other) is inner(box)
            assert await usable(other)


@pytest.mark.parametrize("call", ["python", "reset"])
async def test_a_box_that_still_runs_a_call_is_not_lent_again(call: str) -> None:
    async with ExecutorPool(LocalExecutor(), max_boxes=1) as pool:
        async with pool.lease() as box:
            running = box.python("while True: pass", timeout=60) if call == "python" else box.reset()
            running = asyncio.ensure_future(running)
            await asyncio.sleep(0)  # it has begun
        async with pool.lease() as other:
            assert inner(other) is not inner(box)
            assert await usable(other)
        with pytest.raises(SandboxError):
            await asyncio.wait_for(running, 10)
        assert pool.statistics.retired == {"call in flight": 1}


@pytest.mark.parametrize("max_boxes", [1, 4])
async def test_a_fresh_box_was_in_no_lease_before(max_boxes: int) -> None:
    seen: list[Executor] = []

    async def episode() -> None:
        async with pool.lease() as box:
            seen.append(inner(box))
        async with pool.lease(fresh=True, priority=True) as box:
            assert inner(box) not in seen
            seen.append(inner(box))
            assert await usable(box)

    async with ExecutorPool(LocalExecutor(), max_boxes=max_boxes) as pool:
        await asyncio.gather(*(episode() for _ in range(8)))
        assert await eventually(lambda: pool.statistics.boxes == pool.statistics.idle <= max_boxes, 15)
        assert pool.statistics.timeouts == 0


async def test_a_box_that_was_lent_as_fresh_is_kept_only_for_waiting_leases() -> None:
    async with ExecutorPool(LocalExecutor(), max_boxes=1, warm=0) as pool:
        async with pool.lease(fresh=True) as box:
            waiting = asyncio.ensure_future(pool.lease().__aenter__())
            assert await eventually(lambda: pool.statistics.waiting == 1, 5)
        assert inner(await waiting) is inner(box)
        assert pool.statistics.retired == {}
    async with ExecutorPool(LocalExecutor(), max_boxes=1, warm=0) as pool:
        async with pool.lease(fresh=True):
            pass
        assert await at_rest(pool, 0)
        assert pool.statistics.retired == {"fresh=True": 1}


class OnlyOneStarts(ScriptedExecutor):
    """Executors of which the first one starts at once, and the others never."""

    starts = 0

    async def start(self) -> None:
        OnlyOneStarts.starts += 1
        if OnlyOneStarts.starts > 1:
            await asyncio.Event().wait()
        await super().start()


async def test_a_box_that_was_lent_as_fresh_serves_a_lease_whose_new_box_is_still_being_made() -> None:
    async with ExecutorPool(OnlyOneStarts([]), max_boxes=2, warm=0) as pool:
        async with pool.lease(fresh=True):
            lease = pool.lease()
            entering = asyncio.ensure_future(lease.__aenter__())
            assert await eventually(lambda: pool.statistics.creating == 1, 5)
        await asyncio.wait_for(entering, 10)
        assert pool.statistics.reused == 1
        await lease.__aexit__(None, None, None)


async def test_a_fresh_box_whose_lease_was_cancelled_goes_to_the_next() -> None:
    async with ExecutorPool(LocalExecutor(), max_boxes=1, warm=0) as pool:
        entering = asyncio.ensure_future(pool.lease(fresh=True).__aenter__())
        assert await eventually(lambda: pool.statistics.creating == 1, 5)
        entering.cancel()
        assert await at_rest(pool, 1)
        async with pool.lease(fresh=True):
            assert pool.statistics.created == 1


async def test_without_reuse_every_box_is_fresh() -> None:
    async with ExecutorPool(LocalExecutor(), max_boxes=1, reuse=False) as pool, pool.lease(fresh=True):
        assert pool.statistics.created == 1  # the warm one


@pytest.mark.parametrize(
    ("options", "reason", "boxes"), [({"reuse": False}, "reuse=False", 4), ({"max_uses": 2}, "max_uses", 2)]
)
async def test_a_box_that_is_used_up_is_replaced(options: dict[str, Any], reason: str, boxes: int) -> None:
    async with ExecutorPool(LocalExecutor(), max_boxes=1, **options) as pool:
        seen = []
        for _ in range(4):
            async with pool.lease() as box:
                seen.append(inner(box))
        assert len(set(seen)) == boxes
        assert await at_rest(pool, 1)
        assert pool.statistics.retired == {reason: boxes}


async def test_a_box_past_half_its_lifetime_is_replaced_so_that_none_dies_under_a_lease() -> None:
    class Mortal(ScriptedExecutor):
        seconds = 3600.0

        @property
        def lifetime(self) -> float:
            return self.seconds

    async with ExecutorPool(Mortal([]), max_boxes=1) as pool:
        async with pool.lease() as box:
            Mortal.seconds = 1e-9  # half of it has passed during the lease
        Mortal.seconds = 3600.0
        async with pool.lease() as other:
            assert inner(other) is not inner(box)
        assert await at_rest(pool, 1)
        Mortal.seconds = 1e-9  # and while the box is idle
        async with pool.lease() as box:
            assert inner(box) is not inner(other)
            assert pool.statistics.retired == {"age": 2}


# --- numbers and arguments --------------------------------------------------------------------------------------


async def test_the_numbers_add_up() -> None:
    async def episode() -> None:
        async with pool.lease() as box:
            await box.python("1")

    async with ExecutorPool(LocalExecutor(), max_boxes=2, max_uses=5) as pool:
        await asyncio.gather(*(episode() for _ in range(20)))
        assert await at_rest(pool)
        now = pool.statistics
        assert (now.leases, now.leased, now.waiting, now.creating) == (20, 0, 0, 0)
        assert now.created == now.boxes + now.retired.total()
        assert now.wait_seconds > 0
    closed = pool.statistics
    assert (closed.boxes, closed.created) == (0, closed.retired.total())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"max_boxes": 0}, "max_boxes must be at least 1"),
        ({"max_boxes": 2, "warm": 3}, "warm must be from 0 to max_boxes=2"),
        ({"max_uses": 0}, "max_uses must be at least 1"),
        ({"lease_timeout": 0}, "lease_timeout must be a positive"),
        ({"idle": float("inf")}, "^idle must be a positive"),
    ],
)
def test_arguments_are_checked(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ExecutorPool(LocalExecutor(), **arguments)


def test_arguments_are_numbers() -> None:
    for arguments in ({"max_boxes": 2.5}, {"warm": "1"}, {"max_uses": None}):
        with pytest.raises(TypeError, match=f"{next(iter(arguments))} must be a whole number, got "):
            ExecutorPool(LocalExecutor(), **arguments)  # type: ignore[arg-type]
    for arguments in ({"lease_timeout": "3"}, {"idle": None}):
        with pytest.raises(TypeError, match=f"{next(iter(arguments))} must be a number of seconds, got "):
            ExecutorPool(LocalExecutor(), **arguments)  # type: ignore[arg-type]


async def test_a_template_is_an_executor_that_was_not_started() -> None:
    with pytest.raises(TypeError, match="Executor"):
        ExecutorPool("python:3.12")  # type: ignore[arg-type]
    async with LocalExecutor() as box:
        with pytest.raises(ValueError, match="not started"):
            ExecutorPool(box)


def test_an_executor_has_one_pool_which_goes_with_it() -> None:
    executor = LocalExecutor(limits=Limits())
    assert pool_of(executor) is pool_of(executor)
    assert pool_of(executor.clone()) is not pool_of(executor)
    pool = weakref.ref(pool_of(executor))
    del executor
    gc.collect()
    assert pool() is None
