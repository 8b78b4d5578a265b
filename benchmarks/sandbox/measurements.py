"""Our own measurements of the sandbox benchmark; each returns its figure and the details that explain it."""

from __future__ import annotations

import asyncio
import json
import statistics
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager

from gymnast.sandbox import BwrapExecutor, DockerExecutor, Engine, Executor, ExecutorPool, LocalExecutor

from ..figures import Values
from .child import BOXES
from .echo import echo_rate, echo_seconds, start_seconds
from .images import folder, many_images, slow_images
from .left_behind import LeftBehind, containers_of, own_containers
from .machines import machines
from .processes import left_after_kill, output_of

CHILD = [sys.executable, "-m", "benchmarks.sandbox.child"]
CHILD_SECONDS = 90.0
COUNT = "counter += 1\ncounter"


async def round_trip(quick: bool, make: Callable[[], Executor] = DockerExecutor) -> Values:
    """One small execution after the other, with its state, in one box."""
    async with make() as box:
        await box.python("counter = 0")
        for _ in range(100):
            await box.python(COUNT)
        seconds = []
        for _ in range(200 if quick else 3000):
            started = time.perf_counter()
            result = await box.python(COUNT)
            seconds.append(time.perf_counter() - started)
            assert result.value == str(100 + len(seconds)), result
    return {"round_trip": statistics.median(seconds) * 1e3, "round_trip_p99": _percentile(seconds, 99) * 1e3}


async def echo(quick: bool) -> Values:
    """The engine's part of a round trip: `cat` in a container like a box, through the same kind of socket."""
    seconds = await echo_seconds(200 if quick else 3000)
    return {"echo": statistics.median(seconds) * 1e3, "echo_p99": _percentile(seconds, 99) * 1e3}


async def echoes(quick: bool) -> Values:
    """The engine's part of the throughput."""
    return {"echoes": await echo_rate(4, 1.0) if quick else await echo_rate(32, 5.0)}


async def bare_start(quick: bool) -> Values:
    """The engine's part of a cold start."""
    seconds = await start_seconds(3 if quick else 11)
    return {"bare_start": statistics.median(seconds[1:]) * 1e3}  # the first imports docker-py


async def throughput(quick: bool) -> Values:
    """Executions in 32 boxes at a time, from one event loop."""
    seconds, elapsed = await _executions(quick)
    return {
        "throughput": len(seconds) / elapsed,
        "throughput_p50": statistics.median(seconds) * 1e3,
        "throughput_p99": _percentile(seconds, 99) * 1e3,
    }


async def _executions(quick: bool) -> tuple[list[float], float]:
    """How long each execution took, and all of them together."""
    count, duration = (4, 1.0) if quick else (32, 5.0)
    async with _boxes(count) as boxes:

        async def work(box: Executor, duration: float) -> list[float]:
            await box.python("counter = 0")
            seconds, ends = [], time.perf_counter() + duration
            while (started := time.perf_counter()) < ends:
                result = await box.python(COUNT)
                seconds.append(time.perf_counter() - started)
                assert result.value == str(len(seconds)), result
            return seconds

        await asyncio.gather(*(work(box, 0.5) for box in boxes))
        started = time.perf_counter()
        seconds_by_box = await asyncio.gather(*(work(box, duration) for box in boxes))
        elapsed = time.perf_counter() - started
    return [took for seconds in seconds_by_box for took in seconds], elapsed


async def lease(quick: bool) -> Values:
    """From asking a warm pool to holding a clean box, with a little work in each lease."""
    seconds = []
    async with ExecutorPool(DockerExecutor(), max_boxes=4, warm=4) as pool:
        for _ in range(20 if quick else 300):
            started = time.perf_counter()
            async with pool.lease() as box:
                seconds.append(time.perf_counter() - started)
                result = await box.python("seen = 'seen' in globals()\nseen")
                assert result.value == "False", result
    return {"lease": statistics.median(seconds) * 1e3, "lease_p99": _percentile(seconds, 99) * 1e3}


async def reset(quick: bool, make: Callable[[], Executor] = DockerExecutor) -> Values:
    """From a used box, with a file and a process left behind, to the first answer of a fresh session."""
    seconds = []
    async with make() as box:
        for _ in range(10 if quick else 100):
            await box.python("import os\nsecret = 1")
            await box.bash("echo secret > file; sleep 1000 & cd /tmp")
            started = time.perf_counter()
            await box.reset()
            result = await box.python("'secret' in globals(), __import__('os').listdir()")
            seconds.append(time.perf_counter() - started)
            assert result.value == "(False, [])", result
    return {"reset": statistics.median(seconds) * 1e3, "reset_p99": _percentile(seconds, 99) * 1e3}


