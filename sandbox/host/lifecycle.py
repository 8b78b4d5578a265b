"""SupervisedLife: starts, gives up and removes a box behind a supervisor; `executor.py` uses the box."""

from __future__ import annotations

import asyncio
import contextlib
from abc import abstractmethod
from collections.abc import AsyncIterator, Mapping
from typing import Any

from ..arguments import checked_files
from ..base import Executor
from ..cancellation import finish
from ..errors import EngineError, ImageError, SandboxClosedError, SandboxLostError, SandboxTimeoutError
from ..limits import Limits, check_timeout, size_of
from .boot import program
from .connection import Connection

START_TIMEOUT = 60.0  # seconds until a box is ready


class SupervisedLife(Executor):
    """The life of a box behind a supervisor; see `SupervisedExecutor`."""

    def __init__(self, *, limits: Limits, files: Mapping[str, bytes | str] | None, start_timeout: float) -> None:
        self.limits = limits
        self.files = checked_files(files, limits)
        self.start_timeout = check_timeout(start_timeout, "start_timeout")
        self._connection: Connection | None = None
        self._has_bash = False
        self._gone = False  # nothing is left to be released
        self._opening: asyncio.Task[None] | None = None
        self._lost: str | None = None
        self._retire: str | None = None

    # What the subclasses differ in.

    what = "the image"
    """The name of what a box is made of, in messages about a missing part."""

    @abstractmethod
    async def _prepare(self) -> None:
        """Make ready what boxes are made of; the time that this takes does not count as the box's start."""

    @abstractmethod
    async def _launch(self) -> Connection:
        """Start a process that reads the supervisor's program; nothing is left if this fails or is cancelled."""

    @abstractmethod
    def _settings(self) -> dict[str, Any]:
        """The supervisor's settings, which are its first message."""

    def _explain(self, said: str) -> Exception | None:
        """A better error for a supervisor that ended at its start, made from its last words; None without one."""
        return None

    def _revive(self) -> bool:
        """Begin to help a box that does not answer; return whether there is any help."""
        return False

    async def _ran_out_of_memory(self) -> bool:
        """Whether the box, which has just ended, was killed because its memory was used up."""
        return False

    @abstractmethod
    def _remove_soon(self) -> None:
        """Remove what `_launch` started, if anything is left of it, in the background."""

    @abstractmethod
    async def _remove(self) -> None:
        """Remove what `_launch` started and wait until it is gone; release what the executor holds."""

    @abstractmethod
    async def _put_files(self) -> None:
        """Write `files`; by `SupervisedExecutor`."""

    @property
    def _reusable(self) -> bool:
        """Whether a reset in place brings back everything."""
        return True

    # Life.

    async def start(self) -> None:
        if self._state != "new":
            raise SandboxClosedError(f"a box is started once, and this one is {self._state}")
        self._state = "open"
        try:
            await self._open_box()
        except BaseException:
            await finish(self.close())
            raise

    async def close(self) -> None:
        if self._gone:  # not by the state: a close() whose event loop ended in the middle of it is done again
            return
        self._state = "closed"
        if self._connection is not None:
            self._connection.abort("it was closed")
            self._connection = None
        await finish(self._close())

    async def _close(self) -> None:
        await self._stop_opening()
        await self._remove()
        self._gone = True

    @property
    def lifetime(self) -> float:
        return self.limits.lifetime

    @property
    def _max_payload(self) -> int:
        """Bytes of the longest answer: a file, or what code has said, and room for what goes with it."""
        return max(size_of(self.limits.max_file), 8 * size_of(self.limits.max_output)) + (1 << 20)

    async def _open_box(self) -> None:
        """Make a box and its files; on failure, or when the executor is closed meanwhile, nothing is left."""
        self._opening = opening = asyncio.ensure_future(self._open())
        try:
            await asyncio.wait({opening})
        except asyncio.CancelledError:
            await finish(self._stop_opening())
            raise
        _retrieve(opening)
        self._require_open()  # close() may have stopped it
        opening.result()

    async def _open(self) -> None:
        try:
            await self._prepare()
            async with self._in_time():
                connection = await self._launch()
                self._connection = connection
                connection.send_raw(program())
                await self._hello(connection)
                self._lost = self._retire = None
                await self._put_files()
        except BaseException as error:
            late = isinstance(error, TimeoutError)
            self._discard("it was not ready in time" if late else "it could not be started")
            raise

    async def _stop_opening(self) -> None:
        opening = self._opening
        if opening is not None and opening.get_loop() is asyncio.get_running_loop():
            opening.cancel()
            await asyncio.wait({opening})
            _retrieve(opening)

    @contextlib.asynccontextmanager
    async def _in_time(self) -> AsyncIterator[None]:
        deadline = asyncio.timeout(self.start_timeout)
        try:
            async with deadline:
                yield
        except TimeoutError as error:
            if not deadline.expired():
                raise
            raise SandboxTimeoutError(f"the box was not ready within start_timeout={self.start_timeout:g} s") from error

    async def _hello(self, connection: Connection) -> None:
        try:
            ready = (await connection.hello(self._settings())).content
        except SandboxLostError as error:
            said = connection.stderr
            raise self._explain(said) or EngineError(f"the box ended while it was started: {said or error}") from error
        if ready.unfit:
            raise ImageError(f"{self.what} lacks {ready.unfit}")
        self._has_bash = ready.bash

    def _discard(self, reason: str) -> None:
        """Give up the box, which is removed in the background."""
        self._lost = reason
        if self._connection is not None:
            self._connection.abort(reason)
            self._connection = None
        self._remove_soon()

    def _require_open(self) -> None:
        if self._state != "open":
            raise SandboxClosedError(f"the box is {self._state}: use it inside `async with`, or call start() first")


def _retrieve(task: asyncio.Task[None]) -> None:
    """Look at a task's error, or asyncio logs that nobody did."""
    if not task.cancelled():
        task.exception()
