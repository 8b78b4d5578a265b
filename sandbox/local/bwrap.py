"""BwrapExecutor: code in the namespaces that bubblewrap makes, without an engine and without root."""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import platform
import socket
import subprocess
import threading
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import IO, Any

from ..arguments import checked_environment, checked_modules
from ..base import WORKSPACE
from ..errors import EngineError
from ..host.boot import BOOT
from ..host.messages import supervisor_settings
from ..host.seccomp import compiled_filter
from ..host.supervised import START_TIMEOUT
from ..keywords import checks_keywords
from ..limits import Limits, check_limits, size_of
from . import bubblewrap
from .control_groups import ControlGroup, make_control_group
from .host_executor import HostExecutor

logger = logging.getLogger(__name__)

_END_SECONDS = 10.0  # for a supervisor to notice that its connection has ended
_boxes = itertools.count()


@dataclass(kw_only=True)
class BwrapProcess:
    """A bubblewrap, with the supervisor in it, and its control group."""

    popen: subprocess.Popen[bytes]
    group: ControlGroup

    def end(self, is_silent: bool) -> None:
        try:
            self.popen.wait(0 if is_silent else _END_SECONDS)
        except subprocess.TimeoutExpired:
            self.popen.kill()  # bubblewrap dies with its parent, and the box with bubblewrap
            self.popen.wait()
        self.group.remove()


@checks_keywords(limits=Limits)
class BwrapExecutor(HostExecutor[BwrapProcess]):
    """A box in namespaces of its own: no network, no files but the system's, no processes but its own.

        async with BwrapExecutor() as box:
            print((await box.python("import os; os.listdir('/home')")).stderr)

    It needs Linux and the program `bwrap`, and neither an engine nor root. The code sees the folders `/usr` and `/lib`
    of this machine and the folder of `python`, all of them read-only; `/workspace`, `/tmp` and `/dev/shm` are in
    memory. The filter of system calls is that of a container.

    Memory and processes of the whole box are held by a control group where this user may make one. Elsewhere the
    supervisor measures the memory and kills the code if it is too much (`Status.OOM`), and the kernel counts the
    processes. `cpus` and `max_inodes` are not held: docs/without_docker.md.

    Args:
        python: the interpreter that runs the code; the code can import its packages. The default is that behind this
            one, without the packages of a virtual environment.
        limits: the resources that the box may use.
        env: environment variables for the code. The host's environment is not passed on.
        files: the content of `/workspace` after `start` and each `reset`, by relative path; text is encoded as UTF-8.
        preload: modules to import before the first session, for which their import then takes no time.
        best_effort: whether a box may start although a limit that you have set cannot be held, which is then logged.
        start_timeout: seconds until the box must be ready.

    Raises:
        TypeError, ValueError: an argument is of the wrong type or out of range.
    """

    what = "this machine"

    def __init__(
        self,
        *,
        python: str | Path | None = None,
        limits: Limits | None = None,
        env: Mapping[str, str] | None = None,
        files: Mapping[str, bytes | str] | None = None,
        preload: Sequence[str] = (),
        best_effort: bool = False,
        start_timeout: float = START_TIMEOUT,
    ) -> None:
        super().__init__(limits=check_limits(limits), files=files, start_timeout=start_timeout)
        self.python_path = None if python is None else str(python)
        self.env = checked_environment(env)
        self.preload = checked_modules(preload)
        self.best_effort = best_effort

    @property
    def key(self) -> Hashable:
        environment = tuple(sorted(self.env.items()))
        return (type(self), self.python_path, self.limits, environment, self.preload, self.best_effort)

    def _renew(self) -> None:
        super()._renew()
        self._user: int | None = None
        self._is_measured = False

    async def _prepare(self) -> None:
        await asyncio.to_thread(require_bubblewrap)
        path = self.python_path
        self._installation = bubblewrap.default_installation() if path is None else bubblewrap.Installation.of(path)
        missing = _not_held()
        standard = Limits(memory=self.limits.memory)
        wanted = [name for name in missing if getattr(self.limits, name) != getattr(standard, name)]
        if wanted and not self.best_effort:
            raise EngineError(
                f"a box of bubblewrap cannot hold Limits.{' and Limits.'.join(wanted)} on this machine: leave "
                f"{'it' if len(wanted) == 1 else 'them'} out, say best_effort=True, or use DockerExecutor"
            )
        _warn_once()

    def _start_process(self, connection: socket.socket, stderr: IO[bytes]) -> BwrapProcess:
        group = make_control_group(self.limits)
        self._user = bubblewrap.new_user(next(_boxes))
        self._is_measured = "memory" not in group.folders
        # Memory behind a descriptor belongs to no process, so the supervisor could not measure it.
        denied = ("memfd_create",) if self._is_measured else ()
        fd = os.memfd_create("gymnast-seccomp", 0)
        try:
            os.write(fd, compiled_filter(denied, guards_init=self._user is None))
            os.lseek(fd, 0, os.SEEK_SET)
            command = bubblewrap.arguments(self.limits, self._installation, user=self._user, view=group.view(), fd=fd)
            popen = subprocess.Popen(
                group.entering([*command, self._installation.python, "-u", "-c", BOOT]),
                stdin=connection.fileno(),
                stdout=connection.fileno(),
                stderr=stderr,
                env={"PATH": os.environ.get("PATH", os.defpath)},  # of bubblewrap, which passes none on
                cwd="/",
                pass_fds=(fd,),
                start_new_session=True,  # so the terminal's Ctrl-C does not reach it
            )
        except BaseException:
            group.remove()
            raise
        finally:
            os.close(fd)
        return BwrapProcess(popen=popen, group=group)

    def _settings(self) -> dict[str, Any]:
        limits = self.limits
        rlimits = {
            "RLIMIT_CORE": 0,
            "RLIMIT_NOFILE": limits.open_files,
            "RLIMIT_FSIZE": max(size_of(limits.workspace), size_of(limits.tmp)),
        }
        if "pids" not in _not_held():
            rlimits["RLIMIT_NPROC"] = limits.pids
        return supervisor_settings(
            limits, WORKSPACE, self.env, self.preload, user=self._user, rlimits=rlimits, measured=self._is_measured
        )

    async def _ran_out_of_memory(self) -> bool:
        return self._process is not None and self._process.group.oom_kills() > 0


