"""SupervisedExecutor: the executor contract over a connection to a supervisor (`supervisor.py`), wherever that runs.

A subclass says how a supervisor is started and how it is removed; everything else is frames over one connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import time
from abc import abstractmethod
from collections.abc import AsyncIterator, Hashable, Mapping
from typing import Any

from .answers import result_of
from .base import DEFAULT_TIMEOUT, ExecutionResult, Executor, FileEntry, Limits, State, Status, check_timeout, size_of
from .boot import program
from .cancellation import finish
from .connection import Connection, Reply
from .errors import (
    EngineError,
    ImageError,
    SandboxClosedError,
    SandboxError,
    SandboxLostError,
    SandboxTimeoutError,
    file_error,
)

logger = logging.getLogger("gymnast.sandbox")

START_TIMEOUT = 60.0  # seconds until a box is ready
MARGIN = 5.0  # seconds beyond a call's own time after which a silent box is given up
OPERATION_SECONDS = 30.0  # for one file operation or reset


class SupervisedExecutor(Executor):
    """A box behind a supervisor.

    Args:
        limits: what the box may use.
        files: what the workspace holds after `start` and each `reset`, by relative path; text is encoded as UTF-8.
        start_timeout: seconds until the box must be ready.

    Raises:
        ValueError: `start_timeout` is not positive and finite.
    """

    def __init__(self, *, limits: Limits, files: Mapping[str, bytes | str] | None, start_timeout: float) -> None:
        self.limits = limits
        self.files = dict(files or {})
        self.start_timeout = check_timeout(start_timeout)
        self._max_code = size_of(limits.max_code)
        self._connection: Connection | None = None
        self._has_bash = False
        self._state: State = "new"
        self._loop: asyncio.AbstractEventLoop | None = None
        self._opening = asyncio.Lock()
        self._lost: str | None = None
        self._retire: str | None = None
        self._turn = asyncio.Lock()

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

    def _explain(self, said: str) -> Exception | None:
        """A better error for a supervisor that ended while it was started, from what it said; None if there is none."""
        return None

    @abstractmethod
    def _remove_soon(self) -> None:
        """Remove what `_launch` started, if anything is left of it, in the background."""

    @abstractmethod
    async def _remove(self) -> None:
        """Remove what `_launch` started and wait until it is gone; release what the executor holds."""

    @property
    def _reusable(self) -> bool:
        """Whether a reset in place brings back everything."""
        return True

    @property
    def file_key(self) -> Hashable:
        """The part of `key` that the files are."""
        return tuple(
            sorted((path, data.encode() if isinstance(data, str) else data) for path, data in self.files.items())
        )

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
        if self._state == "closed":
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

    @property
    def state(self) -> State:
        return self._state

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
        except SandboxLostError as error:
            said = connection.stderr
            raise self._explain(said) or EngineError(f"the box ended while it was started: {said or error}") from error
        if "unfit" in header:
            raise ImageError(f"{self.what} lacks {header['unfit']}")
        self._has_bash = bool(header.get("bash"))

    def _discard(self, reason: str) -> None:
        """Give up the box, which is removed in the background."""
        self._lost = reason
        if self._connection is not None:
            self._connection.abort(reason)
            self._connection = None
        self._remove_soon()

    # The contract.

    async def python(self, code: str, *, timeout: float = DEFAULT_TIMEOUT) -> ExecutionResult:
        return await self._execute("python", code, timeout)

    async def bash(self, command: str, *, timeout: float = DEFAULT_TIMEOUT) -> ExecutionResult:
        if self._state == "open" and self._lost is None and not self._has_bash:
            raise ImageError(f"{self.what} has no bash")
        return await self._execute("bash", command, timeout)

    async def write_file(self, path: str, data: bytes | str) -> None:
        content = data.encode() if isinstance(data, str) else bytes(data)
        limit = size_of(self.limits.max_file)
        if len(content) > limit:
            raise file_error(27, path, f"the data has {len(content)} bytes, Limits.max_file is {limit}")
        async with self._turn:
            await self._file_operation("write", path, content)

    async def read_file(self, path: str) -> bytes:
        async with self._turn:
            return await self._file_operation("read", path)

    async def list_files(self, path: str = ".", *, recursive: bool = False) -> list[FileEntry]:
        async with self._turn:
            listing = await self._file_operation("list", path, recursive=recursive)
        return [FileEntry(path=name, kind=kind, size=size) for name, kind, size in json.loads(listing)]

    async def ping(self, *, timeout: float = 2.0) -> None:
        check_timeout(timeout)
        async with self._turn:
            await self._exchange({"op": "ping"}, b"", timeout)

    async def reset(self) -> None:
        async with self._turn:
            self._require_open()
            if self._lost is None and self._retire is None and self._reusable:
                try:
                    header, _ = await self._exchange({"op": "reset"}, b"", OPERATION_SECONDS)
                    self._retire = header["retire"] or None
                except SandboxLostError as error:
                    self._require_open()
                    logger.info("a box was lost at its reset and is replaced: %s", error)
            if self._lost is None and self._retire is None and self._reusable:
                await self._put_files()
            else:
                self._discard(self._lost or "it is being replaced")
                await self._open_box()

    @property
    def retire_reason(self) -> str | None:
        return f"the box is lost: {self._lost}" if self._lost else self._retire

    # How.

    def _require_open(self) -> None:
        if self._state != "open":
            raise SandboxClosedError(f"the box is {self._state}: use it inside `async with`, or call start() first")

    async def _put_files(self) -> None:
        for path, data in self.files.items():
            await self._file_operation("write", path, data.encode() if isinstance(data, str) else bytes(data))

    async def _execute(self, operation: str, source: str, timeout: float) -> ExecutionResult:
        check_timeout(timeout)
        data = source.encode("utf-8", "surrogatepass")
        problem = self._refusal(operation, data)
        async with self._turn:
            self._require_open()
            if problem:
                return ExecutionResult(status=Status.ERROR, stderr=problem, exit_code=1)
            started = time.perf_counter()
            patience = timeout + self.limits.grace + MARGIN
            try:
                header, parts = await self._exchange({"op": operation, "timeout": timeout}, data, patience)
            except SandboxLostError as error:
                duration = time.perf_counter() - started
                error.result = ExecutionResult(status=Status.SANDBOX_LOST, duration=duration, state_lost=True)
                raise
        self._retire = self._retire or header["retire"] or None
        return result_of(header, parts, time.perf_counter() - started)

    def _refusal(self, operation: str, data: bytes) -> str:
        """What is wrong with a piece of code that no session could even read."""
        if len(data) > self._max_code:
            return f"the code has {len(data)} bytes, Limits.max_code is {self._max_code}\n"
        if operation == "bash" and b"\0" in data:
            return "bash: a command cannot hold a NUL character\n"
        return ""

    async def _file_operation(self, operation: str, path: str, data: bytes = b"", *, recursive: bool = False) -> bytes:
        header = {"op": operation, "path": path, "recursive": recursive}
        answer, parts = await self._exchange(header, data, OPERATION_SECONDS)
        if "errno" in answer:
            raise file_error(int(answer["errno"]), path, str(answer.get("detail", "")))
        return parts[0]

    async def _exchange(self, header: dict[str, Any], payload: bytes, patience: float) -> Reply:
        """One request and its reply; a box that does not answer in time is given up."""
        self._require_open()
        if self._connection is None or self._lost is not None:
            raise SandboxLostError(f"the box is lost: {self._lost}; reset() makes a new one")
        number, reply = self._connection.request(header, payload)
        # asyncio.timeout() and shield() would do as well, and cost noticeably more in every round trip.
        alarm = asyncio.get_running_loop().call_later(patience, _expire, reply)
        try:
            return await reply
        except TimeoutError:
            reason = f"it did not answer within {patience:g} s"
            self._discard(reason)
            raise SandboxLostError(f"the box is lost: {reason}") from None
        except SandboxLostError as error:
            self._discard(str(error))
            raise
        except asyncio.CancelledError:
            await finish(self._interrupt(number, reply))
            raise
        finally:
            alarm.cancel()

    async def _interrupt(self, number: int, reply: asyncio.Future[Reply]) -> None:
        """End a request whose caller has gone, so that the next finds the box at rest."""
        if self._connection is None:
            return
        if reply.cancelled():
            reply = self._connection.interrupt(number)
        try:
            async with asyncio.timeout(self.limits.grace + MARGIN):
                header, _ = await reply
            self._retire = self._retire or header.get("retire") or None
        except (TimeoutError, SandboxLostError) as error:
            self._discard(f"it did not end a cancelled call: {error}")


def _expire(reply: asyncio.Future[Reply]) -> None:
    if not reply.done():
        reply.set_exception(TimeoutError())
