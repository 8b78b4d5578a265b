"""The share of the event loop that a pool's scheduler takes, with boxes that cost nothing.

    python -m benchmarks.sandbox.pool [--quick]

plays four times as many episodes as there are boxes, all at once; an episode holds its box for 0 to 8 seconds. It
prints a table and writes benchmarks/results/pool.json. It fails if the scheduler takes more than 1 % of the wall time.
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
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gymnast.sandbox import ExecutorPool, ScriptedExecutor
from gymnast.sandbox.pool.boxes import Boxes
from gymnast.sandbox.pool.scheduler import Scheduler

RESULTS = Path(__file__).parents[1] / "results" / "pool.json"
SIZES = (64, 128, 256)
EPISODE_SECONDS = 8.0  # at most
TARGET = 1.0  # percent of the wall time
EVENTS = {  # every function by which an event enters the pool's code
    Scheduler: ("_advance", "release", "_leave", "_tick"),
    Boxes: ("_step_done", "_disposed"),
}


class Delayed(ScriptedExecutor):
    """A box that takes a moment to start and to be reset, and none of the processor's time."""

    @property
    def creators(self) -> int:
        return 64

    async def start(self) -> None:
        await asyncio.sleep(0.3)
        await super().start()

    async def reset(self) -> None:
        await asyncio.sleep(0.006)
        await super().reset()


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


async def play(boxes: int) -> float:
    """Play all episodes; returns the seconds that it took."""
    seconds = random.Random(0)

    async def episode(length: float) -> None:
        async with pool.lease():
            await asyncio.sleep(length)

    started = time.perf_counter()
    async with ExecutorPool(Delayed([]), max_boxes=boxes, warm=1, max_uses=16) as pool:
        await asyncio.gather(*(episode(seconds.uniform(0, EPISODE_SECONDS)) for _ in range(4 * boxes)))
        passed = time.perf_counter() - started
        assert pool.statistics.leases == 4 * boxes
    return passed


def measure(boxes: int) -> dict[str, float]:
    clock, originals = Clock(), [(kind, name, getattr(kind, name)) for kind, names in EVENTS.items() for name in names]
    for kind, name, function in originals:
        setattr(kind, name, clock.wrap(function))
    try:
        wall = asyncio.run(play(boxes))
    finally:
        for kind, name, function in originals:
            setattr(kind, name, function)
    return {
        "boxes": boxes,
        "leases": 4 * boxes,
        "wall_seconds": round(wall, 3),
        "scheduler_percent": round(100 * clock.seconds / wall, 3),
        "scheduler_microseconds_per_lease": round(1e6 * clock.seconds / (4 * boxes), 1),
        "longest_call_milliseconds": round(1e3 * clock.longest, 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=RESULTS)
    parser.add_argument("--quick", action="store_true", help="the smallest pool only, and no file")
    arguments = parser.parse_args()
    results = []
    for boxes in SIZES[:1] if arguments.quick else SIZES:
        results.append(measure(boxes))
        print("  ".join(f"{name} {value:g}" for name, value in results[-1].items()), flush=True)
    if not arguments.quick:
        machine = {"cores": os.cpu_count(), "python": platform.python_version()}
        arguments.output.write_text(json.dumps({"machine": machine, "results": results}, indent=2) + "\n")
    if results[-1]["scheduler_percent"] > TARGET:
        sys.exit(f"the scheduler takes more than {TARGET:g} % of the wall time")


if __name__ == "__main__":
    main()