def require_bubblewrap() -> None:
    """Raise `EngineError`, with the reason, if bubblewrap makes no boxes on this machine."""
    if platform.system() != "Linux":
        raise EngineError(f"bubblewrap needs Linux; this is {platform.system()}")
    with _probing:
        if reason := bubblewrap.why_not(bubblewrap.program()):
            raise EngineError(reason)


_probing = threading.Lock()  # else all boxes that start at once would try bubblewrap


def _not_held() -> tuple[str, ...]:
    """Return the limits that boxes of bubblewrap do not hold on this machine."""
    sizes = () if "--size" in bubblewrap.options(bubblewrap.program()) else ("workspace", "tmp", "shm")
    # Since Linux 5.14 processes are counted in each user namespace. Boxes of root have a user each.
    release = tuple(int(part) for part in platform.release().split("-")[0].split(".")[:2])
    is_counted = bubblewrap.new_user(0) is not None or release >= (5, 14)
    return ("cpus", "max_inodes", *sizes, *(() if is_counted else ("pids",)))


def what_is_not_held() -> str:
    """Say which limits boxes of bubblewrap do not hold on this machine, and whether they only measure the memory."""
    group = make_control_group(Limits())
    group.remove()
    measured = "" if "memory" in group.folders else "; memory is measured, and can be exceeded for a moment"
    return f"its boxes do not hold {', '.join(f'Limits.{name}' for name in _not_held())} on this machine{measured}"


@cache
def _warn_once() -> None:
    logger.warning("bubblewrap: %s", what_is_not_held())
