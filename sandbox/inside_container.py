"""What a supervisor rules over in a container of its own: every process but init, and every file system in memory.

`inside_descendants.py` has the same methods for a machine that belongs to others; the supervisor does not ask which one
it has. Runs inside the box: standard library only, Python >= 3.8.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterable
from typing import Any

from . import inside_files
from . import inside_processes as processes
from .inside_landlock import Landlock

UID = 1000  # user and group of the code


class Container:
    """Everything in here but init is ours; the code is another user."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self._landlock = Landlock(closed="proc")
        self._events, self._usage, self._names = -1, "", frozenset()
        for events, usage, names in (  # version 2 of control groups, then version 1
            ("/sys/fs/cgroup/memory.events", "/sys/fs/cgroup/memory.stat", (b"anon", b"shmem")),
            ("/sys/fs/cgroup/memory/memory.oom_control", "/sys/fs/cgroup/memory/memory.stat", (b"rss", b"shmem")),
        ):
            if os.path.exists(events):
                self._events, self._usage, self._names = os.open(events, os.O_RDONLY), usage, frozenset(names)
                break

    def enter(self) -> None:
        """Make a process that was just forked one of the code's: it loses every privilege."""
        with open("/proc/self/oom_score_adj", "w") as file:
            file.write("500")  # the supervisor must not be the one that is killed for memory
        os.setgroups([])
        os.setresgid(UID, UID, UID)
        os.setresuid(UID, UID, UID)  # drops every capability, as no user id is 0 any more
        self._landlock.enter()  # without it, anybody may lower the number above to the supervisor's again

    def others(self) -> set[int]:
        """Every process but init and the supervisor."""
        return processes.everyone() - {1, os.getpid()}

    def send(self, pids: Iterable[int], number: int) -> None:
        """Signal some of them; a number that was given to another process meanwhile is one of theirs too."""
        processes.send(pids, number)

    def strike(self) -> None:
        """Send every process of the code its death."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(-1, signal.SIGKILL)  # one step for the kernel: no fork gets away

    def wipe(self) -> None:
        """Remove the code's files; as the code's user, when no other process of it is running."""
        inside_files.wipe_memory()

    def abandon(self) -> None:
        """What must be done before the supervisor ends: nothing, as init and the kernel see to the rest."""

    def oom_kills(self) -> int:
        """How many processes of the box were killed for memory so far; 0 where there is no counter."""
        if self._events < 0:
            return 0
        _, _, rest = os.pread(self._events, 4096, 0).partition(b"oom_kill ")
        return int(rest.partition(b"\n")[0] or 0)

    def memory(self) -> int:
        """Bytes that processes and in-memory files hold; the page cache is not counted, as it gives way."""
        if not self._usage:
            return 0
        with open(self._usage, "rb") as file:
            pairs = (line.split() for line in file)
            return sum(int(value) for name, value in pairs if name in self._names)

    def leftovers(self) -> str:
        """What outlives processes and files: System V objects, which the seccomp profile forbids."""
        for kind in ("shm", "sem", "msg"):
            with contextlib.suppress(FileNotFoundError), open("/proc/sysvipc/" + kind, "rb") as file:
                if len(file.readlines()) > 1:
                    return "System V IPC objects were left behind"
        return ""
