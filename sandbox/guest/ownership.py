"""The processes that the supervisor may signal, and the folders that it may empty.

`Container` owns everything in a container; `Descendants` owns a part of a machine that belongs to others. Both have the
same methods.
"""

from __future__ import annotations

import contextlib
import errno
import importlib
import math
import os
import signal
import stat
import time
from collections.abc import Iterable
from typing import Any, Union

from . import processes
from .files import empty, empty_memory
from .memory import Meter

_SET_DUMPABLE, _SET_CHILD_SUBREAPER = 4, 36  # of prctl(2)
_MOVED = "the box's folder is not where it was; what is there now was left alone"
_DEATH_SECONDS = 3.0  # far more than killed descendants need to end
_COUNTERS = (  # of control groups, version 2 and version 1: OOM kills, memory, and the names of its relevant fields
    ("/sys/fs/cgroup/memory.events", "/sys/fs/cgroup/memory.stat", (b"anon", b"shmem")),
    ("/sys/fs/cgroup/memory/memory.oom_control", "/sys/fs/cgroup/memory/memory.stat", (b"rss", b"shmem")),
)


class MemoryGroup:
    """The control group of a box: its counters of memory; without any if it is not the box's own."""

    def __init__(self, *, is_own: bool = True) -> None:
        self._events, self._usage, self._names = -1, "", frozenset()
        for events, usage, names in _COUNTERS:
            if is_own and os.path.exists(events):
                self._events, self._usage, self._names = os.open(events, os.O_RDONLY), usage, frozenset(names)
                break

    def check(self, is_idle: bool) -> float:
        """Return the seconds until the next check of the memory: the kernel checks it."""
        return math.inf

    def oom_kills(self) -> int:
        """Return how many processes of the box have been killed for memory; 0 if the kernel does not count them."""
        if self._events < 0:
            return 0
        _, _, rest = os.pread(self._events, 4096, 0).partition(b"oom_kill ")
        return int(rest.partition(b"\n")[0] or 0)

    def usage(self) -> int:
        """Return the bytes that processes and in-memory files use; not the page cache, which the kernel can drop."""
        if not self._usage:
            return 0
        with open(self._usage, "rb") as file:
            pairs = (line.split() for line in file)
            return sum(int(value) for name, value in pairs if name in self._names)


def memory_of(settings: dict[str, Any]) -> Union[MemoryGroup, Meter]:  # noqa: UP007 - as below
    """Return the memory of this box: measured, where no control group holds it."""
    return Meter(settings["measured"]) if settings["measured"] else MemoryGroup()


