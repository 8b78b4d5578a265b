"""BwrapSandbox: the part that both kinds of boxes of bubblewrap share: the process, its limits, its end."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import os
import platform
import signal
import socket
import subprocess
import threading
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import IO

from ..errors import EngineError
from ..limits import Limits
from . import bubblewrap
from .control_groups import RAN_OUT, ControlGroup, make_control_group
from .host_sandbox import HostSandbox
from .layers import remove_folder

logger = logging.getLogger(__name__)

_END_SECONDS = 10.0  # for a guest to notice that its connection has ended
_AUTOPSY_SECONDS = 8.0  # for the programs around a box to end after it
_boxes = itertools.count()


@dataclass(kw_only=True)
class BwrapProcess:
    """A bubblewrap, with the guest in it, and the programs around it."""

    popen: subprocess.Popen[bytes]
    group: ControlGroup
    folder: Path | None  # of the box's own files, if it has such a folder

    def end(self, is_silent: bool) -> None:
        """See `HostProcess.end`."""
        try:
            self.popen.wait(0 if is_silent else _END_SECONDS)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.popen.pid, signal.SIGKILL)  # the box dies with bubblewrap
            self.popen.wait()
        _clean(self.group, self.folder)

    def ran_out_of_memory(self) -> bool:
        """Whether the box, which has just ended, was killed for memory. This blocks."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self.popen.wait(_AUTOPSY_SECONDS) == RAN_OUT
        return False


def _clean(group: ControlGroup, folder: Path | None) -> None:
    group.remove()
    if folder is not None:
        remove_folder(folder)


class BwrapSandbox(HostSandbox[BwrapProcess]):
    """A box of bubblewrap. A subclass gives the command and the settings of the guest."""

    best_effort: bool

    def _renew(self) -> None:
        super()._renew()
        self._user: int | None = None
        self._is_measured = False

    @abstractmethod
    def _filter(self, denied: tuple[str, ...]) -> bytes:
        """Return the compiled filter of system calls, which denies these besides."""

    @abstractmethod
    def _command(self, view: list[str], fd: int, folder: Path | None) -> list[str]:
        """Return the command that makes the box, with further arguments of bubblewrap and the filter's descriptor."""

    def _make_folder(self) -> Path | None:
        """Make the folder of the box's own files, if it needs one."""
        return None

    def _start_process(self, connection: socket.socket, stderr: IO[bytes]) -> BwrapProcess:
        group = make_control_group(self.limits)
        self._user = bubblewrap.new_user(next(_boxes))
        self._is_measured = "memory" not in group.folders
        # Memory behind a descriptor belongs to no process, so the guest could not measure it.
        denied = ("memfd_create",) if self._is_measured else ()
        fd, folder = os.memfd_create("gymnast-seccomp", 0), None
        try:
            folder = self._make_folder()
            os.write(fd, self._filter(denied))
            os.lseek(fd, 0, os.SEEK_SET)
            popen = subprocess.Popen(
                group.entering(self._command(group.view(), fd, folder)),
                stdin=connection.fileno(),
                stdout=connection.fileno(),
                stderr=stderr,
                env={"PATH": os.environ.get("PATH", os.defpath)},  # of bubblewrap, which passes none on
                cwd=folder or "/",
                pass_fds=(fd,),
                start_new_session=True,  # so the terminal's Ctrl-C does not reach it
            )
        except BaseException:
            _clean(group, folder)
            raise
        finally:
            os.close(fd)
        return BwrapProcess(popen=popen, group=group, folder=folder)

    async def _ran_out_of_memory(self) -> bool:
        process = self._process
        return process is not None and await asyncio.to_thread(process.ran_out_of_memory)

    def _require_limits(self, missing: Sequence[str]) -> None:
        """Raise `EngineError` if a limit that was set cannot be held; name those that are not held, once."""
        standard = Limits(memory=self.limits.memory)
        wanted = [name for name in missing if getattr(self.limits, name) != getattr(standard, name)]
        if wanted and not self.best_effort:
            raise EngineError(
                f"a box of bubblewrap cannot hold Limits.{' and Limits.'.join(wanted)} on this machine: leave "
                f"{'it' if len(wanted) == 1 else 'them'} out, say best_effort=True, or use Docker"
            )
        _warn_once()


def require_bubblewrap() -> None:
    """Raise `EngineError`, with the reason, if bubblewrap makes no boxes on this machine."""
    if platform.system() != "Linux":
        raise EngineError(f"bubblewrap needs Linux; this is {platform.system()}")
    with _probing:
        if reason := bubblewrap.why_not(bubblewrap.program()):
            raise EngineError(reason)


_probing = threading.Lock()  # else all boxes that start at once would try bubblewrap


def not_held() -> tuple[str, ...]:
    """Return the limits that executors of bubblewrap do not hold on this machine."""
    sizes = () if bubblewrap.has_sizes() else ("workspace", "tmp", "shm")
    # Since Linux 5.14 processes are counted in each user namespace. Boxes of root have a user each.
    release = tuple(int(part) for part in platform.release().split("-")[0].split(".")[:2])
    is_counted = bubblewrap.new_user(0) is not None or release >= (5, 14)
    return ("cpus", "max_inodes", *sizes, *(() if is_counted else ("pids",)))


def what_is_not_held() -> str:
    """Say which limits boxes of bubblewrap do not hold on this machine, and whether they only measure the memory."""
    group = make_control_group(Limits())
    group.remove()
    measured = "" if "memory" in group.folders else "; memory is measured, and can be exceeded for a moment"
    return f"its boxes do not hold {', '.join(f'Limits.{name}' for name in not_held())} on this machine{measured}"


@cache
def _warn_once() -> None:
    logger.warning("bubblewrap: %s", what_is_not_held())
