"""Times one thing about one peer; runs in the peer's virtual environment, started by `run.py`.

    python benchmarks/sandbox/peers/measure.py PEER PART IMAGE [--quick]

prints one line of JSON when it is done; PART "owner" prints a line when its box is up, and waits to be killed.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from drivers import BOXES, POOLS, Box, LlmSandboxPool
from memory import growth_in_mb

PARALLEL = 8  # boxes that work side by side
STARTERS = 2  # boxes that start side by side
FLOOD_MB = 50
MOST = 0.95  # of the output must have come back, or its cost says nothing
POOL_BOXES = 4

Values = dict[str, float | str]
Make = Callable[[], Box]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("peer", choices=BOXES)
    parser.add_argument("part", choices=[*PARTS, "lease", "owner"])
    parser.add_argument("image")
    parser.add_argument("--quick", action="store_true")
    arguments = parser.parse_args()
    report = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # the peers print, too

    def make() -> Box:
        return BOXES[arguments.peer](arguments.image)

    if arguments.part == "owner":
        box = _up(make)
        report.write("up\n")
        report.flush()
        time.sleep(60)  # killed long before
        box.stop()
    elif arguments.part == "lease":
        values = lease(lambda: POOLS[arguments.peer](arguments.image, POOL_BOXES), arguments.quick)
        report.write(json.dumps(values) + "\n")
    else:
        report.write(json.dumps(PARTS[arguments.part](make, arguments.quick)) + "\n")
    report.close()


def life(make: Make, quick: bool) -> Values:
    """From nothing to the first answer, and from an old box to a new one's first answer."""
    starts, recreations = [], []
    old = _up(make)  # not timed: the first use of a library imports much of it
    for _ in range(1 if quick else 4):
        started = time.perf_counter()
        old.stop()
        stopped = time.perf_counter()
        old = _up(make)
        answered = time.perf_counter()
        starts.append(answered - stopped)
        recreations.append(answered - started)
    old.stop()
    return {"cold_start": statistics.median(starts) * 1e3, "reset": statistics.median(recreations) * 1e3}


def lease(make_pool: Callable[[], LlmSandboxPool], quick: bool) -> Values:
    """From asking a warm pool to holding a box, with a little work in each lease."""
    seconds = []
    pool = make_pool()
    try:
        for _ in range(5 if quick else 50):
            started = time.perf_counter()
            with pool.lease() as box:
                seconds.append(time.perf_counter() - started)
                answer = box.run("print(1)").stdout.strip()
                assert answer == "1", f"print(1) answered {answer!r}"
    finally:
        pool.close()
    return {"lease": statistics.median(seconds) * 1e3, "lease_is": pool.what}


def executions(make: Make, quick: bool) -> Values:
    """One after the other, in one box."""
    box = _up(make)
    try:
        seconds = []
        for _ in range(10 if quick else 50):
            started = time.perf_counter()
            box.execute()
            seconds.append(time.perf_counter() - started)
    finally:
        box.stop()
    return {"round_trip": statistics.median(seconds) * 1e3, "round_trip_is": box.what}


def throughput(make: Make, quick: bool) -> Values:
    """In several boxes at a time, each with a thread of its own."""
    boxes = [make() for _ in range(2 if quick else PARALLEL)]
    duration = 2.0 if quick else 5.0

    def work(box: Box) -> int:
        done, ends = 0, time.perf_counter() + duration
        while time.perf_counter() < ends:
            box.execute()
            done += 1
        return done

    running: list[Box] = []

    def start(box: Box) -> None:
        box.start()
        running.append(box)

    with ThreadPoolExecutor(len(boxes)) as threads:
        try:
            with ThreadPoolExecutor(STARTERS) as starters:  # all at once would time out
                list(starters.map(start, boxes))
            started = time.perf_counter()
            done = sum(threads.map(work, boxes))
            elapsed = time.perf_counter() - started
        finally:
            list(threads.map(lambda box: box.stop(), running))
    return {"throughput": done / elapsed, "throughput_boxes": len(boxes)}


def flood(make: Make, quick: bool) -> Values:
    """Measure the cost of 500 MB of output for this process."""
    box = _up(make)
    try:
        started = time.perf_counter()
        returned, growth = growth_in_mb(lambda: box.flood(FLOOD_MB))
        elapsed = time.perf_counter() - started
    finally:
        box.stop()
    values = {"output_mb": FLOOD_MB, "output_returned_mb": returned / 1e6, "output_seconds": elapsed}
    if returned < MOST * FLOOD_MB * 1e6:  # no peer documents a limit: what is missing was lost, or held back
        return {**values, "output": f"not measured: only {returned / 1e6:.3f} of {FLOOD_MB} MB came back"}
    return {**values, "output": growth}


PARTS = {part.__name__: part for part in (life, executions, throughput, flood)}


def _up(make: Make) -> Box:
    """A box that has answered once."""
    box = make()
    box.start()
    try:
        box.execute()
    except BaseException:
        box.stop()
        raise
    return box


if __name__ == "__main__":
    main()
