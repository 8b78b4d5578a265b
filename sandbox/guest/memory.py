"""The memory of a box that no control group holds: the supervisor measures it, and kills the code if it is too much."""

from __future__ import annotations

import contextlib
import os
import signal

from .files import in_memory
from .processes import everyone

_BYTES_PER_INODE = 1 << 10  # of the kernel's memory, for each file in memory
_FASTEST = 2 << 30  # bytes a second at which code may be expected to fill its memory
_SHORTEST, _LONGEST = 0.02, 0.2  # seconds between two looks
_IDLE = 0.25  # seconds between two looks, at least, while no call runs: most boxes of a pool are idle
_TABLES = (b"VmPTE:",)
_COUNTED = (b"RssAnon:", b"RssShmem:", b"VmSwap:", *_TABLES)
_SHARED = (b"Pss_Anon:", b"Pss_Shmem:", b"SwapPss:")  # the same, but a page of several processes is divided by them


class Meter:
    """Knows how much memory the box uses."""

    def __init__(self, limit: int) -> None:
        self._kills = 0
        self._limit = limit
        self._folders = in_memory("tmpfs")

    def check(self, is_idle: bool) -> float:
        """Kill all code if it uses too much memory. Return the seconds until the next check."""
        used = self.usage()
        if used > self._limit and self.usage(exact=True) > self._limit:
            self._kills += 1
            with contextlib.suppress(ProcessLookupError):
                os.kill(-1, signal.SIGKILL)
        rest = max(0, self._limit - used)
        return max(min(max(rest / _FASTEST, _SHORTEST), _LONGEST), _IDLE if is_idle else 0.0)

    def oom_kills(self) -> int:
        """Return how often the code was killed for memory."""
        return self._kills

    def usage(self, *, exact: bool = False) -> int:
        """Return the bytes of processes and of files in memory; a mapped file in memory counts twice.

        Unless `exact`, which takes longer, pages that a process shares with those that it has forked count for each.
        """
        files = (os.statvfs(path) for path in self._folders)
        in_files = sum(
            (f.f_blocks - f.f_bfree) * f.f_frsize + (f.f_files - f.f_ffree) * _BYTES_PER_INODE for f in files
        )
        return in_files + sum(_of_process(pid, exact) for pid in everyone())


def _of_process(pid: int, exact: bool) -> int:
    folder = f"/proc/{pid}"
    if exact and (size := _sum_of(f"{folder}/smaps_rollup", _SHARED)):
        return size + _sum_of(f"{folder}/status", _TABLES)  # a process can hide the first, but not the second
    size = _sum_of(f"{folder}/status", _COUNTED)
    if size:
        return size
    # The kernel shows the memory of a process whose first thread has ended at its other threads only.
    with contextlib.suppress(OSError):
        threads = os.listdir(f"{folder}/task")  # none, if it is just ending
        return max((_sum_of(f"{folder}/task/{name}/status", _COUNTED) for name in threads), default=0)
    return 0


def _sum_of(path: str, names: tuple[bytes, ...]) -> int:
    try:
        with open(path, "rb") as file:
            return sum(int(line.split()[1]) << 10 for line in file if line.startswith(names))
    except OSError:
        return 0  # it has ended, or is hidden
