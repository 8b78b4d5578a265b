"""Random faults against a pool of sandboxes, for minutes: nothing may hang, and nothing may be left.

    python -m benchmarks.soak --seconds 300 --seed 1
    python -m benchmarks.soak --seconds 300 --seed 1 --stop-engine

Episodes lease boxes from one pool and run code that loops, crashes, floods, forks, fills memory and disks, tampers with
its channel, and is cancelled; meanwhile containers are killed, removed and paused. With --stop-engine this machine's
engine itself is stopped for moments, all that it does for others included. Every call must return before its
deadline, and at the end no container, thread, socket, task or child process may be left. It prints what happened, and
ends with exit code 1 if anything went wrong; the same seed makes the same choices.
"""

from __future__ import annotations

import argparse
import asyncio
import collections
import contextlib
import faulthandler
import random
import signal
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any

from gymnast.sandbox import (
    DockerExecutor,
    Engine,
    EngineError,
    Executor,
    ExecutorPool,
    Limits,
    PoolStatistics,
    SandboxError,
    build_image,
)

from ..sandbox.left_behind import LeftBehind, own_containers
from .engine import StoppableEngine
from .faults import BASH, PYTHON, TRACES

LIMITS = Limits(memory="96m", workspace="16m", tmp="8m", shm="4m", pids=48, grace=0.3, max_output="64k")
SLACK = 22.0  # seconds that a call may take beyond its timeout: grace, patience and help, a stopped engine
HANGING = 180.0  # seconds after its end at which the whole run counts as hanging; it says where, and ends
EXPECTED = {"hard kill", "lost", "oom", "protocol", "call in flight", "pool closed"}  # reasons to replace a box here
UNEXPECTED = 0.1  # of the leases may end in a box that is replaced for another reason
BROKEN = 0.5  # of the episodes may be ended by a broken sandbox
LOST = 0.02  # of the leases may lose their box, beside those whose container or engine was disturbed
EXPECTED_AFTER = 20.0  # seconds in which at least one container must have been disturbed, or the run has shown nothing


class Soak:
    """One run: its random choices, its pool, and what it saw."""

    def __init__(
        self, seed: int, seconds: float, pool: ExecutorPool, engine: Engine, stoppable: StoppableEngine | None
    ) -> None:
        self.random = random.Random(seed)
        self.seconds = seconds
        self.ends = time.monotonic() + seconds
        self.pool = pool
        self.engine = engine
        self.stoppable = stoppable
        self.counts: collections.Counter[str] = collections.Counter()
        self.errors: dict[str, str] = {}  # the first of each type that ended an episode
        self.problems: list[str] = []
        self.longest = 0.0

    @property
    def over(self) -> bool:
        return time.monotonic() > self.ends

    async def run(self, episodes: int) -> None:
        async with asyncio.TaskGroup() as group:
            for _ in range(episodes):
                group.create_task(self.episodes(random.Random(self.random.random())))
            group.create_task(self.disturb(random.Random(self.random.random())))

    async def episodes(self, choice: random.Random) -> None:
        """Episodes one after the other; a broken sandbox ends an episode, and nothing else may."""
        while not self.over:
            try:
                async with self.pool.lease(timeout=60) as box:
                    fresh = await box.python(TRACES, timeout=5)
                    if fresh.ok and fresh.value != "(False, [])":
                        self.problems.append(f"a leased box was not clean: {fresh.value}")
                    for _ in range(choice.randint(1, 4)):
                        await self.act(box, choice)
                self.counts["episodes"] += 1
            except SandboxError as error:
                self.counts[f"episodes ended by {type(error).__name__}"] += 1
                self.errors.setdefault(type(error).__name__, str(error))
            except Exception as error:
                self.problems.append(f"an episode raised {error!r}")

    async def act(self, box: Executor, choice: random.Random) -> None:
        timeout = choice.choice([0.2, 0.5, 1.0])
        kind = choice.choice(["python"] * 6 + ["bash"] * 3 + ["write", "read", "list", "reset", "ping"])
        if kind in ("python", "bash"):
            name = choice.choice(list(PYTHON if kind == "python" else BASH))
            call = (
                box.python(PYTHON[name], timeout=timeout) if kind == "python" else box.bash(BASH[name], timeout=timeout)
            )
        else:
            name = ""
            calls: dict[str, Callable[[], Awaitable[Any]]] = {
                "write": lambda: box.write_file("a/b", b"x" * choice.randint(0, 1 << 20)),
                "read": lambda: box.read_file(choice.choice(["a/b", "/etc/shadow", "/dev/zero", "/proc/kmsg"])),
                "list": lambda: box.list_files(recursive=True),
                "reset": box.reset,
                "ping": box.ping,
            }
            call = calls[kind]()
        task = asyncio.ensure_future(call)
        try:
            await self.answer(task, f"{kind} {name}", timeout + SLACK if name else 60.0, choice)
        finally:
            task.cancel()
        if task.cancelled():
            return
        error = task.exception()
        if isinstance(error, OSError) and not isinstance(error, ConnectionError | TimeoutError):
            self.counts["refused file operations"] += 1
        elif error is not None:
            raise error
        elif kind in ("python", "bash"):
            self.counts[f"status {task.result().status}"] += 1

    async def answer(self, task: asyncio.Future[Any], what: str, deadline: float, choice: random.Random) -> None:
        """Wait until a call is over; some are cancelled, and any that is late is a problem."""
        if choice.random() < 0.1:
            await asyncio.wait([task], timeout=choice.random() * 0.3)
            task.cancel()
            self.counts["cancelled calls"] += 1
        started = time.monotonic()
        await asyncio.wait([task], timeout=deadline)
        self.longest = max(self.longest, time.monotonic() - started)
        self.counts["calls"] += 1
        if not task.done():
            self.problems.append(f"{what} was not answered within {deadline:g} s")
            task.cancel()
            await asyncio.wait([task])  # or the run counts as hanging

    async def disturb(self, choice: random.Random) -> None:
        """Kill, remove and pause containers of ours, and stop the engine, from outside."""
        while not self.over:
            await asyncio.sleep(choice.uniform(0.2, 1.5))
            what = choice.choice(["kill", "kill", "remove", "pause", "engine"])
            seconds = choice.uniform(0.1, 1.5)
            try:
                if what != "engine":
                    await self.disturb_container(what, choice)
                elif self.stoppable is not None:
                    await self.stoppable.stop(seconds)
                    self.counts["the engine was stopped"] += 1
            except Exception as error:
                self.problems.append(f"the program could not {what}: {error!r}")
        if self.seconds >= EXPECTED_AFTER and not any(name.startswith("containers: ") for name in self.counts):
            self.problems.append("no container was disturbed")

    def judge(self, statistics: PoolStatistics, boxes: int) -> None:
        """Note results that the faults cannot explain: too few whole episodes, or more boxes lost than disturbed."""
        broken = sum(count for name, count in self.counts.items() if name.startswith("episodes ended by "))
        if broken > BROKEN * (self.counts["episodes"] + broken) or not self.counts["episodes"]:
            self.problems.append(
                f"{broken} episodes were ended by a broken sandbox, {self.counts['episodes']} were whole"
            )
        disturbed = sum(count for name, count in self.counts.items() if name.startswith("containers: "))
        disturbed += boxes * self.counts["the engine was stopped"]
        lost = statistics.retired.get("lost", 0)
        if lost > disturbed + LOST * statistics.leases:
            self.problems.append(f"{lost} boxes were lost, and at most {disturbed} were disturbed")

    async def disturb_container(self, what: str, choice: random.Random) -> None:
        mine = await own_containers(self.engine)
        if not mine:
            self.counts["no container to disturb"] += 1
            return
        victim = choice.choice(mine)
        api = self.engine.client.api
        actions: dict[str, Callable[[], Any]] = {
            "kill": lambda: api.kill(victim),
            "remove": lambda: api.remove_container(victim, force=True),
            "pause": lambda: api.pause(victim),
        }
        try:
            await self.engine.call(actions[what])
        except EngineError:  # the pool was faster; that it goes on like this is a problem in `disturb`
            self.counts["container gone before it was disturbed"] += 1
            return
        self.counts[f"containers: {what}"] += 1
        if what == "pause" and choice.random() < 0.5:
            await asyncio.sleep(choice.random())
            with contextlib.suppress(EngineError):  # given up and removed meanwhile
                await self.engine.call(api.unpause, victim)


