"""Processes inside the box: starting them without privileges, finding them, counting what they use.

Runs inside the box: standard library only, Python >= 3.8.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterable
from typing import Any

UID = 1000  # user and group of everything that is not ours

_TICKS = os.sysconf("SC_CLK_TCK")
_SCRATCH = 40  # descriptors from here on are free while a child arranges its own


def spawn(run: Callable[[], Any], fds: dict[int, int], environment: dict[str, str], cwd: str) -> int:
    """Fork a process with the code's user and no privileges, with the descriptors `{its number: ours}` and no other.

    Raises:
        OSError: there are too many processes, or no memory.
    """
    pid = os.fork()
    if pid:
        return pid
    try:
        _become_unprivileged()
        _arrange(fds)
        os.environ.clear()
        os.environ.update(environment)
        try:
            os.chdir(cwd)
        except OSError:
            os.chdir("/")  # the code removed its directory
        run()
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(71)


def _become_unprivileged() -> None:
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGINT, signal.SIGCHLD, signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    os.setsid()
    os.nice(5)  # the supervisor must get its turn beside a fork bomb
    with open("/proc/self/oom_score_adj", "w") as file:
        file.write("500")  # and must not be the one that is killed for memory
    os.setgroups([])
    os.setresgid(UID, UID, UID)
    os.setresuid(UID, UID, UID)  # drops every capability, as no user id is 0 any more


def _arrange(fds: dict[int, int]) -> None:
    copies = {target: fcntl.fcntl(source, fcntl.F_DUPFD, _SCRATCH) for target, source in fds.items()}
    limit = os.sysconf("SC_OPEN_MAX")
    for target, copy in copies.items():
        os.dup2(copy, target)
    start = 0
    for target in sorted(fds):
        if start < target:  # closerange(0, 0) would close everything
            os.closerange(start, target)
        start = target + 1
    os.closerange(start, limit)


def others() -> set[int]:
    """Every process but init and the supervisor."""
    mine = {1, os.getpid()}
    return {int(name) for name in os.listdir("/proc") if name.isdigit()} - mine


def now() -> int:
    """The time in the unit of a process's start time."""
    return int(time.clock_gettime(time.CLOCK_BOOTTIME) * _TICKS)


def started_since(moment: int) -> set[int]:
    """Processes younger than a moment of `now()`, the dead that nobody has waited for excepted."""
    found = set()
    for pid in others():
        fields = _stat(pid)
        if fields and fields[0] not in (b"Z", b"X") and int(fields[19]) >= moment:
            found.add(pid)
    return found


def descendants(root: int) -> list[int]:
    """The children of a process, their children, and so on."""
    parents = {}
    for pid in others():
        fields = _stat(pid)
        if fields:
            parents[pid] = int(fields[1])
    found, level = [], {root}
    while level:
        level = {pid for pid, parent in parents.items() if parent in level} - set(found) - {root}
        found += level
    return found


def _stat(pid: int) -> list[bytes]:
    """The fields of /proc/PID/stat from the state on (index 0); empty if the process is gone."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()
    except OSError:
        return []


def send(pids: Iterable[int], number: int) -> None:
    """Signal processes, the dead among them excepted."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


class Counters:
    """The control group's counters (version 1 and 2) that tell an out-of-memory kill from another."""

    def __init__(self) -> None:
        self._events, self._usage, self._names = -1, "", frozenset()
        for events, usage, names in (
            ("/sys/fs/cgroup/memory.events", "/sys/fs/cgroup/memory.stat", (b"anon", b"shmem")),
            ("/sys/fs/cgroup/memory/memory.oom_control", "/sys/fs/cgroup/memory/memory.stat", (b"rss", b"shmem")),
        ):
            if os.path.exists(events):
                self._events, self._usage, self._names = os.open(events, os.O_RDONLY), usage, frozenset(names)
                break

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


def ipc_objects() -> int:
    """System V segments, semaphores and queues, which outlive their processes; the seccomp profile forbids them."""
    count = 0
    for kind in ("shm", "sem", "msg"):
        try:
            with open("/proc/sysvipc/" + kind, "rb") as file:
                count += len(file.readlines()) - 1
        except FileNotFoundError:
            pass  # a kernel without System V IPC
    return count
