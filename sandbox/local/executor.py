"""LocalExecutor: a box in a plain subprocess, for code that you trust. It protects nobody."""

from __future__ import annotations

import platform
import socket
import sys
import warnings
from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from ..arguments import checked_environment, checked_modules
from ..errors import ImageError, SandboxClosedError
from ..host.messages import supervisor_settings
from ..host.supervised import START_TIMEOUT
from ..host.supervised_executor import SupervisedExecutor
from ..keywords import checks_keywords
from ..limits import Limits, check_limits, size_of
from .host_sandbox import HostSandbox
from .process import LocalProcess, has_proc, start_process

_NOT_HELD = ("cpus", "pids", "shm", "max_inodes")  # limits that cannot be set for a subprocess


@checks_keywords(limits=Limits)
class LocalExecutor(HostSandbox[LocalProcess], SupervisedExecutor):
    """A box that is a subprocess on this machine: FOR CODE THAT YOU TRUST. IT PROTECTS NOBODY.

        async with LocalExecutor() as box:
            print((await box.python("import sys; sys.version")).value)

    The code runs as this user: it can read and write this user's files, use the network, and signal this user's
    processes. A reset leaves files outside of the workspace and of `$TMPDIR` as they are. The box keeps the contract:
    state, timeouts and capped output. Its processes and its folder are removed at `reset`, at `close`, and when this
    process ends. Use `DockerExecutor` for code that a model wrote. Linux only.

    Some limits mean less here. `memory` bounds the data of each process on its own, so too large an allocation is a
    `MemoryError` of the code, not `Status.OOM`. The larger of `workspace` and `tmp` bounds each file, and nothing
    bounds a folder. `cpus`, `pids`, `shm` and `max_inodes` are ignored, with a warning. The others hold as in a
    container.

    Args:
        python: the interpreter that runs the code; the code can import its packages.
        limits: the resources that the box may use.
        env: environment variables for the code. It inherits only PATH, LD_LIBRARY_PATH and TZ from this process.
        files: the content of the workspace after `start` and each `reset`, by relative path; text is encoded as UTF-8.
        preload: modules to import once, before the first session; sessions then start with them imported.
        start_timeout: seconds until the box must be ready.

    Raises:
        TypeError, ValueError: an argument is of the wrong type or out of range.
    """

    what = "this machine"

    def __init__(
        self,
        *,
        python: str | Path = sys.executable,
        limits: Limits | None = None,
        env: Mapping[str, str] | None = None,
        files: Mapping[str, bytes | str] | None = None,
        preload: Sequence[str] = (),
        start_timeout: float = START_TIMEOUT,
    ) -> None:
        limits = check_limits(limits)
        super().__init__(limits=limits, files=files, start_timeout=start_timeout)
        self.python_path = str(python)
        self.env = checked_environment(env)
        self.preload = checked_modules(preload)
        standard = Limits(memory=limits.memory)
        if ignored := [name for name in _NOT_HELD if getattr(limits, name) != getattr(standard, name)]:
            warnings.warn(
                f"LocalExecutor ignores these limits: {', '.join(ignored)}; DockerExecutor holds them",
                stacklevel=2,
            )

    @property
    def key(self) -> Hashable:
        environment = tuple(sorted(self.env.items()))
        return (type(self), self.python_path, self.limits, environment, self.preload)

    @property
    def workspace(self) -> Path:
        """The folder in which the code starts.

        Raises:
            SandboxClosedError: the box is not open.
        """
        if self._process is None:
            raise SandboxClosedError("a box has its workspace between start() and close()")
        return self._process.root / "workspace"

    # Starting and removing the process.

    async def _prepare(self) -> None:
        if not has_proc():
            raise ImageError(
                f"LocalExecutor needs Linux with /proc, to find the processes of a box; this is {platform.system()}: "
                "use DockerExecutor, whose engine brings its own Linux"
            )

    def _start_process(self, connection: socket.socket, stderr: IO[bytes]) -> LocalProcess:
        try:
            return start_process(self.python_path, connection, stderr)
        except OSError as error:
            raise ImageError(f"python={self.python_path!r} could not be started: {error}") from error

    def _settings(self) -> dict[str, Any]:
        assert self._process is not None
        root, limits = self._process.root, self.limits
        rlimits = {
            "RLIMIT_CORE": 0,
            "RLIMIT_NOFILE": limits.open_files,
            "RLIMIT_FSIZE": max(size_of(limits.workspace), size_of(limits.tmp)),
            "RLIMIT_DATA": size_of(limits.memory),
        }
        tmp = str(root / "tmp")
        local, workspace = {"root": str(root), "tmp": tmp}, str(root / "workspace")
        environment = {"TMPDIR": tmp, **self.env}
        return supervisor_settings(limits, workspace, environment, self.preload, local=local, rlimits=rlimits)

    async def _fill(self) -> None:
        assert self._process is not None
        self._process.note_folder()
        await super()._fill()
