"""LocalExecutor: the executor contract in a plain subprocess, for code that you trust; it protects nobody."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import os
import platform
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import uuid
import warnings
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Self

from .base import Limits, size_of
from .boot import BOOT
from .connection import Connection
from .errors import EngineError, SandboxClosedError
from .settings import supervisor_settings
from .supervised import START_TIMEOUT, SupervisedExecutor

MARK = "GYMNAST_SANDBOX"  # the variable that tells a box's processes, even where the supervisor was killed

_PASSED_ON = ("LD_LIBRARY_PATH", "TZ")  # of the host's environment, beside PATH: without them programs do not start
_NOT_HELD = ("cpus", "pids", "workspace", "tmp", "shm", "max_inodes")  # limits that a subprocess cannot be given
_END_SECONDS = 10.0  # for a supervisor to end its descendants, remove its folder and go


class LocalExecutor(SupervisedExecutor):
    """A box that is a subprocess on this machine: FOR CODE THAT YOU TRUST. IT PROTECTS NOBODY.

        async with LocalExecutor() as box:
            print((await box.python("import sys; sys.version")).value)

    The code runs as this user: it can read and write this user's files, use the network, and signal this user's
    processes; files outside of the workspace and of `$TMPDIR` stay after a reset. What you get is the contract: state,
    timeouts, capped output, and that its processes and its folder go at `reset`, at `close`, and with this process.
    `DockerExecutor` is the one for code that a model wrote. Linux only.

    Of the limits, `memory` bounds the data of each process on its own, so too large an allocation is a `MemoryError`
    of the code (and no `Status.OOM`); the larger of `workspace` and `tmp` bounds each file; `open_files` and all that
    the supervisor itself holds are as elsewhere. The others cannot be held: setting one of them is answered with a
    warning.

    Args:
        python: the interpreter that runs the code, with the packages that it has.
        limits: what the box may use.
        env: environment variables for the code; of this process's environment it gets only PATH, LD_LIBRARY_PATH, TZ.
        files: what the workspace holds after `start` and each `reset`, by relative path; text is encoded as UTF-8.
        preload: modules to import before the first session, which then begins with them in no time.
        start_timeout: seconds until the box must be ready.

    Raises:
        ValueError: an argument is out of range.
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
        limits = limits or Limits()
        self._set_up(str(python), limits, dict(env or {}), files, tuple(preload), start_timeout)
        standard = Limits()
        ignored = [name for name in _NOT_HELD if getattr(limits, name) != getattr(standard, name)]
        if ignored:
            warnings.warn(
                f"LocalExecutor cannot hold these limits, and nothing does: {', '.join(ignored)}; "
                "DockerExecutor holds them",
                stacklevel=2,
            )

    def _set_up(
        self,
        python: str,
        limits: Limits,
        env: dict[str, str],
        files: Mapping[str, bytes | str] | None,
        preload: tuple[str, ...],
        start_timeout: float,
    ) -> None:
        super().__init__(limits=limits, files=files, start_timeout=start_timeout)
        self.python_path = python
        self.env = env
        self.preload = preload
        self._process: _Process | None = None
        self._endings: set[concurrent.futures.Future[None]] = set()

    @property
    def key(self) -> Hashable:
        environment = tuple(sorted(self.env.items()))
        return (type(self), self.python_path, self.limits, environment, self.preload, self.file_key)

    def clone(self) -> Self:
        twin = object.__new__(type(self))  # without a second warning
        twin._set_up(self.python_path, self.limits, self.env, self.files, self.preload, self.start_timeout)
        return twin

    @property
    def workspace(self) -> Path:
        """The folder that the code starts in.

        Raises:
            SandboxClosedError: there is none before `start` and after `close`.
        """
        if self._process is None:
            raise SandboxClosedError("a box has its workspace between start() and close()")
        return self._process.root / "workspace"

    # How.

    async def _prepare(self) -> None:
        if not _has_proc():
            raise EngineError(
                f"LocalExecutor needs Linux with /proc, to find the processes of a box, and this is "
                f"{platform.system()}: use DockerExecutor, whose engine brings its own Linux"
            )

    async def _launch(self) -> Connection:
        max_payload = max(size_of(self.limits.max_file), 8 * size_of(self.limits.max_output)) + (1 << 20)
        loop = asyncio.get_running_loop()
        ours, theirs = socket.socketpair()
        with tempfile.TemporaryFile() as said, theirs, contextlib.ExitStack() as undo:
            undo.callback(ours.close)
            make = lambda: _LocalConnection(max_payload, os.dup(said.fileno()))  # noqa: E731
            _, connection = await loop.create_connection(make, sock=ours)
            undo.callback(connection.abort, "it could not be started")
            try:
                self._process = _start(self.python_path, theirs, said)
            except OSError as error:
                raise EngineError(f"python={self.python_path!r} could not be started: {error}") from error
            undo.pop_all()
        return connection

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
        return supervisor_settings(
            limits,
            workspace=str(root / "workspace"),
            environment={"TMPDIR": tmp, **self.env},
            preload=self.preload,
            local={"root": str(root), "tmp": tmp, "rlimits": rlimits},
        )

    async def _hello(self, connection: Connection) -> None:
        await super()._hello(connection)
        assert self._process is not None
        self._process.ready = True

    def _remove_soon(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            thread = concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix="gymnast-local")
            ending = thread.submit(process.end)
            thread.shutdown(wait=False)
            self._endings.add(ending)
            ending.add_done_callback(self._endings.discard)

    async def _remove(self) -> None:
        self._remove_soon()
        await asyncio.gather(*(asyncio.wrap_future(ending) for ending in list(self._endings)))


class _LocalConnection(Connection):
    """A connection to a supervisor that speaks its last words into a file.

    A pipe would have to be read beside the socket, and the end of one be waited for at the end of the other.
    """

    def __init__(self, max_payload: int, said: int) -> None:
        super().__init__(max_payload)
        self._said = said

    def connection_lost(self, exc: Exception | None) -> None:
        size = os.fstat(self._said).st_size
        self._complain(os.pread(self._said, 4096, max(0, size - 4096)))
        os.close(self._said)
        super().connection_lost(exc)


@dataclass(kw_only=True)
class _Process:
    """A supervisor, and the folder that it makes and removes; its end is to be waited for in a thread."""

    popen: subprocess.Popen[bytes]
    root: Path
    ready: bool = False  # it listens to its connection; before, it may be importing something that takes for ever

    def end(self) -> None:
        """Wait until the supervisor is gone, whose connection has been closed, and see that nothing is left."""
        try:
            self.popen.wait(_END_SECONDS if self.ready else 0)
        except subprocess.TimeoutExpired:
            self.popen.kill()
            self.popen.wait()
        if self.popen.returncode != 0:
            _kill_marked(str(self.root))
        shutil.rmtree(self.root, ignore_errors=True)


def _has_proc() -> bool:
    return platform.system() == "Linux" and os.path.exists("/proc/self/stat")


def _start(python: str, connection: socket.socket, said: IO[bytes]) -> _Process:
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
    return _Process(popen=popen, root=root)


def _kill_marked(root: str) -> None:
    """Kill the processes of a supervisor that was killed itself, by what is in their environment."""
    mark = f"{MARK}={root}".encode()
    for _ in range(100):  # rounds in which there were new ones
        found = False
        for name in os.listdir("/proc"):
            try:
                if name.isdigit() and mark in Path(f"/proc/{name}/environ").read_bytes().split(b"\0"):
                    os.kill(int(name), signal.SIGKILL)
                    found = True
            except OSError:
                pass  # gone, or another user's
        if not found:
            return
