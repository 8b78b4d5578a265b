"""The process of a `LocalExecutor`: a supervisor. When it ends, its code's processes and folder go too."""

from __future__ import annotations

import contextlib
import os
import platform
import shutil
import signal
import socket
import subprocess
import tempfile
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from ..host.boot import BOOT

MARK = "GYMNAST_SANDBOX"  # the variable that tells a box's processes, even where the supervisor was killed

_PASSED_ON = ("LD_LIBRARY_PATH", "TZ")  # of the host's environment, beside PATH: without them programs do not start
_END_SECONDS = 10.0  # for a supervisor to end its descendants, remove its folder and go


@dataclass(kw_only=True)
class LocalProcess:
    """A supervisor, and the folder that it makes and removes; its end is to be waited for in a thread."""

    popen: subprocess.Popen[bytes]
    root: Path
    ready: bool = False  # it listens to its connection; before, it may be importing something that takes for ever
    made: tuple[int, int] | None = None  # what the folder was when no code had run yet: its device and inode

    def make_ready(self) -> None:
        """Note that the supervisor has said hello, and made its folder."""
        self.ready, self.made = True, _identity(self.root)

    def end(self) -> None:
        """Wait until the supervisor is gone, whose connection has been closed, and see that nothing is left."""
        try:
            self.popen.wait(_END_SECONDS if self.ready else 0)
        except subprocess.TimeoutExpired:
            self.popen.kill()
            self.popen.wait()
        if self.popen.returncode != 0:
            kill_marked(str(self.root))
        self._remove_folder()

    def _remove_folder(self) -> None:
        """Remove the folder; code may have put another folder in its place, or a link to one, which is not ours."""
        if self.root.is_symlink():
            self.root.unlink(missing_ok=True)
        elif self.made in (None, _identity(self.root)):
            shutil.rmtree(self.root, ignore_errors=True)


def _identity(folder: Path) -> tuple[int, int] | None:
    try:
        found = folder.lstat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def has_proc() -> bool:
    """Whether the system tells of its processes as Linux does."""
    return platform.system() == "Linux" and os.path.exists("/proc/self/stat")


def start_process(python: str, connection: socket.socket, said: IO[bytes]) -> LocalProcess:
    """Start a supervisor at the other end of a connection.

    Args:
        python: its interpreter.
        connection: its standard input and output.
        said: its standard error.

    Raises:
        OSError: the interpreter cannot be started.
    """
    root = Path(tempfile.gettempdir()) / f"gymnast-{uuid.uuid4().hex[:12]}"
    environment = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
    folders = [os.path.dirname(os.path.abspath(python))] if os.sep in python else []
    environment["PATH"] = os.pathsep.join([*folders, os.environ.get("PATH", os.defpath)])
    popen = subprocess.Popen(
        [python, "-u", "-c", BOOT],
        stdin=connection.fileno(),
        stdout=connection.fileno(),
        stderr=said,
        env={**environment, MARK: str(root)},
        cwd="/",
        start_new_session=True,  # the terminal's signals are for this process
    )
    return LocalProcess(popen=popen, root=root)


def kill_marked(root: str) -> None:
    """Kill the processes of a supervisor that was killed itself, by what is in their environment."""
    mark = f"{MARK}={root}".encode()
    for _ in range(100):  # rounds in which there were new ones
        found = [int(name) for name in os.listdir("/proc") if name.isdigit() and _is_marked(name, mark)]
        for pid in found:
            _kill_if_marked(pid, mark)
        if not found:
            return


def _is_marked(pid: int | str, mark: bytes) -> bool:
    try:
        return mark in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return False  # gone, or another user's


def _kill_if_marked(pid: int, mark: bytes) -> None:
    """Kill a process, and not another one that has got its number since it was seen."""
    try:
        process = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    except (AttributeError, OSError):  # this Python, or the kernel, is too old for it
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)
        return
    try:
        if _is_marked(pid, mark):  # then the process that is held has the mark, or is dead by now
            signal.pidfd_send_signal(process, signal.SIGKILL)
    except OSError:
        pass  # dead by now
    finally:
        os.close(process)
