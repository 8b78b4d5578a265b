"""SupervisedExecutor: the executor contract over a connection to a supervisor (`guest/supervisor.py`).

A subclass launches and removes the container or process in which the supervisor runs. This file starts, gives up and
replaces boxes; `supervisor_client.py` makes the requests to one box.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import copy
import dataclasses
import errno
import logging
import time
from abc import abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from typing import Any, Self, TypeVar

from ..arguments import checked_files, content_of
from ..base import DEFAULT_TIMEOUT, ExecutionResult, Executor, FileEntry, Status
from ..cancellation import finish, stop
from ..errors import ImageError, SandboxLostError, SandboxTimeoutError, file_error
from ..guest.protocol import SESSIONS
from ..lifecycle import RetireReason
from ..limits import Limits, check_timeout
from .connection import Connection
from .outside_calls import Offer, check_not_waiting
from .supervisor_client import OutOfMemoryError, SupervisorClient

Result = TypeVar("Result")
Request = Callable[[SupervisorClient], Coroutine[Any, Any, Result]]

logger = logging.getLogger(__name__)

START_TIMEOUT = 60.0  # seconds until a box is ready
CLOSE_SECONDS = 15.0  # for the removal of a box when it is closed


class SupervisedExecutor(Executor):
    """A box behind a supervisor."""

    def __init__(self, *, limits: Limits, files: Mapping[str, bytes | str] | None, start_timeout: float) -> None:
        self.limits = limits
        self.files = checked_files(files, limits)
        self.start_timeout = check_timeout(start_timeout, "start_timeout")
        self._renew()

    def clone(self) -> Self:
        twin = copy.copy(self)  # without a second warning about its arguments
        twin._renew()
        return twin

    def _renew(self) -> None:
        """Become an executor that was not started. A subclass adds the things of its own that belong to one box."""
        self._state = "new"
        self._turn = asyncio.Lock()
        self._box: SupervisorClient | None = None
        self._offer: Offer | None = None
        self._lost = ""  # why there is no box any more
        self._to_be_replaced = False  # by the next call
        self._unreported: set[str] = set()  # the sessions that have lost their state, while no result has said so
        self._autopsy: asyncio.Task[bool] | None = None  # finds out whether a box that has ended ran out of memory
        self._opening: asyncio.Task[None] | None = None
        self._removals: set[concurrent.futures.Future[None]] = set()
        self._released = False

    # For the subclasses.

    what = "the image"  # in errors, the thing that lacks something a box needs
    _reusable = True  # whether a reset in place brings back everything

    @abstractmethod
    async def _prepare(self) -> None:
        """Get everything ready for `_launch`, such as an image. This time does not count against `start_timeout`."""

    @abstractmethod
    async def _launch(self) -> Connection:
        """Start a process that reads the supervisor's program; nothing is left if this fails or is cancelled."""

    @abstractmethod
    def _settings(self) -> dict[str, Any]:
        """Return the supervisor's settings, which are its first message."""

    def _explain(self, said: str) -> Exception | None:
        """Return a better error for a supervisor that ended at its start with these last words, or None."""
        return None

    async def _revive(self, was_revived: bool) -> bool:
        """Help a box whose answer is overdue, or return False if there is no use. See `SupervisorClient`."""
        return False

    async def _ran_out_of_memory(self) -> bool:
        """Whether the box, which has just ended, was killed for want of memory."""
        return False

    @abstractmethod
    def _remove(self, *, is_silent: bool) -> concurrent.futures.Future[None] | None:
        """Begin to remove the container or process that `_launch` started; return the job, or None if there is none.

        A box that is silent may not end by itself.
        """

    async def _release(self, deadline: float) -> None:
        """Release everything else that the executor holds. The deadline is a time of the event loop."""

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

    @property
    def lifetime(self) -> float:
        return self.limits.lifetime

    async def start(self) -> None:
        self._begin()
        try:
            await self._open_box()
        except BaseException:
            await finish(self.close())
            raise

    async def close(self) -> None:
        if self._released:  # do not ask `_state`: if a close() was cut off by the end of its loop, repeat it
            return
        self._state = "closed"
        self._give_up("it was closed")
        await finish(self._close())

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
            autopsy = self._autopsy
            if autopsy is not None:
                await asyncio.wait({autopsy})  # if this is cancelled, the next call waits here
            if autopsy is None or autopsy.cancelled() or not autopsy.result():
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

    async def _open_box(self) -> None:
        """Make a box and its files. If this fails, or the executor is closed meanwhile, nothing is left."""
        self._opening = opening = asyncio.ensure_future(self._open())
        try:
            await asyncio.wait({opening})
        finally:
            await finish(stop(opening))
        self._require_open()  # close() may have stopped it
        opening.result()

    async def _open(self) -> None:
        deadline = asyncio.timeout(self.start_timeout)
        try:
            await self._prepare()
            async with deadline:
                connection = await self._launch()
                self._box = box = SupervisorClient(connection, self.limits, self._unreported, self._revive)
                await self._boot(box)
                connection.on_end = self._examine
                self._lost = ""
                await box.write_files(self.files)
                if self._offer is not None:
                    await box.offer(self._offer)
        except BaseException as error:
            late = deadline.expired()
            self._give_up("it was not ready in time" if late else "it could not be started")
            if late:
                message = f"the box was not ready within start_timeout={self.start_timeout:g} s"
                raise SandboxTimeoutError(message) from error
            raise

    async def _boot(self, box: SupervisorClient) -> None:
        await box.boot(self._settings(), self.what, self._explain)

    def _examine(self) -> None:
        # Find out now why the box has ended: the engine soon forgets its events.
        self._autopsy = asyncio.ensure_future(self._ran_out_of_memory())

    def _give_up(self, reason: str) -> None:
        """End the connection to the box, and remove the box in the background."""
        self._lost = reason
        box, self._box = self._box, None
        if box is not None:
            box.connection.abort(reason)
        removal = self._remove(is_silent=box is not None and box.silent)
        if removal is not None:
            self._removals.add(removal)
            removal.add_done_callback(self._removals.discard)

    async def _close(self) -> None:
        """Wait until all boxes of this executor are gone."""
        for task in (self._opening, self._autopsy):
            if task is not None and task.get_loop() is asyncio.get_running_loop():
                await stop(task)
        self._give_up("it was closed")
        deadline = asyncio.get_running_loop().time() + CLOSE_SECONDS
        removals = [asyncio.wrap_future(removal) for removal in list(self._removals)]
        late = (await asyncio.wait(removals, timeout=CLOSE_SECONDS))[1] if removals else ()
        if late:
            logger.warning("a box is closed, but not known to be gone after %g s; it ends by itself", CLOSE_SECONDS)
        await self._release(deadline)
        self._released = True
        for removal in removals:
            if removal not in late:
                removal.result()
