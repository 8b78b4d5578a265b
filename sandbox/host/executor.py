"""SupervisedExecutor: the executor contract over a connection to a supervisor (`guest/supervisor.py`).

A subclass starts and removes the supervisor (`lifecycle.py`). Everything else is messages over one connection.
"""

from __future__ import annotations

import asyncio
import dataclasses
import errno
import logging
import time
from collections.abc import Mapping
from typing import Any

from ..arguments import content_of
from ..base import DEFAULT_TIMEOUT, ExecutionResult, FileEntry, RetireReason, Status
from ..cancellation import finish
from ..errors import ImageError, SandboxLostError, file_error
from ..guest.protocol import PIECE, SESSIONS
from ..limits import Limits, check_timeout, size_of
from .connection import Answer, Connection, Content, Decode
from .lifecycle import SupervisedLife
from .messages import FileFault, decode_content, decode_execution, decode_listing, decode_nothing

logger = logging.getLogger(__name__)

MARGIN = 5.0  # seconds beyond a call's own time after which a silent box is given up
OPERATION_SECONDS = 30.0  # for one file operation or reset
_LONGEST_PATH = 4096  # bytes, as the kernel has it
_MORE_LOOKS, _LOOK_SECONDS = 5, 1.0  # for the rest of an answer that has begun to come


