"""Random faults against a pool of sandboxes, for minutes: nothing may hang, and nothing may be left.

    python benchmarks/_soak.py --seconds 300 --seed 1

Episodes lease boxes from one pool and run code that loops, crashes, floods, forks, fills memory and disks, tampers with
its channel, and is cancelled; meanwhile containers are killed and paused, and the engine itself is stopped for moments.
Every call has to be answered before its deadline, and at the end no container, thread, socket or task may be left. It
prints what happened, and ends with exit code 1 if anything went wrong; the same seed makes the same choices.
"""

from __future__ import annotations

import argparse
import asyncio
import collections
import contextlib
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from gymnast.sandbox import DockerExecutor, Engine, Executor, ExecutorPool, Limits, SandboxError
from gymnast.sandbox.images import build_if_changed
from gymnast.sandbox.owner import LABEL

LIMITS = Limits(memory="96m", workspace="16m", tmp="8m", shm="4m", pids=48, grace=0.3, max_output="64k")
SLACK = 12.0  # seconds that a call may take beyond its timeout: the grace, the host's patience, a stopped engine

PYTHON = {
    "value": "6 * 7",
    "state": "x = [0] * 1000; len(x)",
    "exception": "1 / 0",
    "exit": "import sys; sys.exit(4)",
    "loop": "while True: pass",
    "stubborn": "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)\nwhile True: pass",
    "stopped": "import os, signal; os.kill(os.getpid(), signal.SIGSTOP)",
    "big power": "(10**8)**(10**7)",
    "os._exit": "import os; os._exit(3)",
    "crash": "import ctypes; ctypes.string_at(0)",
    "closed": "import os; os.closerange(0, 300)",
    "memory": "x = bytearray(1 << 30)",
    "children": "import subprocess; [subprocess.Popen(['sleep', '100']) for _ in range(20)]",
    "fork bomb": "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass",
    "fork": "import os; os.fork(); 1",
    "daemon": "import subprocess; subprocess.Popen(['sleep', '1000'], start_new_session=True)",
    "flood": "import os\nfor _ in range(2000): os.write(1, b'x' * 65536)",
    "garbage": "import os\nfor fd in range(3, 100):\n    try: os.write(fd, b'\\xff' * 5000)\n    except OSError: pass",
    "disk": "open('full', 'wb').write(bytes(1 << 26))",
    "files": "for n in range(20000): open(f'f{n}', 'w')",
    "thread": "import threading, time; threading.Thread(target=lambda: (time.sleep(1), print('late'))).start()",
    "kill all": "import os, signal; os.kill(-1, signal.SIGKILL)",
    "surrogates": "print('\\udcff\\x00\\x1b[31m')",
}
BASH = {
    "echo": "echo hello",
    "exit": "exit 3",
    "kill": "kill -9 $$",
    "errexit": "set -e; false",
    "loop": "while :; do :; done",
    "sleep": "sleep 100",
    "background": "sleep 100 &",
    "quote": "echo 'unclosed",
    "yes": "yes | head -c 20000000",
    "fork bomb": ":(){ :|:& };:",
}


