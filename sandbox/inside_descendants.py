"""What a supervisor rules over on a machine that belongs to others: a folder, and the processes that descend from it.

`inside_container.py` has the same methods for a container. Runs inside the box: standard library only, Python >= 3.8.
"""

from __future__ import annotations

import contextlib
import errno
import importlib
import os
import signal
import stat
import time
from collections.abc import Iterable
from typing import Any

from . import inside_files
from . import inside_processes as processes

_SET_CHILD_SUBREAPER = 36  # of prctl(2)
_MOVED = "the box's folder is not where it was, and what is there now was left alone"
_DEATH_SECONDS = 3.0  # for the last descendants to go; killed ones are gone long before


class Descendants:
    """Nothing is ours but a folder and the processes that descend from the supervisor; the code is the same user.

    Orphans among them become the supervisor's children, so none gets out of its sight. Signals go to descendants only.
    Only the very folder that was made here is ever emptied: the code may have put another one, or a link, in its place.
    """

    def __init__(self, settings: dict[str, Any]) -> None:
        own = settings["local"]
        self.root: str = own["root"]
        self.folders = [os.path.relpath(path, self.root) for path in (settings["workspace"], own["tmp"])]
        # An image may lack these two modules, so they are loaded only here, where the Python is a whole one.
        self._resource = importlib.import_module("resource")
        self._rlimits = [(getattr(self._resource, name), value) for name, value in own["rlimits"].items()]
        prctl = importlib.import_module("ctypes").CDLL(None, use_errno=True).prctl
        if prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
            raise OSError("this kernel does not give orphans to a subreaper")
        os.mkdir(self.root, 0o700)
        self._held = os.open(self.root, os.O_RDONLY | os.O_DIRECTORY)  # so no other folder gets its number
        for name in self.folders:
            os.mkdir(os.path.join(self.root, name), 0o700)
        status = os.fstat(self._held)
        self._identity = (status.st_dev, status.st_ino)

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

    def send(self, pids: Iterable[int], number: int) -> None:
        """Signal those that are descendants now."""
        processes.send(pids, number, under=os.getpid())

    def strike(self) -> None:
        """Stop every descendant, until there are no new ones, and send them their death."""
        stopped: set[int] = set()
        deadline = time.monotonic() + _DEATH_SECONDS
        while True:
            new = self.others() - stopped
            if not new or time.monotonic() > deadline:
                break
            self.send(new, signal.SIGSTOP)
            stopped |= new
        self.send(self.others(), signal.SIGKILL)

    def wipe(self) -> None:
        """Empty the two folders; when no other process of the code is running.

        Raises:
            OSError: something else is in the place of our folder; nothing was removed.
        """
        for name in self.folders:
            self._enter_root()
            with contextlib.suppress(FileNotFoundError):
                if stat.S_ISDIR(os.lstat(name).st_mode):
                    inside_files.empty(name)
                    continue
                os.unlink(name)  # a link, perhaps, to a folder that is not ours
            os.mkdir(name, 0o700)
        os.chdir("/")

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
        with contextlib.suppress(OSError):
            self._enter_root()
            inside_files.empty(self.root)
            os.rmdir(self.root)

    def oom_kills(self) -> int:
        """0, as nobody counts for these processes alone."""
        return 0

    def memory(self) -> int:
        """0, as nobody counts for these processes alone."""
        return 0

    def leftovers(self) -> str:
        """ "", as the machine's System V objects may be anybody's."""
        return ""

    def _enter_root(self) -> None:
        try:
            status = os.lstat(self.root)
        except FileNotFoundError:
            raise OSError(errno.ESTALE, _MOVED) from None
        if (status.st_dev, status.st_ino) != self._identity:
            raise OSError(errno.ESTALE, _MOVED)
        os.chmod(self.root, 0o700)
        os.chdir(self.root)