class SupervisedExecutor(SupervisedLife):
    """A box behind a supervisor.

    Args:
        limits: what the box may use.
        files: what the workspace holds after `start` and each `reset`, by relative path; text is encoded as UTF-8.
        start_timeout: seconds until the box must be ready.

    Raises:
        TypeError, ValueError: a file is none, or too large, or they do not fit into the workspace or below one another;
            or `start_timeout` is not positive and finite.
    """

    def __init__(self, *, limits: Limits, files: Mapping[str, bytes | str] | None, start_timeout: float) -> None:
        super().__init__(limits=limits, files=files, start_timeout=start_timeout)
        self._max_code = size_of(limits.max_code)
        self._turn = asyncio.Lock()
        self._unreported: set[str] = set()  # the sessions that have lost their state, of which no result has told
        self._to_be_replaced = False  # by the next call

    # The contract.

    async def python(self, code: str, *, timeout: float = DEFAULT_TIMEOUT) -> ExecutionResult:
        return await self._execute("python", code, timeout)

    async def bash(self, command: str, *, timeout: float = DEFAULT_TIMEOUT) -> ExecutionResult:
        if self._state == "open" and self._lost is None and not self._has_bash:
            raise ImageError(f"{self.what} has no bash")
        return await self._execute("bash", command, timeout)

    async def write_file(self, path: str, data: bytes | str) -> None:
        content = content_of(data)
        limit = size_of(self.limits.max_file)
        if len(content) > limit:
            raise file_error(errno.EFBIG, path, f"the data has {len(content)} bytes, Limits.max_file is {limit}")
        async with self._turn:
            await self._write(path, content)

    async def read_file(self, path: str) -> bytes:
        content, limit = bytearray(), size_of(self.limits.max_file)
        async with self._turn:
            while True:
                piece = await self._file_operation("read", path, decode_content, offset=len(content))
                content += piece
                if len(content) > limit:
                    raise file_error(errno.EFBIG, path, f"the file has over {limit} bytes, which is Limits.max_file")
                if len(piece) < PIECE:
                    return bytes(content)

    async def list_files(self, path: str = ".", *, recursive: bool = False) -> list[FileEntry]:
        async with self._turn:
            return await self._file_operation("list", path, decode_listing, recursive=recursive)

    async def ping(self, *, timeout: float = 2.0) -> None:
        check_timeout(timeout)
        async with self._turn:
            await self._exchange({"op": "ping"}, b"", decode_nothing, timeout)

    async def reset(self) -> None:
        async with self._turn:
            self._require_open()
            if self._lost is None and self._retire is None and self._reusable:
                try:
                    await self._reset_in_place()
                except SandboxLostError as error:
                    self._require_open()
                    logger.info("a box was lost at its reset and is replaced: %s", error)
            if self._lost is not None or self._retire is not None or not self._reusable:
                await self._replace()
            self._unreported.clear()

    @property
    def retire_reason(self) -> RetireReason | None:
        lost = self._lost or (self._connection.lost if self._connection is not None else None)
        if lost:
            return RetireReason("lost", lost)
        if self._retire is None:
            return None
        category, _, detail = self._retire.partition(": ")
        return RetireReason(category, detail)

    # How.

    async def _reset_in_place(self) -> None:
        try:
            await self._exchange({"op": "reset"}, b"", decode_nothing, OPERATION_SECONDS)
            if self._retire is None:
                await self._put_files()
        except BaseException:
            self._retire = self._retire or "reset: it did not come to its end"
            self._unreported.update(SESSIONS)
            raise

    async def _replace(self) -> None:
        """Make a new box in the place of this one; if that is cancelled, the next call does it."""
        self._discard(self._lost or "it is being replaced")
        self._to_be_replaced = False
        try:
            await self._open_box()
        except asyncio.CancelledError:
            self._to_be_replaced = True
            self._unreported.update(SESSIONS)
            raise

    async def _put_files(self) -> None:
        for path, data in self.files.items():
            await self._write(path, data)

    async def _write(self, path: str, data: bytes) -> None:
        for offset in range(0, max(len(data), 1), PIECE):
            await self._file_operation("write", path, decode_content, data[offset : offset + PIECE], offset=offset)

    async def _execute(self, operation: str, source: str, timeout: float) -> ExecutionResult:
        timeout = check_timeout(timeout)
        data = source.encode("utf-8", "surrogatepass")
        problem = self._refusal(operation, data)
        async with self._turn:
            self._require_open()
            if problem:
                return ExecutionResult(status=Status.ERROR, stderr=problem, exit_code=1)
            started = time.perf_counter()
            patience = timeout + self.limits.grace + MARGIN
            header = {"op": operation, "timeout": timeout}
            try:
                result = await self._exchange(header, data, decode_execution, patience)
            except _OutOfMemoryError as error:
                result = ExecutionResult(status=Status.OOM, stderr=f"{error}\n", state_lost=True)
            state_lost = result.state_lost or operation in self._unreported
            self._unreported.discard(operation)
        return dataclasses.replace(result, duration=time.perf_counter() - started, state_lost=state_lost)

    def _refusal(self, operation: str, data: bytes) -> str:
        """What is wrong with a piece of code that no session could even read."""
        if len(data) > self._max_code:
            return f"the code has {len(data)} bytes, Limits.max_code is {self._max_code}\n"
        if operation == "bash" and b"\0" in data:
            return "bash: a command cannot hold a NUL character\n"
        return ""

    async def _file_operation(
        self,
        operation: str,
        path: str,
        decode: Decode[Content | FileFault],
        data: bytes = b"",
        *,
        offset: int = 0,
        recursive: bool = False,
    ) -> Content:
        if len(path.encode("utf-8", "surrogatepass")) >= _LONGEST_PATH:
            raise file_error(errno.ENAMETOOLONG, path, f"a path has less than {_LONGEST_PATH} bytes")
        header = {"op": operation, "path": path, "offset": offset, "recursive": recursive}
        try:
            content = await self._exchange(header, data, decode, OPERATION_SECONDS)
        except _OutOfMemoryError as error:
            raise file_error(errno.ENOMEM, path, str(error)) from None
        if isinstance(content, FileFault):
            raise file_error(content.errno, path, content.detail)
        return content

    async def _exchange(
        self, header: dict[str, Any], payload: bytes, decode: Decode[Content], patience: float
    ) -> Content:
        """Send one request and return its answer's content; a box that does not answer in time is given up."""
        self._require_open()
        if self._to_be_replaced:
            await self._replace()
        if self._connection is None or self._lost is not None:
            raise SandboxLostError(f"the box is lost: {self._lost}; reset() makes a new one")
        connection = self._connection
        number, reply = connection.request(header, payload, decode)
        try:
            answer = await self._in_patience(connection, reply, patience)
        except SandboxLostError as error:
            await self._check_memory(connection)
            self._discard(str(error))
            raise SandboxLostError(f"the box is lost: {error}") from error
        except asyncio.CancelledError:
            await finish(self._interrupt(connection, number, reply, header["op"]))
            raise
        self._retire = self._retire or answer.retire or None
        return answer.content

    async def _check_memory(self, connection: Connection) -> None:
        """Raise _OutOfMemoryError if a lost box ended for want of memory; the next call replaces it then.

        It is the code that uses up the memory. If that cost it the result, an episode could escape its score.
        """
        if not connection.ended:
            return
        try:
            found = await self._ran_out_of_memory()
        except BaseException:
            self._discard("it has ended")
            raise
        if found:
            self._discard("it ran out of memory")
            self._to_be_replaced = True
            self._unreported.update(SESSIONS)
            raise _OutOfMemoryError(
                "the box ran out of memory: its processes and files are gone, and the next call begins with a new one"
            )

    async def _in_patience(
        self, connection: Connection, reply: asyncio.Future[Answer[Content]], patience: float
    ) -> Answer[Content]:
        """Await an answer; SandboxLostError after some seconds in which nothing of it came."""
        loop, looks = asyncio.get_running_loop(), 0
        received, revived = connection.received, False

        def expire() -> None:
            # After a stall of this loop a long answer may be here in part: go on as long as more of it comes.
            nonlocal alarm, received, looks, revived
            if connection.received > received and looks < _MORE_LOOKS:
                received, looks = connection.received, looks + 1
                alarm = loop.call_later(_LOOK_SECONDS, expire)
            elif not revived and self._revive():
                revived, alarm = True, loop.call_later(MARGIN, expire)
            elif not reply.done():
                reply.set_exception(SandboxLostError(f"it did not answer within {patience:g} s"))

        # asyncio.timeout() and shield() would do as well, and cost noticeably more in every call.
        alarm = loop.call_later(patience, expire)
        try:
            return await reply
        finally:
            alarm.cancel()

    async def _interrupt(
        self, connection: Connection, number: int, reply: asyncio.Future[Answer[Any]], operation: str
    ) -> None:
        """End a request whose caller has gone, so that the next call finds the box at rest."""
        if reply.cancelled():
            again = connection.interrupt(number)
            if again is None:  # it may have said that state was lost
                self._retire = self._retire or "interrupt: the answer to a cancelled call was missed"
                return
            reply = again
        try:
            answer = await self._in_patience(connection, reply, self.limits.grace + MARGIN)
        except SandboxLostError as error:
            self._discard(f"it did not end a cancelled call: {error}")
            return
        self._retire = self._retire or answer.retire or None
        if isinstance(answer.content, ExecutionResult) and answer.content.state_lost:
            self._unreported.add(operation)


class _OutOfMemoryError(SandboxLostError):
    """The box ended for want of memory."""
