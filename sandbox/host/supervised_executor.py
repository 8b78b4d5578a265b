"""SupervisedExecutor: the executor contract over a connection to a supervisor (`guest/supervisor.py`).

`supervised.py` has the life of a box; `supervisor_client.py` makes the requests to one.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import errno
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from typing import Any, Self, TypeVar

from ..arguments import checked_files, content_of
from ..base import DEFAULT_TIMEOUT, ExecutionResult, Executor, FileEntry, Status
from ..errors import ImageError, SandboxLostError, file_error
from ..guest.protocol import SESSIONS
from ..lifecycle import RetireReason
from ..limits import Limits, check_timeout
from .client import OutOfMemoryError
from .connection import Connection
from .outside_calls import Offer, check_not_waiting
from .supervised import SupervisedSandbox
from .supervisor_client import SupervisorClient

Result = TypeVar("Result")
Request = Callable[[SupervisorClient], Coroutine[Any, Any, Result]]

logger = logging.getLogger(__name__)


class SupervisedExecutor(SupervisedSandbox[SupervisorClient], Executor):
    """A box behind a supervisor."""

    _reusable = True  # whether a reset in place brings back everything

    def __init__(self, *, limits: Limits, files: Mapping[str, bytes | str] | None, start_timeout: float) -> None:
        super().__init__(limits=limits, start_timeout=start_timeout)
        self.files = checked_files(files, limits)

    def clone(self) -> Self:
        return self._twin()

    def _renew(self) -> None:
        super()._renew()
        self._turn = asyncio.Lock()
        self._offer: Offer | None = None
        self._to_be_replaced = False  # by the next call
        self._unreported: set[str] = set()  # the sessions that have lost their state, while no result has said so

    def _guest(self, connection: Connection) -> SupervisorClient:
        return SupervisorClient(connection, self.limits, self._unreported, self._revive)

    async def _fill(self) -> None:
        assert self._box is not None
        await self._box.write_files(self.files)
        if self._offer is not None:
            await self._box.offer(self._offer)

    # The contract.

    async def python(self, code: str, *, timeout: float = DEFAULT_TIMEOUT) -> ExecutionResult:
        return await self._execute("python", code, timeout)

    async def bash(self, command: str, *, timeout: float = DEFAULT_TIMEOUT) -> ExecutionResult:
        if self._box is not None and not self._box.has_bash:
            raise ImageError(f"{self.what} has no bash")
        return await self._execute("bash", command, timeout)

    async def write_file(self, path: str, data: bytes | str) -> None:
        content = content_of(data)
        await self._with_files(path, lambda box: box.write_file(path, content))

    async def read_file(self, path: str) -> bytes:
        return await self._with_files(path, lambda box: box.read_file(path))

    async def list_files(self, path: str = ".", *, recursive: bool = False) -> list[FileEntry]:
        return await self._with_files(path, lambda box: box.list_files(path, recursive))

    async def ping(self, *, timeout: float = 2.0) -> None:
        check_timeout(timeout)
        async with self._its_turn():
            await self._with_box(lambda box: box.ping(timeout))

    async def reset(self) -> None:
        async with self._its_turn():
            self._require_open()
            self._offer = None
            if self.retire_reason is None and self._reusable:
                try:
                    await self._with_box(lambda box: box.reset(self.files))
                except SandboxLostError as error:
                    self._require_open()
                    logger.info("a box was lost at its reset and is replaced: %s", error)
            if self.retire_reason is not None or not self._reusable:
                await self._replace()
            self._unreported.clear()

    async def offer(self, functions: str, answer: Callable[[bytes], Awaitable[bytes]]) -> None:
        offer = Offer(functions, answer)
        async with self._its_turn():
            await self._with_box(lambda box: box.offer(offer))
            self._offer = offer

    @contextlib.asynccontextmanager
    async def _its_turn(self) -> AsyncIterator[None]:
        check_not_waiting(self._box and self._box.connection)
        async with self._turn:
            yield

    @property
    def retire_reason(self) -> RetireReason | None:
        if self._lost:
            return RetireReason("lost", self._lost)
        return None if self._box is None else self._box.retire_reason

    async def _execute(self, operation: str, source: str, timeout: float) -> ExecutionResult:
        timeout = check_timeout(timeout)
        async with self._its_turn():
            started = time.perf_counter()
            try:
                result = await self._with_box(lambda box: box.execute(operation, source, timeout))
            except OutOfMemoryError as error:
                result = ExecutionResult(status=Status.OOM, stderr=f"{error}\n", state_lost=True)
            state_lost = result.state_lost or operation in self._unreported
            self._unreported.discard(operation)
        return dataclasses.replace(result, duration=time.perf_counter() - started, state_lost=state_lost)

    async def _with_files(self, path: str, request: Request[Result]) -> Result:
        async with self._its_turn():
            try:
                return await self._with_box(request)
            except OutOfMemoryError as error:
                raise file_error(errno.ENOMEM, path, str(error)) from None

    async def _with_box(self, request: Request[Result]) -> Result:
        """Make requests to the box, or to a new one if a new one is due. Give up a box that is lost.

        Raises:
            OutOfMemoryError: the box ended for want of memory, and the next call begins with a new one. Code can use
                up the memory on purpose: if a call then had no result, its episode would escape a score.
            SandboxLostError: the box is lost for another reason.
        """
        self._require_open()
        if self._to_be_replaced:
            await self._replace()
        box = self._box
        if box is None:
            raise SandboxLostError(f"the box is lost: {self._lost}; reset() makes a new one")
        try:
            return await request(box)
        except SandboxLostError as error:
            if not await self._died_of_memory():
                self._give_up(str(error))
                raise SandboxLostError(f"the box is lost: {error}") from error
            self._give_up("it ran out of memory")
            self._to_be_replaced = True
            self._unreported.update(SESSIONS)
            raise OutOfMemoryError(
                "the box ran out of memory: its processes and files are gone, and the next call begins with a new one"
            ) from error
        except asyncio.CancelledError:
            if box.connection.lost is not None and not box.connection.ended:
                self._give_up(box.connection.lost)
            raise

    # The life of boxes.

    async def _replace(self) -> None:
        """Replace the box by a new one. If this is cancelled, the next call does it."""
        self._give_up(self._lost or "it is being replaced")
        self._to_be_replaced = False
        try:
            await self._open_box()
        except asyncio.CancelledError:
            self._to_be_replaced = True
            self._unreported.update(SESSIONS)
            raise
