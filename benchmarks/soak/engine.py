"""Stops this machine's container engine for moments, and makes sure that it continues."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
from pathlib import Path

NAME = "dockerd"
LOCAL = ("unix:///var/run/docker.sock", "unix:///run/docker.sock")
INSTEAD = "leave out --stop-engine"


class StoppableEngine:
    """The engine of this machine.

    Raises:
        ValueError: another engine is in use, this machine has no engine or several, or we may not signal it.
    """

    def __init__(self) -> None:
        host = os.environ.get("DOCKER_HOST", LOCAL[0])
        if host not in LOCAL:
            raise ValueError(f"--stop-engine stops the engine of this machine, and DOCKER_HOST is {host}; {INSTEAD}")
        pids = _processes(NAME)
        if len(pids) != 1:
            raise ValueError(f"--stop-engine needs one process {NAME} on this machine, found {len(pids)}; {INSTEAD}")
        [self.pid] = pids
        try:
            os.kill(self.pid, 0)
        except PermissionError:
            raise ValueError(f"--stop-engine needs to be root to stop process {self.pid}; {INSTEAD}") from None

    async def stop(self, seconds: float) -> None:
        """Stop the engine for this many seconds. If this process dies, a helper continues it."""
        guard = self._guard(seconds + 1)
        try:
            os.kill(self.pid, signal.SIGSTOP)
            await asyncio.sleep(seconds)
        finally:
            os.kill(self.pid, signal.SIGCONT)
            os.killpg(guard.pid, signal.SIGKILL)  # not awaited yet, so the number is still its own
            guard.wait()

    def _guard(self, seconds: float) -> subprocess.Popen[bytes]:
        script = f"sleep {seconds:.1f}; kill -CONT {self.pid}"
        return subprocess.Popen(["sh", "-c", script], start_new_session=True, stdin=subprocess.DEVNULL)


def _processes(name: str) -> list[int]:
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended
            if (folder / "comm").read_text().strip() == name:
                found.append(int(folder.name))
    return found
