"""BoxExecutor: sessions of Python and Bash in any box, a box of your own among them."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import socket
import uuid
from collections.abc import Coroutine, Hashable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from ..arguments import checked_environment, checked_modules
from ..box import Box, Capability, Process
from ..box_image import BoxImage
from ..cancellation import finish, stop
from ..errors import ImageError, SandboxError
from ..keywords import checks_keywords
from .boot import BOOT
from .connection import Connection
from .messages import supervisor_settings
from .supervised import START_TIMEOUT
from .supervised_executor import SupervisedExecutor

_USER = 1000  # of the code, in a box that has users
_PIECE = 1 << 16  # bytes read at a time
# The guest's standard error goes into a file, because a box mixes it with standard output, which holds frames.
_COMMAND = 'exec "$0" -u -c "$1" 2>"$2"'


@checks_keywords()
class BoxExecutor(SupervisedExecutor):
    """Sessions of Python and Bash in a box that can keep a program's streams (`Capability.STREAMS`).

        async with BoxExecutor(DockerBox(image=BoxImage.named("python:3.12-slim"))) as executor:
            print((await executor.python("import sys; sys.version")).value)

    The box holds the limits, and decides what the code can reach. In a box with users the guest of the sessions is
    root, and the code an ordinary user who cannot end it. In another box both are the same user: code that ends the
    guest loses the box, as in a `LocalExecutor`. A reset replaces the box; a `DockerExecutor` is reset in place, in
    milliseconds.

    Args:
        box: a box that is not started; the executor and its clones start clones of it. Its image needs a shell
            `sh`, and Python >= 3.8.
        python: the interpreter in the box, a path or a name on the PATH.
        user: the id of the code's user in a box with users; None for 1000. With 0 the code is root, as the guest is.
        env: environment variables for the code, beside the box's.
        files: the content of the workspace after `start` and each `reset`, by relative path; text is encoded as UTF-8.
        preload: modules to import before the first session, for which their import then takes no time.
        start_timeout: seconds until the sessions must be ready. The time to start the box does not count.

    Raises:
        TypeError, ValueError: an argument is of the wrong type or out of range, or the box lacks an ability.
    """

    what = "the box"
    reusable = _reusable = False  # the code may have changed files outside of its workspace

    def __init__(
        self,
        box: Box,
        *,
        python: str = "python3",
        user: int | None = None,
        env: Mapping[str, str] | None = None,
        files: Mapping[str, bytes | str] | None = None,
        preload: Sequence[str] = (),
        start_timeout: float = START_TIMEOUT,
    ) -> None:
        if not isinstance(box, Box) or box.state != "new":
            raise TypeError(f"box must be a box that is not started, such as DockerBox(), got {box!r}")
        if Capability.STREAMS not in box.capabilities:
            raise TypeError(f"{type(box).__name__} cannot keep a program's streams: it lacks Capability.STREAMS")
        has_users = Capability.USERS in box.capabilities
        if user is not None and not has_users:
            raise TypeError(f"{type(box).__name__} has one user: it lacks Capability.USERS, so user must be left out")
        if user is not None and not (isinstance(user, int) and 0 <= user < 1 << 31):
            raise ValueError(f"user must be the id of a user, a number of at least 0, got {user!r}")
        super().__init__(limits=box.limits, files=files, start_timeout=start_timeout)
        self.box = box
        self.python_path = python
        self.user = (_USER if user is None else user) if has_users else None
        self.env = checked_environment(env)
        self.preload = checked_modules(preload)

    def _renew(self) -> None:
        super()._renew()
        self._root = f"/tmp/gymnast-{uuid.uuid4().hex[:12]}"  # of the guest's folders, in each of its boxes
        self._running: _RunningBox | None = None

    @property
    def key(self) -> Hashable:
        environment = tuple(sorted(self.env.items()))
        return (type(self), self.box.key, self.python_path, self.user, environment, self.preload)

    @property
    def creators(self) -> int:
        return self.box.creators

    def variant(self, *, image: str | Path | BoxImage) -> Self:
        twin = self.clone()
        twin.box = self.box.variant(image=BoxImage.dockerfile(image) if isinstance(image, Path) else BoxImage.of(image))
        return twin

    async def prepare(self) -> None:
        await self.box.prepare()

    # Starting and removing the box.

    async def _prepare(self) -> None:
        box = self.box.clone()
        await box.start()
        self._running = _RunningBox(box, f"{self._root}.log")

    async def _launch(self) -> Connection:
        assert self._running is not None
        ours, theirs = socket.socketpair()
        theirs.setblocking(False)
        _, connection = await asyncio.get_running_loop().create_connection(lambda: Connection(self.limits), sock=ours)
        self._running.carrying = asyncio.ensure_future(
            self._running.carry(connection, theirs, self.python_path, None if self.user is None else 0)
        )
        return connection

    def _settings(self) -> dict[str, Any]:
        root = self._root
        rlimits = {"RLIMIT_CORE": 0, "RLIMIT_NOFILE": self.limits.open_files}
        local, environment = {"root": root, "tmp": f"{root}/tmp"}, {"TMPDIR": f"{root}/tmp", **self.env}
        return supervisor_settings(
            self.limits, f"{root}/workspace", environment, self.preload, user=self.user, local=local, rlimits=rlimits
        )

    def _explain(self, said: str) -> Exception | None:
        return ImageError(f"the box has no {self.python_path} on its PATH") if "not found" in said else None

    def _remove(self, *, is_silent: bool) -> concurrent.futures.Future[None] | None:
        running, self._running = self._running, None
        return None if running is None else running.end()


class _RunningBox:
    """A box with the guest of the sessions in it: a program of the box, whose streams are carried to a connection."""

    def __init__(self, box: Box, log: str) -> None:
        self._box = box
        self._log = log  # the file of the guest's standard error
        self._loop = asyncio.get_running_loop()
        self.carrying: asyncio.Task[None] | None = None

    async def carry(self, connection: Connection, theirs: socket.socket, python: str, user: int | None) -> None:
        """Start the guest, and carry its streams until it or the connection ends.

        Args:
            connection: of the host.
            theirs: its other end.
            python: the interpreter.
            user: that the guest runs as; None for the box's own.
        """
        command = ["sh", "-c", _COMMAND, python, BOOT, self._log]
        problem, said = "", b""
        with theirs:
            try:
                async with self._box.open(command, cwd="/", user=user) as process:
                    await _either(_to_host(process, theirs), _to_guest(theirs, process))
            except Exception as error:  # a box of somebody else's may raise anything
                problem = str(error) or repr(error)
            with contextlib.suppress(SandboxError):
                said = await self._box.read_file(self._log, user=user, limit=_PIECE)
            connection.keep_stderr(said or problem.encode())

    def end(self) -> concurrent.futures.Future[None] | None:
        """Begin to close the box, from any event loop; return the job, or None if the box's own loop has ended."""
        with contextlib.suppress(RuntimeError):  # a box without its loop ends by itself, as its owner is gone
            closing = self._close()
            try:
                return asyncio.run_coroutine_threadsafe(closing, self._loop)
            except RuntimeError:
                closing.close()
        return None

    async def _close(self) -> None:
        try:
            if self.carrying is not None:
                await stop(self.carrying)
        finally:
            await finish(self._box.close())


async def _either(*ways: Coroutine[Any, Any, None]) -> None:
    """Await the end of the first, which may raise its error, and stop the others."""
    tasks = [asyncio.ensure_future(way) for way in ways]
    try:
        for task in (await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED))[0]:
            task.result()
    finally:
        for task in tasks:
            await finish(stop(task))


async def _to_host(process: Process, theirs: socket.socket) -> None:
    while data := await process.read():
        await asyncio.get_running_loop().sock_sendall(theirs, data)


async def _to_guest(theirs: socket.socket, process: Process) -> None:
    while data := await asyncio.get_running_loop().sock_recv(theirs, _PIECE):
        await process.write(data)