class Soak:
    """One run: its random choices, its pool, and what it saw."""

    def __init__(self, seed: int, seconds: float, pool: ExecutorPool) -> None:
        self.random = random.Random(seed)
        self.ends = time.monotonic() + seconds
        self.pool = pool
        self.counts: collections.Counter[str] = collections.Counter()
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
                    for _ in range(choice.randint(1, 4)):
                        await self.act(box, choice)
                self.counts["episodes"] += 1
            except SandboxError as error:
                self.counts[f"episodes ended by {type(error).__name__}"] += 1
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
        if choice.random() < 0.1:
            await asyncio.wait([task], timeout=choice.random() * 0.3)
            task.cancel()
            self.counts["cancelled calls"] += 1
        started = time.monotonic()
        deadline = timeout + SLACK if kind in ("python", "bash") else 60.0
        await asyncio.wait([task], timeout=deadline)
        self.longest = max(self.longest, time.monotonic() - started)
        self.counts["calls"] += 1
        if not task.done():
            self.problems.append(f"{kind} {name} was not answered within {deadline:g} s")
            task.cancel()
            await asyncio.wait([task])
        if task.cancelled():
            return
        error = task.exception()
        if isinstance(error, OSError) and not isinstance(error, ConnectionError | TimeoutError):
            self.counts["refused file operations"] += 1
        elif error is not None:
            raise error
        elif kind in ("python", "bash"):
            self.counts[f"status {task.result().status}"] += 1

    async def disturb(self, choice: random.Random) -> None:
        """Kill and pause containers of ours, and stop the engine, from outside."""
        while not self.over:
            await asyncio.sleep(choice.uniform(0.2, 1.5))
            mine = await asyncio.to_thread(containers)
            what = choice.choice(["kill", "kill", "rm", "pause", "engine"])
            if what == "engine":
                await self.stop_engine(choice.uniform(0.1, 1.5))
            elif mine:
                victim = choice.choice(mine)
                arguments = ["rm", "-f", victim] if what == "rm" else [what, victim]
                await asyncio.to_thread(docker, *arguments)
                self.counts[f"containers: {what}"] += 1
                if what == "pause" and choice.random() < 0.5:
                    await asyncio.sleep(choice.random())
                    await asyncio.to_thread(docker, "unpause", victim)

    async def stop_engine(self, seconds: float) -> None:
        pid = engine_process()
        if pid is None:
            self.counts["engine not stopped: not ours to signal"] += 1
            return
        os.kill(pid, signal.SIGSTOP)
        try:
            await asyncio.sleep(seconds)
        finally:
            os.kill(pid, signal.SIGCONT)
        self.counts["engine stopped"] += 1


def docker(*arguments: str) -> str:
    return subprocess.run(["docker", *arguments], capture_output=True, text=True, check=False).stdout


def containers() -> list[str]:
    """The containers, in any state, that this process owns."""
    return docker("ps", "-aq", "--filter", f"label={LABEL}.pid={os.getpid()}").split()


def engine_process() -> int | None:
    """The engine's process, if it runs on this machine and may be signalled."""
    for folder in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError):
            if (folder / "comm").read_text().strip() == "dockerd":
                pid = int(folder.name)
                os.kill(pid, 0)
                return pid
    return None


def sockets() -> int:
    count = 0
    for descriptor in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            count += os.readlink(descriptor).startswith("socket:")
    return count


async def soak(seed: int, seconds: float, episodes: int, boxes: int) -> Soak:
    async with Engine() as engine:
        await build_if_changed(engine)
    sockets_before, tasks_before = sockets(), len(asyncio.all_tasks())
    pool = ExecutorPool(DockerExecutor(limits=LIMITS), max_boxes=boxes, warm=2, idle=20.0)
    run = Soak(seed, seconds, pool)
    try:
        await run.run(episodes)
    finally:
        await pool.close()
    left: dict[str, Callable[[], int]] = {
        "containers": lambda: len(containers()),
        "sockets": lambda: sockets() - sockets_before,
        "tasks": lambda: len(asyncio.all_tasks()) - tasks_before,
        "threads of the engine": lambda: sum("gymnast-engine" in thread.name for thread in threading.enumerate()),
    }
    deadline = time.monotonic() + 5.0
    while any(count() > 0 for count in left.values()) and time.monotonic() < deadline:  # noqa: ASYNC110
        await asyncio.sleep(0.1)
    run.problems += [f"{count()} {what} are left" for what, count in left.items() if count() > 0]
    if pool.statistics.boxes or pool.statistics.leased:
        run.problems.append(f"the closed pool still counts {pool.statistics}")
    return run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=300.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--episodes", type=int, default=24, help="episodes at a time (default: %(default)s)")
    parser.add_argument("--boxes", type=int, default=10, help="containers at a time (default: %(default)s)")
    arguments = parser.parse_args()
    try:
        run = asyncio.run(soak(arguments.seed, arguments.seconds, arguments.episodes, arguments.boxes))
    except SandboxError as error:
        sys.exit(f"error: {error}")
    for name, count in sorted(run.counts.items()):
        print(f"{count:8} {name}")
    print(f"{run.longest:8.1f} seconds: the longest call")
    print(run.pool.statistics)
    if run.problems or not run.counts["episodes"]:
        sys.exit("\n".join(["FAILED with seed " + str(arguments.seed), *run.problems]))
    print("no call was late, and nothing is left")


if __name__ == "__main__":
    main()