async def cold_start(quick: bool, make: Callable[[], Executor] = DockerExecutor) -> Values:
    """From nothing to the first answer, with a connection to the engine of its own."""
    seconds = []
    for _ in range(3 if quick else 11):
        started = time.perf_counter()
        async with make() as box:
            await box.python("1")
            seconds.append(time.perf_counter() - started)
    del seconds[0]  # imports docker-py
    return {"cold_start": statistics.median(seconds) * 1e3, "cold_start_worst": max(seconds) * 1e3}


async def without_docker(quick: bool) -> Values:
    """The same three figures of the executors that need no engine."""
    values: Values = {}
    for name, make in (("bwrap", BwrapExecutor), ("local", LocalExecutor)):
        for measurement in (round_trip, reset, cold_start):
            values |= {f"{name}_{key}": value for key, value in (await measurement(quick, make)).items()}
    return values


async def output(quick: bool) -> Values:
    """What 500 MB of output cost the process that reads it."""
    return json.loads(await asyncio.to_thread(output_of, [*CHILD, "flood"], CHILD_SECONDS))


async def orphans(quick: bool) -> Values:
    """Containers left 2 s after their owner was killed."""
    async with Engine() as engine:

        def left(owner: int) -> int:
            return len(containers_of(engine, owner))

        return {"orphans": await asyncio.to_thread(left_after_kill, [*CHILD, "owner"], CHILD_SECONDS, BOXES, left)}


async def episodes(quick: bool) -> Values:
    """Many short episodes over one pool: the errors, and the resources left behind."""
    side_by_side, count = (8, 50) if quick else (64, 1000)
    numbers, errors = iter(range(count)), []
    left_behind = LeftBehind()
    pool = ExecutorPool(DockerExecutor(), max_boxes=side_by_side, warm=1)
    started = time.perf_counter()

    async def player() -> None:
        for number in numbers:
            try:
                async with pool.lease() as box:
                    await _play(box, number)
            except Exception as error:
                errors.append(f"episode {number}: {type(error).__name__}: {error}")

    async with pool:
        await asyncio.gather(*(player() for _ in range(side_by_side)))
        elapsed = time.perf_counter() - started
        made = pool.statistics.created
        async with Engine() as engine:
            assert await own_containers(engine), "the engine lists no container of a pool that has some"
    async with Engine() as engine:
        left = await own_containers(engine)
    left += await left_behind.after(5.0)
    return {
        "episodes": len(errors) + len(left),
        "episodes_played": count,
        "episodes_side_by_side": side_by_side,
        "episodes_errors": len(errors),
        "episodes_left": len(left),
        "episodes_boxes_made": made,
        "episodes_seconds": elapsed,
        **({"episodes_first_error": errors[0]} if errors else {}),
        **({"episodes_left_are": "; ".join(left)[:1000]} if left else {}),
    }


MEASUREMENTS: tuple[Callable[[bool], Awaitable[Values]], ...] = (
    round_trip,
    echo,
    throughput,
    echoes,
    lease,
    reset,
    cold_start,
    without_docker,
    bare_start,
    output,
    orphans,
    episodes,
    many_images,
    slow_images,
    folder,
    machines,
)


async def _play(box: Executor, number: int) -> None:
    """One episode; fails if it meets another one's traces, or gets another one's answers."""
    fresh = await box.python("'task' in globals(), __import__('os').listdir()")
    assert fresh.value == "(False, [])", fresh
    await box.write_file("task.txt", str(number))
    await box.python("task = int(open('task.txt').read())")
    shell = await box.bash("cat task.txt")
    assert shell.stdout == str(number), shell
    answer = await box.python("task + 1")
    assert answer.value == str(number + 1), answer


@asynccontextmanager
async def _boxes(count: int) -> AsyncIterator[list[DockerExecutor]]:
    """Boxes that share an engine, started side by side."""
    recipe = DockerExecutor()
    boxes = [recipe.clone() for _ in range(count)]
    async with AsyncExitStack() as stack:
        for box in boxes:
            stack.push_async_callback(box.close)
        await asyncio.gather(*(box.start() for box in boxes))
        yield boxes


def _percentile(values: list[float], percent: int) -> float:
    return statistics.quantiles(values, n=100)[percent - 1]
