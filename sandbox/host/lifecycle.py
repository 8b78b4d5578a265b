"""SupervisedLife: how a box behind a supervisor is started, given up and removed; `supervised.py` is what it does."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from abc import abstractmethod
from collections.abc import AsyncIterator, Hashable, Mapping
from functools import cached_property
from typing import Any

from .arguments import checked_files
from .base import Executor, Limits, State, check_timeout, size_of
from .boot import program
from .cancellation import finish
from .connection import Connection, Reply
from .errors import EngineError, ImageError, SandboxClosedError, SandboxError, SandboxLostError, SandboxTimeoutError

logger = logging.getLogger("gymnast.sandbox")

START_TIMEOUT = 60.0  # seconds until a box is ready


class SupervisedLife(Executor):
    """The life of a box behind a supervisor; see `SupervisedExecutor`."""

    def __init__(self, *, limits: Limits, files: Mapping[str, bytes | str] | None, start_timeout: float) -> None:
        self.limits = limits
        self.files: dict[str, bytes] = checked_files(files, limits)
        self.start_timeout = check_timeout(start_timeout, "start_timeout")
        self._connection: Connection | None = None
        self._has_bash = False
        self._state: State = "new"
        self._gone = False  # nothing is left to be released
        self._loop: asyncio.AbstractEventLoop | None = None
        self._opening = asyncio.Lock()
        self._lost: str | None = None
        self._retire: str | None = None

    # What the subclasses differ in.

    what = "the image"
    """What lacks something that a box needs, in messages."""

    @abstractmethod
    async def _prepare(self) -> None:
        """What boxes are made of, made ready before the clock starts."""

    @abstractmethod
    async def _launch(self) -> Connection:
        """Start a process that reads the supervisor's program; nothing is left if this fails or is cancelled."""

    @abstractmethod
    def _settings(self) -> dict[str, Any]:
        """What the supervisor is told first."""

    async def _answer_offer(self, connection: Connection, offer: dict[str, Any]) -> Reply:
        """Take the pipes that the supervisor offers, or not, as here; returns what it says next."""
        return await connection.hello({"op": "pipes", "taken": False})

    def _explain(self, said: str) -> Exception | None:
        """A better error for a supervisor that ended while it was started, from what it said; None if there is none."""
        return None

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
        if self._gone:  # a close() whose event loop ended in the middle of it is done again
            return
        self._state = "closed"
        if self._connection is not None:
            self._connection.abort("it was closed")
            self._connection = None
        await finish(self._close())

    async def _close(self) -> None:
        if self._loop is asyncio.get_running_loop():  # else nobody in there does anything any more
            async with self._opening:
                pass  # a box that was being made has found that it is not wanted any more
        await self._remove()
        self._gone = True

    @property
    def state(self) -> State:
        return self._state

    @property
    def lifetime(self) -> float:
        return self.limits.lifetime

    @cached_property
    def _file_key(self) -> Hashable:
        """The part of `key` that the files are."""
        return tuple(sorted(self.files.items()))

    @property
    def _max_payload(self) -> int:
        """Bytes of the longest answer: a file, or what code has said, and room for what goes with it."""
        return max(size_of(self.limits.max_file), 8 * size_of(self.limits.max_output)) + (1 << 20)

    async def _open_box(self) -> None:
        """Make a box and its files; on failure, or when the executor is closed meanwhile, nothing is left."""
        self._loop = asyncio.get_running_loop()
        async with self._opening:
            try:
                await self._prepare()
                async with self._in_time():
                    connection = await self._launch()
                    self._connection = connection
                    self._require_open()
                    connection.send_raw(program())
                    await self._hello(connection)
                    self._lost = self._retire = None
                    await self._put_files()
            except BaseException as error:
                late = isinstance(error, TimeoutError)
                self._discard("it was not ready in time" if late else "it could not be started")
                if isinstance(error, SandboxError):
                    self._require_open()  # it was closed, which is why it could not be started
                raise

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
            header, _ = await connection.hello(self._settings())
            if "pipes" in header:
                header, _ = await self._answer_offer(connection, header["pipes"])
        except SandboxLostError as error:
            said = connection.stderr
            raise self._explain(said) or EngineError(f"the box ended while it was started: {said or error}") from error
        if "unfit" in header:
            raise ImageError(f"{self.what} lacks {header['unfit']}")
        self._has_bash = bool(header.get("bash"))
        for warning in header.get("warnings", []):
            logger.warning("%s", warning)

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
