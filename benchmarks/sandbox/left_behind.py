"""Finds the resources that a process left behind: it compares what it holds now with what it held before. Linux."""

from __future__ import annotations

import asyncio
import collections
import os
import threading
import time
from pathlib import Path
from typing import Any

from gymnast.sandbox import Engine
from gymnast.sandbox.docker.labels import LABEL


def containers_of(engine: Engine, owner: int) -> list[str]:
    """The ids of the containers, in any state, that a process owns; blocks."""
    found: list[dict[str, Any]] = engine.client.containers()
    return [container["Id"] for container in found if container["Labels"].get(f"{LABEL}.pid") == str(owner)]


async def own_containers(engine: Engine) -> list[str]:
    """The ids of the containers, in any state, that this process owns."""
    return await engine.call(containers_of, engine, os.getpid())


class LeftBehind:
    """The files, sockets, threads, tasks and children that this process has opened since this object was made."""

    def __init__(self) -> None:
        self._before = _held()

    def now(self) -> list[str]:
        return sorted((_held() - self._before).elements())

    async def after(self, seconds: float) -> list[str]:
        """Return what is still open after this many seconds; return early once nothing is."""
        deadline = time.monotonic() + seconds
        while (left := self.now()) and time.monotonic() < deadline:  # noqa: ASYNC110 # nothing tells when a thread has ended
            await asyncio.sleep(0.05)
        return left


def _held() -> collections.Counter[str]:
    names = [f"file {name}" for name in _open_files()]
    names += [f"thread {thread.name} ({thread.ident})" for thread in threading.enumerate()]
    names += [f"task {task.get_name()} {task.get_coro()}" for task in asyncio.all_tasks()]
    names += [f"child process {child}" for child in _children()]
    return collections.Counter(names)


def _open_files() -> list[str]:
    """Return the targets of all open descriptors, sockets and pipes included."""
    found = []
    for descriptor in Path("/proc/self/fd").iterdir():
        try:
            found.append(os.readlink(descriptor))
        except OSError:
            continue  # the folder's own descriptor
    return [name for name in found if not name.startswith("/proc/")]


def _children() -> list[str]:
    """Return the child processes, including zombies."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            number, _, rest = (folder / "stat").read_text().partition(" (")
        except OSError:
            continue  # it has ended
        name, _, fields = rest.rpartition(") ")
        if int(fields.split()[1]) == os.getpid():
            found.append(f"{number} {name}")
    return found
