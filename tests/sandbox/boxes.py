"""Helpers of the tests of boxes: limits, containers of a process, waiting for a condition."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from gymnast.sandbox import Box, Executor, Limits
from gymnast.sandbox.docker import labels as owner_module

GRACE = 2.0  # a busy machine needs more than a moment to interrupt code; code that ignores it makes a test wait so long
LIMITS = Limits(memory="256m", workspace="64m", tmp="32m", pids=64, grace=GRACE)


async def eventually(condition: Callable[[], bool], seconds: float) -> bool:
    """Whether the condition becomes true in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        await asyncio.sleep(0.01)
    return True


async def cancel_a_start(make: Callable[[], Box | Executor]) -> None:
    """Cancel the starts of boxes a little later each; on a fast machine the last ones have started, and are closed."""
    cancelled = []
    for seconds in (0.0, 0.01, 0.02, 0.05):
        box = make()
        starting = asyncio.ensure_future(box.start())
        await asyncio.sleep(seconds)
        cancelled.append(starting.cancel())
        await asyncio.gather(starting, return_exceptions=True)
        if not cancelled[-1]:
            await box.close()
    assert cancelled[0]


def containers_of(pid: int) -> list[str]:
    """The containers, in any state, that a process owns."""
    label = f"label={owner_module.LABEL}.pid={pid}"
    listed = subprocess.run(["docker", "ps", "-aq", "--filter", label], capture_output=True, text=True, check=True)
    return listed.stdout.split()


def processes_of(root: Path) -> list[int]:
    """The processes of local boxes whose folders are in a folder."""
    found = []
    for process in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            if f"GYMNAST_SANDBOX={root}/".encode() in process.read_bytes():
                found.append(int(process.parent.name))
    return found


def own_containers() -> set[str]:
    """The containers, in any state, that this process owns."""
    return set(containers_of(os.getpid()))


async def usable(box: Executor) -> bool:
    return (await box.python("6 * 7", timeout=5)).value == "42"


async def daemon_of(box: Executor) -> int:
    """Let the code start an orphan that ignores every signal that can be ignored; return its process id."""
    result = await box.python("""
import os, signal, time
read_end, write_end = os.pipe()
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP): signal.signal(number, signal.SIG_IGN)
        os.write(write_end, str(os.getpid()).encode())
        time.sleep(600)
    os._exit(0)
os.wait()
int(os.read(read_end, 20))""")
    assert result.value is not None, result
    return int(result.value)
