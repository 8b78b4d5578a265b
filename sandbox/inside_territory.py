"""What a supervisor rules over: a container of its own, or its descendants on a machine that belongs to others.

The two classes have the same methods; the supervisor does not ask which one it has.
Runs inside the box: standard library only, Python >= 3.8.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import shutil
import signal
import time
from typing import Any

from . import inside_files
from . import inside_processes as processes

UID = 1000  # user and group of the code in a container

_SET_CHILD_SUBREAPER = 36  # of prctl(2)
_DEATH_SECONDS = 3.0  # for the last descendants to go; killed ones are gone long before


class Container:
    """Every process but init is ours, and every file system in memory; the code is another user."""

    def __init__(self, settings: dict[str, Any]) -> None:
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

    def others(self) -> set[int]:
        """Every process but init and the supervisor."""
        return processes.everyone() - {1, os.getpid()}

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
        for line in os.pread(self._events, 4096, 0).splitlines():
            name, _, value = line.partition(b" ")
            if name == b"oom_kill":
                return int(value)
        return 0

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


class Descendants:
    """Nothing is ours but a folder and the processes that descend from the supervisor; the code is the same user.

    Orphans among them become the supervisor's children, so none gets out of its sight. Signals go to descendants only.
    """

    def __init__(self, settings: dict[str, Any]) -> None:
        own = settings["local"]
        self.root: str = own["root"]
        self.folders = (settings["workspace"], own["tmp"])
        # An image may lack these two modules, so they are loaded only here, where the Python is a whole one.
        self._resource = importlib.import_module("resource")
        self._rlimits = [(getattr(self._resource, name), value) for name, value in own["rlimits"].items()]
        prctl = importlib.import_module("ctypes").CDLL(None, use_errno=True).prctl
        if prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
            raise OSError("this kernel does not give orphans to a subreaper")
        os.mkdir(self.root, 0o700)
        self._make_folders()

    def enter(self) -> None:
        """Make a process that was just forked one of the code's: it gets the limits that hold for one process."""
        with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
            file.write("500")  # refused where it is higher already
        for kind, value in self._rlimits:
            _, hard = self._resource.getrlimit(kind)
            if hard != self._resource.RLIM_INFINITY:
                value = min(value, hard)
            self._resource.setrlimit(kind, (value, value))

    def others(self) -> set[int]:
        """Every descendant, the dead among them that nobody has waited for too.

        Nothing escapes a look: what exists descends through a child of the supervisor, and nobody else buries that.
        """
        return processes.descendants(os.getpid())

    def strike(self) -> None:
        """Stop every descendant, until there are no new ones, and send them their death."""
        stopped: set[int] = set()
        deadline = time.monotonic() + _DEATH_SECONDS
        while True:
            new = self.others() - stopped
            if not new or time.monotonic() > deadline:
                break
            processes.send(new, signal.SIGSTOP)
            stopped |= new
        processes.send(stopped, signal.SIGKILL)

    def wipe(self) -> None:
        """Empty the two folders; when no other process of the code is running."""
        for folder in self.folders:
            # The code may have put a link in its place, to a folder that is not ours.
            if os.path.isdir(folder) and not os.path.islink(folder):
                inside_files.empty(folder)
            elif os.path.lexists(folder):
                os.unlink(folder)
        self._make_folders()

    def abandon(self) -> None:
        """What must be done before the supervisor ends: no process and no file of the code is left."""
        deadline = time.monotonic() + _DEATH_SECONDS
        while self.others() and time.monotonic() < deadline:
            self.strike()
            with contextlib.suppress(ChildProcessError):
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass
            time.sleep(0.0003)
        with contextlib.suppress(OSError):
            self.wipe()  # opens folders that their owner may not enter
        shutil.rmtree(self.root, ignore_errors=True)

    def oom_kills(self) -> int:
        """0, as nobody counts for these processes alone."""
        return 0

    def memory(self) -> int:
        """0, as nobody counts for these processes alone."""
        return 0

    def leftovers(self) -> str:
        """ "", as the machine's System V objects may be anybody's."""
        return ""

    def _make_folders(self) -> None:
        for folder in self.folders:
            os.makedirs(folder, mode=0o700, exist_ok=True)


def territory(settings: dict[str, Any]) -> Container | Descendants:
    """What these settings speak of."""
    return Descendants(settings) if settings["local"] else Container(settings)
