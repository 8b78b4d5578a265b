"""SupervisedExecutor: the executor contract over a connection to a supervisor (`guest/supervisor.py`).

`supervised.py` has the life of a box; `client.py` waits for the answers of one.
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
from ..limits import Limits, check_timeout, size_of
from .client import MARGIN, PATIENCE, Client, OutOfMemoryError
from .messages import decode_execution, decode_fault, decode_listing, decode_nothing
from .outside_calls import Offer, OutsideCalls, check_not_waiting
from .supervised import SupervisedSandbox

Result = TypeVar("Result")
Request = Callable[[Client], Coroutine[Any, Any, Result]]

logger = logging.getLogger(__name__)


class SupervisedExecutor(SupervisedSandbox, Executor):
    """A box behind a supervisor, to which requests are made one at a time."""

    _main = "supervisor"
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

    async def _fill(self) -> None:
        assert self._box is not None
        await self._write_files(self._box)
        if self._offer is not None:
            await self._send(self._box, self._offer)

    async def _write_files(self, box: Client) -> None:
        for path, data in self.files.items():
            await box.write_file(path, data)

    async def _send(self, box: Client, offer: Offer) -> None:
        fault = await box.ask({"op": "offer"}, offer.module, decode_fault, PATIENCE)
        if fault is not None:
            raise file_error(fault.errno, "tools", fault.detail)

    # The contract.

    async def python(self, code: str, *, timeout: float = DEFAULT_TIMEOUT) -> ExecutionResult:
        return await self._execute("python", code, timeout)

    async def bash(self, command: str, *, timeout: float = DEFAULT_TIMEOUT) -> ExecutionResult:
        if self._box is not None and not self._box.has_bash:
            raise ImageError(f"{self.what} has no bash")
        return await self._execute("bash", command, timeout)

    async def write_file(self, path: str, data: bytes | str) -> None:
        content, limit = content_of(data), size_of(self.limits.max_file)
        if len(content) > limit:
            raise file_error(errno.EFBIG, path, f"the data has {len(content)} bytes, Limits.max_file is {limit}")
        await self._with_files(path, lambda box: box.write_file(path, content))

    async def read_file(self, path: str) -> bytes:
        limit = size_of(self.limits.max_file)
        return await self._with_files(path, lambda box: box.read_file(path, limit, limit_name="Limits.max_file"))

    async def list_files(self, path: str = ".", *, recursive: bool = False) -> list[FileEntry]:
        fields = {"limit": size_of(self.limits.max_file), "recursive": recursive}
        return await self._with_files(path, lambda box: box.file("list", path, decode_listing, **fields))

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
                    await self._with_box(self._clean)
                except SandboxLostError as error:
                    self._require_open()
                    logger.info("a box was lost at its reset and is replaced: %s", error)
            if self.retire_reason is not None or not self._reusable:
                await self._replace()
            self._unreported.clear()

    async def _clean(self, box: Client) -> None:
        """Clean the box in place and write the files. If this does not come to its end, the box is retired."""
        try:
            await box.ask({"op": "reset"}, b"", decode_nothing, PATIENCE)
            if not box.connection.retire:
                await self._write_files(box)
        except BaseException:
            box.connection.retire = box.connection.retire or "reset: it did not come to its end"
            self._unreported.update(SESSIONS)
            raise

    async def offer(self, functions: str, answer: Callable[[bytes], Awaitable[bytes]]) -> None:
        offer = Offer(functions, answer)
        async with self._its_turn():
            await self._with_box(lambda box: self._send(box, offer))
            self._offer = offer

    @contextlib.asynccontextmanager
    async def _its_turn(self) -> AsyncIterator[None]:
        check_not_waiting(self._box and self._box.connection)
        async with self._turn:
            yield

    @property
    def retire_reason(self) -> RetireReason | None:
        if self._loss:
            return RetireReason("lost", self._loss)
        if self._box is None:
            return None
        category, _, detail = self._box.connection.retire.partition(": ")
        return RetireReason(category, detail) if category else None

    async def _execute(self, operation: str, source: str, timeout: float) -> ExecutionResult:
        timeout = check_timeout(timeout)
        async with self._its_turn():
            started = time.perf_counter()
            try:
                result = await self._with_box(lambda box: self._run(box, operation, source, timeout))
            except OutOfMemoryError as error:
                result = ExecutionResult(status=Status.OOM, stderr=f"{error}\n", state_lost=True)
            state_lost = result.state_lost or operation in self._unreported
            self._unreported.discard(operation)
        return dataclasses.replace(result, duration=time.perf_counter() - started, state_lost=state_lost)

    async def _run(self, box: Client, operation: str, source: str, timeout: float) -> ExecutionResult:
        """Run code in one of the two sessions; the duration is for the caller to fill in."""
        data = source.encode("utf-8", "surrogatepass")
        problem = ""  # because of which no session could read the code
        if len(data) > size_of(self.limits.max_code):
            problem = f"the code has {len(data)} bytes, Limits.max_code is {self.limits.max_code}\n"
        elif operation == "bash" and b"\0" in data:
            problem = "bash: a command cannot hold a NUL character\n"
        if problem:
            return ExecutionResult(status=Status.ERROR, stderr=problem, exit_code=1)

        def note(result: ExecutionResult) -> None:
            if result.state_lost:
                self._unreported.add(operation)

        header, patience = {"op": operation, "timeout": timeout}, timeout + self.limits.grace + MARGIN
        execution = box.ask(header, data, decode_execution, patience, unseen=note)
        if self._offer is None:
            return await execution
        return await OutsideCalls(box.connection, self._offer).during(execution)

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
