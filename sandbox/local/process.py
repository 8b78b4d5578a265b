"""The supervisor's process of a `LocalExecutor`, and the removal of the processes and the folder that it leaves."""

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

MARK = "GYMNAST_SANDBOX"  # an environment variable by which a box's processes are found if its supervisor was killed

_INHERITED = ("LD_LIBRARY_PATH", "TZ")  # beside PATH; without them some programs do not start
_END_SECONDS = 10.0  # for a supervisor to end its descendants, remove its folder and exit


@dataclass(kw_only=True)
class LocalProcess:
    """A supervisor and the folder that it makes and removes."""

    popen: subprocess.Popen[bytes]
    root: Path
    made: tuple[int, int] | None = None  # device and inode of the folder before any code ran; None until it is made

    def note_folder(self) -> None:
        """Note the folder, when the supervisor has said hello and no code has run yet."""
        self.made = _identity(self.root)

    def end(self, is_silent: bool) -> None:
        """Wait until the supervisor, whose connection is closed, has ended; remove what it left. This blocks.

        A supervisor that is silent gets no time to end by itself.
        """
        try:
            # Before its hello a supervisor may be importing a module that never returns.
            self.popen.wait(_END_SECONDS if self.made and not is_silent else 0)
        except subprocess.TimeoutExpired:
            self.popen.kill()
            self.popen.wait()
        if self.popen.returncode != 0:
            kill_marked(str(self.root))
        self._remove_folder()

    def _remove_folder(self) -> None:
        """Remove the folder, but not another folder or the target of a link that code has put in its place."""
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
    """Whether the system lists its processes in /proc, as Linux does."""
    return platform.system() == "Linux" and os.path.exists("/proc/self/stat")


def start_process(python: str, connection: socket.socket, stderr: IO[bytes]) -> LocalProcess:
    """Start a supervisor with the connection as standard input and output; OSError if `python` cannot be started."""
    root = Path(tempfile.gettempdir()) / f"gymnast-{uuid.uuid4().hex[:12]}"
    environment = {name: os.environ[name] for name in _INHERITED if name in os.environ}
    folders = [os.path.dirname(os.path.abspath(python))] if os.sep in python else []
    environment["PATH"] = os.pathsep.join([*folders, os.environ.get("PATH", os.defpath)])
    popen = subprocess.Popen(
        [python, "-u", "-c", BOOT],
        stdin=connection.fileno(),
        stdout=connection.fileno(),
        stderr=stderr,
        env={**environment, MARK: str(root)},
        cwd="/",
        start_new_session=True,  # so the terminal's Ctrl-C does not reach it
    )
    return LocalProcess(popen=popen, root=root)


def kill_marked(root: str) -> None:
    """Kill the processes of a supervisor that was killed itself, which are found by their environment."""
    mark = f"{MARK}={root}".encode()
    for _ in range(100):  # a round may find new ones
        found = [int(name) for name in os.listdir("/proc") if name.isdigit() and _is_marked(name, mark)]
        for pid in found:
            _kill_if_marked(pid, mark)
        if not found:
            return


def _is_marked(pid: int | str, mark: bytes) -> bool:
    try:
        return mark in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return False  # it has ended, or is another user's


def _kill_if_marked(pid: int, mark: bytes) -> None:
    """Kill a process, but not another one that has got its number in the meantime."""
    try:
        process = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    except (AttributeError, OSError):  # this Python or the kernel is too old
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)
        return
    try:
        if _is_marked(pid, mark):  # then it is the process behind the pidfd, unless that one has ended
            signal.pidfd_send_signal(process, signal.SIGKILL)
    except OSError:
        pass  # it has ended
    finally:
        os.close(process)
