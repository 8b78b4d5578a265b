"""What a pool's scheduler takes, and how often a box serves again, with boxes that cost nothing.

    python -m benchmarks.sandbox.pool [--quick]

plays four times as many episodes as there are boxes, all at once, or sixteen times where there are several images.
Eight neighbours share an image. An episode holds its box for 0 to 8 or 2 seconds. It prints a table and writes
benchmarks/results/pool.json. It fails if the scheduler takes more of the wall time than its target, if too few leases
get a used box, or if slow images hold up the leases of ready ones.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import random
import sys
import time
from collections.abc import Callable, Hashable
from pathlib import Path
from typing import Any

from gymnast.sandbox import ExecutorPool, ScriptedExecutor
from gymnast.sandbox.pool.boxes import Boxes
from gymnast.sandbox.pool.scheduler import Scheduler

RESULTS = Path(__file__).parents[1] / "results" / "pool.json"
EPISODE_SECONDS = 8.0, 2.0  # with one image, and with several; at most
SIZES = ((64, 1), (128, 1), (256, 1), (256, 64), (256, 1000))  # boxes and images
GROUP = 8  # episodes of one image side by side
TARGETS = {1: 1.0, 64: 3.0, 1000: 4.0}  # by images: percent of the wall time in the scheduler, at most
REUSE = 60.0  # percent of the leases of 64 images that get a used box, at least
SLOW, SLOW_SECONDS = 4, 3.0  # images whose preparation takes long
ADDED = 50.0  # milliseconds that they add to the leases of ready images, at most
EVENTS = {  # every function by which an event enters the pool's code
    Scheduler: ("_advance", "release", "_leave", "_tick"),
    Boxes: ("_step_done", "_disposed"),
}


class Delayed(ScriptedExecutor):
    """A box that takes a moment to start and to be reset, and none of the processor's time."""

    def __init__(self, image: int = 0) -> None:
        super().__init__([])
        self.image = image

    @property
    def key(self) -> Hashable:
        return self.image

    @property
    def creators(self) -> int:
        return 64

    async def start(self) -> None:
        await asyncio.sleep(0.3)
        await super().start()

    async def reset(self) -> None:
        await asyncio.sleep(0.006)
        await super().reset()


class Slow(Delayed):
    """A box whose image has to be built."""

    async def prepare(self) -> None:
        await asyncio.sleep(SLOW_SECONDS)


class Clock:
    """The processor's seconds spent in the functions that it wraps, and in the longest single call."""

    def __init__(self) -> None:
        self.seconds = self.longest = 0.0
        self._depth = 0

    def wrap(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*arguments: Any, **options: Any) -> Any:
            self._depth += 1
            started = time.thread_time()
            try:
                return function(*arguments, **options)
            finally:
                self._depth -= 1
                if not self._depth:
                    passed = time.thread_time() - started
                    self.seconds += passed
                    self.longest = max(self.longest, passed)

        return timed


async def play(boxes: int, images: int) -> dict[str, float]:
    """Play all episodes."""
    chance = random.Random(0)

    async def episode(image: int, length: float) -> None:
        async with pool.lease(Delayed(image)):
            await asyncio.sleep(length)

    leases = boxes * (4 if images == 1 else 16)
    drawn = [chance.randrange(images) for _ in range(leases // GROUP)]
    started = time.perf_counter()
    async with ExecutorPool(Delayed(), max_boxes=boxes, warm=1, max_uses=16) as pool:
        await asyncio.gather(
            *(episode(image, chance.uniform(0, EPISODE_SECONDS[images > 1])) for image in drawn for _ in range(GROUP))
        )
        passed, numbers = time.perf_counter() - started, pool.statistics
    assert numbers.leases == leases
    return {"leases": leases, "wall_seconds": passed, "reused_percent": 100 * numbers.reused / leases}


def measure(boxes: int, images: int) -> dict[str, float]:
    clock, originals = Clock(), [(kind, name, getattr(kind, name)) for kind, names in EVENTS.items() for name in names]
    for kind, name, function in originals:
        setattr(kind, name, clock.wrap(function))
    try:
        played = asyncio.run(play(boxes, images))
    finally:
        for kind, name, function in originals:
            setattr(kind, name, function)
    figures = {
        **played,
        "scheduler_percent": 100 * clock.seconds / played["wall_seconds"],
        "scheduler_microseconds_per_lease": 1e6 * clock.seconds / played["leases"],
        "longest_call_milliseconds": 1e3 * clock.longest,
    }
    return {"boxes": boxes, "images": images, **{name: round(value, 3) for name, value in figures.items()}}


async def added_by_slow_images() -> float:
    """Return the milliseconds that slow images add to the slowest of 64 leases of ready images."""

    async def lease(executor: Delayed) -> float:
        started = time.perf_counter()
        async with pool.lease(executor):
            return time.perf_counter() - started

    slowest = []
    for slow in (0, SLOW):
        async with ExecutorPool(Delayed(), max_boxes=8, warm=0) as pool:
            async with asyncio.TaskGroup() as group:
                for image in range(slow):
                    group.create_task(lease(Slow(100 + image)))
                ready = [group.create_task(lease(Delayed(number % 4))) for number in range(64)]
            slowest.append(max(task.result() for task in ready))
    return round(1e3 * (slowest[1] - slowest[0]), 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=RESULTS)
    parser.add_argument("--quick", action="store_true", help="the smallest pool only, and no file")
    arguments = parser.parse_args()
    results, faults = [], []
    for boxes, images in SIZES[:1] if arguments.quick else SIZES:
        results.append(measure(boxes, images))
        print("  ".join(f"{name} {value:g}" for name, value in results[-1].items()), flush=True)
        if results[-1]["scheduler_percent"] > TARGETS[images]:
            faults.append(f"the scheduler takes over {TARGETS[images]:g} % of the wall time with {images} images")
        if images == 64 and results[-1]["reused_percent"] < REUSE:
            faults.append(f"under {REUSE:g} % of the leases got a used box")
    added = asyncio.run(added_by_slow_images())
    print(f"{SLOW} images that take {SLOW_SECONDS:g} s add {added:g} ms to leases of ready ones (target: {ADDED:g})")
    if added > ADDED:
        faults.append(f"slow images add over {ADDED:g} ms to leases of ready ones")
    if not arguments.quick:
        machine = {"cores": os.cpu_count(), "python": platform.python_version()}
        found = {"machine": machine, "results": results, "added_by_slow_images_milliseconds": added}
        arguments.output.write_text(json.dumps(found, indent=2) + "\n")
    if faults:
        sys.exit("; ".join(faults))


if __name__ == "__main__":
    main()