async def soak(arguments: argparse.Namespace, stoppable: StoppableEngine | None) -> Soak:
    loop, this = asyncio.get_running_loop(), asyncio.current_task()
    assert this is not None
    loop.add_signal_handler(signal.SIGTERM, this.cancel)  # so that what was started is ended
    await build_image()
    before = LeftBehind()
    pool = ExecutorPool(DockerExecutor(limits=LIMITS), max_boxes=arguments.boxes, warm=2, idle=20.0)
    async with Engine() as engine:
        run = Soak(arguments.seed, arguments.seconds, pool, engine, stoppable)
        try:
            await run.run(arguments.episodes)
        finally:
            await pool.close()
        deadline = time.monotonic() + 5.0
        while (left := await own_containers(engine)) and time.monotonic() < deadline:  # noqa: ASYNC110
            await asyncio.sleep(0.1)
    left = [f"container {name}" for name in left] + await before.after(5.0)
    run.problems += [f"left behind: {what}" for what in left]
    statistics = pool.statistics
    if statistics.boxes or statistics.leased:
        run.problems.append(f"the closed pool still counts {statistics}")
    run.judge(statistics, arguments.boxes)
    unexpected = {reason: count for reason, count in statistics.retired.items() if reason not in EXPECTED}
    if sum(unexpected.values()) > UNEXPECTED * statistics.leases:
        run.problems.append(f"of {statistics.leases} leases too many ended with the box replaced: {unexpected}")
    return run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=300.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--episodes", type=int, default=24, help="episodes at a time (default: %(default)s)")
    parser.add_argument("--boxes", type=int, default=10, help="containers at a time (default: %(default)s)")
    parser.add_argument(
        "--stop-engine", action="store_true", help="stop this machine's engine for moments, for everybody who uses it"
    )
    arguments = parser.parse_args()
    faulthandler.dump_traceback_later(arguments.seconds + HANGING, exit=True)
    try:
        stoppable = StoppableEngine() if arguments.stop_engine else None
        print(
            f"seed {arguments.seed}, {arguments.seconds:g} s; the engine "
            + (
                f"(process {stoppable.pid}) is stopped for moments, for all who use it"
                if stoppable
                else "is left alone"
            ),
            flush=True,
        )
        run = asyncio.run(soak(arguments, stoppable))
    except asyncio.CancelledError:
        sys.exit(143)  # SIGTERM
    except (SandboxError, ValueError) as error:
        sys.exit(f"error: {error}")
    for name, count in sorted(run.counts.items()):
        print(f"{count:8} {name}")
    print(f"{run.longest:8.1f} seconds: the longest call")
    for name, error in run.errors.items():
        print(f"the first {name}: {error}")
    print(run.pool.statistics)
    if run.problems:
        sys.exit("\n".join([f"FAILED with seed {arguments.seed}", *run.problems]))
    print("no call was late, and nothing is left")


if __name__ == "__main__":
    main()