class Container:
    """Owns every process but init, and every file system in memory.

    The code runs as another user. Where there is only one user, the supervisor is process 1: then the kernel drops the
    code's signals to it, and the filter of system calls denies the rest.
    """

    def __init__(self, settings: dict[str, Any]) -> None:
        self._user: int | None = settings["user"]
        assert self._user != 0, "root may write to /dev, a file system in memory, so that wipe() would empty it"
        self._rlimits = Rlimits(settings["rlimits"])
        if self._user is None:
            prctl = _prctl()
            self._set_dumpable = lambda value: prctl(_SET_DUMPABLE, value, 0, 0, 0)
            _yield_memory()  # so that the forked code does: it may not write this later
            self._set_dumpable(0)
        self.memory = memory_of(settings)

    def confine(self) -> None:
        """Turn the calling process, which was just forked, into one of the code's: it loses every privilege."""
        if self._user is not None:
            _yield_memory()
            _become(self._user)
        else:
            self._set_dumpable(1)  # else the supervisor could not measure it
        self._rlimits.set()  # last: at the limit on processes a new user may start no program

    def processes(self) -> set[int]:
        """Every process but init and the supervisor."""
        return processes.everyone() - {1, os.getpid()}

    def signal(self, pids: Iterable[int], number: int) -> None:
        """Signal processes. If the id of one has been used again, the new process belongs to the box too."""
        processes.send(pids, number)

    def kill_all(self) -> None:
        """Send SIGKILL to every process of the code."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(-1, signal.SIGKILL)  # one step for the kernel: no fork escapes

    def wipe(self) -> None:
        """Remove the code's files. Called as the code's user when no other process of it is running."""
        empty_memory()

    def clean_up(self) -> None:
        """Do nothing: when the supervisor ends, the kernel kills the rest, and the files are in memory."""

    def leftovers(self) -> str:
        """Say whether System V objects are left, which our seccomp profile forbids; "" if not."""
        for kind in ("shm", "sem", "msg"):
            with contextlib.suppress(FileNotFoundError), open("/proc/sysvipc/" + kind, "rb") as file:
                if len(file.readlines()) > 1:
                    return "ipc: System V objects were left behind"
        return ""


class Descendants:
    """Owns one folder, and the processes that descend from the supervisor.

    The code runs as the same user; or, where the supervisor is root, as one that may change the two folders in it only.

    Orphans become the supervisor's children, so no descendant escapes. Only the folder that was made here is ever
    emptied: the code may have put another folder, or a link, in its place.
    """

    def __init__(self, settings: dict[str, Any]) -> None:
        own = settings["local"]
        self.root: str = own["root"]
        self.folders = [os.path.relpath(path, self.root) for path in (settings["workspace"], own["tmp"])]
        self._user: int | None = settings["user"]
        self.memory = MemoryGroup(is_own=self._user is not None)  # else of this machine
        self._rlimits = Rlimits(settings["rlimits"])
        if _prctl()(_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
            raise OSError("this kernel does not give orphans to a subreaper")
        self._mode = 0o700 if self._user is None else 0o711
        os.mkdir(self.root, self._mode)
        self._held = os.open(self.root, os.O_RDONLY | os.O_DIRECTORY)  # so that its inode number is not reused
        for name in self.folders:
            os.mkdir(os.path.join(self.root, name), 0o700)
            if self._user is not None:
                os.chown(os.path.join(self.root, name), self._user, self._user)
        status = os.fstat(self._held)
        self._identity = (status.st_dev, status.st_ino)

    def confine(self) -> None:
        """Turn the calling process, which was just forked, into one of the code's: it gets the limits of a process."""
        _yield_memory()
        if self._user is not None:
            _become(self._user)
        self._rlimits.set()

    def processes(self) -> set[int]:
        """Every descendant, zombies included.

        All are found: each descends from a child of the supervisor, and only the supervisor reaps that child.
        """
        return processes.descendants(os.getpid())

    def signal(self, pids: Iterable[int], number: int) -> None:
        processes.send(pids, number, under=os.getpid())

    def kill_all(self) -> None:
        """Stop every descendant until no new one appears, then send SIGKILL to all of them."""
        processes.kill_all(self.processes, self.signal)

    def wipe(self) -> None:
        """Empty the two folders. Called when no other process of the code is running.

        Raises:
            OSError: our folder has been replaced; nothing was removed.
        """
        for name in self.folders:
            self._enter_root()
            with contextlib.suppress(FileNotFoundError):
                if stat.S_ISDIR(os.lstat(name).st_mode):
                    empty(name)
                    continue
                os.unlink(name)  # a link, perhaps, to a folder that is not ours
            os.mkdir(name, 0o700)
        os.chdir("/")

    def clean_up(self) -> None:
        """Kill every process and remove every file of the code, before the supervisor ends."""
        deadline = time.monotonic() + _DEATH_SECONDS
        while self.processes() and time.monotonic() < deadline:
            self.kill_all()
            with contextlib.suppress(ChildProcessError):
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass
            time.sleep(0.0003)
        with contextlib.suppress(OSError):
            self._enter_root()
            empty(self.root)
            os.rmdir(self.root)

    def leftovers(self) -> str:
        return ""  # System V objects on this machine may belong to others

    def _enter_root(self) -> None:
        try:
            status = os.lstat(self.root)
        except FileNotFoundError:
            raise OSError(errno.ESTALE, _MOVED) from None
        if (status.st_dev, status.st_ino) != self._identity:
            raise OSError(errno.ESTALE, _MOVED)
        if status.st_uid == os.geteuid():
            os.chmod(self.root, self._mode)
        os.chdir(self.root)


class Rlimits:
    """The limits of one process, by the names of the module `resource`; none of them is set where there is no name."""

    def __init__(self, limits: dict[str, int]) -> None:
        # An image may lack the module; a host has the whole standard library.
        self._resource: Any = importlib.import_module("resource") if limits else None
        self._limits = {getattr(self._resource, name): limit for name, limit in limits.items()}

    def set(self) -> None:
        """Set the limits of the calling process, as far as its hard limits are not lower."""
        for kind, limit in self._limits.items():
            _, hard = self._resource.getrlimit(kind)
            lowest = limit if hard == self._resource.RLIM_INFINITY else min(limit, hard)
            self._resource.setrlimit(kind, (lowest, lowest))


def _become(user: int) -> None:
    os.setgroups([])
    os.setresgid(user, user, user)
    os.setresuid(user, user, user)  # drops every capability, as no user id is 0 any more


def _yield_memory() -> None:
    """Have the kernel kill this process for memory before others. It refuses where the number is higher already."""
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write("500")


def _prctl() -> Any:
    """Return the C library's function. An image may lack the module that calls it; a host has it."""
    return importlib.import_module("ctypes").CDLL(None, use_errno=True).prctl


Owner = Union[Container, Descendants]  # noqa: UP007 - Python 3.8 evaluates this
