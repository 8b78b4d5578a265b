"""The requests to one running box over its connection; `supervised_executor.py` starts boxes and replaces them."""

from __future__ import annotations

import asyncio
import contextlib
import errno
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from ..base import ExecutionResult, FileEntry, Status
from ..cancellation import finish
from ..errors import EngineError, ImageError, SandboxLostError, file_error
from ..guest.protocol import PIECE, SESSIONS
from ..lifecycle import RetireReason
from ..limits import Limits, size_of
from .boot import program
from .connection import Answer, Connection, Content, Decode
from .messages import FileFault, decode_content, decode_execution, decode_listing, decode_nothing, decode_ready
from .outside_calls import Offer, OutsideCalls

MARGIN = 5.0  # seconds beyond a call's own time until its answer is overdue
OPERATION_SECONDS = 30.0  # for one file operation or reset
_LONGEST_PATH = 4096  # bytes, as the kernel has it
_MORE_LOOKS, _LOOK_SECONDS = 5, 1.0  # for the rest of an answer that has begun to come
REVIVAL_SECONDS, _REVIVAL_INTERVAL = 10.0, 0.25  # how long, and how often, a box with an overdue answer gets help


class OutOfMemoryError(SandboxLostError):
    """The box ended for want of memory."""


class SupervisorClient:
    """A supervisor and its sessions. Requests are made one at a time.

    Args:
        connection: to the supervisor.
        limits: of the box.
        unreported: the sessions that have lost their state, while no result has said so; shared with later boxes.
        revive: helps a box whose answer is overdue, or returns False if there is no use. Called again until the answer
            comes; its argument says whether it was of use before.
    """

    def __init__(
        self, connection: Connection, limits: Limits, unreported: set[str], revive: Callable[[bool], Awaitable[bool]]
    ) -> None:
        self.connection = connection
        self.limits = limits
        self.unreported = unreported
        self.has_bash = False
        self.retire = ""  # why the box should not be used again: a category, and a detail after a colon
        self.silent = False  # it did not answer in time
        self._revive = revive
        self._offer: Offer | None = None

    @property
    def retire_reason(self) -> RetireReason | None:
        """Why the box should be replaced; None without a reason."""
        if self.connection.lost:
            return RetireReason("lost", self.connection.lost)
        category, _, detail = self.retire.partition(": ")
        return RetireReason(category, detail) if category else None

    async def boot(self, settings: dict[str, Any], what: str, explain: Callable[[str], Exception | None]) -> None:
        """Send the supervisor its program and its settings, and wait until it is ready.

        Raises:
            ImageError: `what`, the image for example, lacks something.
            EngineError: the box ended, and `explain` has no better error for its last words.
        """
        self.connection.send_raw(program())
        try:
            ready = (await self.connection.request(settings, b"", decode_ready)[1]).content
        except SandboxLostError as error:
            said = self.connection.stderr
            raise explain(said) or EngineError(f"the box ended while it was started: {said or error}") from error
        if ready.unfit:
            raise ImageError(f"{what} lacks {ready.unfit}")
        self.has_bash = ready.bash

    async def execute(self, operation: str, source: str, timeout: float) -> ExecutionResult:
        """Run code in one of the two sessions; the duration is for the caller to fill in."""
        data = source.encode("utf-8", "surrogatepass")
        problem = ""  # because of which no session could read the code
        if len(data) > size_of(self.limits.max_code):
            problem = f"the code has {len(data)} bytes, Limits.max_code is {self.limits.max_code}\n"
        elif operation == "bash" and b"\0" in data:
            problem = "bash: a command cannot hold a NUL character\n"
        if problem:
            return ExecutionResult(status=Status.ERROR, stderr=problem, exit_code=1)
        header = {"op": operation, "timeout": timeout}
        execution = self._exchange(header, data, decode_execution, timeout + self.limits.grace + MARGIN)
        return await (
            execution if self._offer is None else OutsideCalls(self.connection, self._offer).during(execution)
        )

    async def offer(self, offer: Offer) -> None:
        content = await self._exchange({"op": "offer"}, offer.module, decode_content, OPERATION_SECONDS)
        if isinstance(content, FileFault):
            raise file_error(content.errno, "tools", content.detail)
        self._offer = offer

    async def write_file(self, path: str, data: bytes) -> None:
        limit = size_of(self.limits.max_file)
        if len(data) > limit:
            raise file_error(errno.EFBIG, path, f"the data has {len(data)} bytes, Limits.max_file is {limit}")
        for offset in range(0, max(len(data), 1), PIECE):
            piece = data[offset : offset + PIECE]
            await self._file_operation("write", path, decode_content, {"offset": offset}, piece)

    async def read_file(self, path: str) -> bytes:
        content, limit = bytearray(), size_of(self.limits.max_file)
        while True:
            piece = await self._file_operation("read", path, decode_content, {"offset": len(content)})
            content += piece
            if len(content) > limit:
                raise file_error(errno.EFBIG, path, f"the file has over {limit} bytes, which is Limits.max_file")
            if len(piece) < PIECE:
                return bytes(content)

    async def list_files(self, path: str, recursive: bool) -> list[FileEntry]:
        return await self._file_operation("list", path, decode_listing, {"recursive": recursive})

    async def ping(self, timeout: float) -> None:
        """Wait for a sign of life, without any help for the box."""
        await self._exchange({"op": "ping"}, b"", decode_nothing, timeout, helped=False)

    async def reset(self, files: Mapping[str, bytes]) -> None:
        """Clean the box in place and write the files. If this does not come to its end, the box is retired."""
        try:
            self._offer = None
            await self._exchange({"op": "reset"}, b"", decode_nothing, OPERATION_SECONDS)
            if not self.retire:
                await self.write_files(files)
        except BaseException:
            self.retire = self.retire or "reset: it did not come to its end"
            self.unreported.update(SESSIONS)
            raise

    async def write_files(self, files: Mapping[str, bytes]) -> None:
        for path, data in files.items():
            await self.write_file(path, data)

    async def _file_operation(
        self,
        operation: str,
        path: str,
        decode: Decode[Content | FileFault],
        fields: Mapping[str, object],
        data: bytes = b"",
    ) -> Content:
        if len(path.encode("utf-8", "surrogatepass")) >= _LONGEST_PATH:
            raise file_error(errno.ENAMETOOLONG, path, f"a path has less than {_LONGEST_PATH} bytes")
        content = await self._exchange({"op": operation, "path": path, **fields}, data, decode, OPERATION_SECONDS)
        if isinstance(content, FileFault):
            raise file_error(content.errno, path, content.detail)
        return content

    async def _exchange(
        self, header: dict[str, Any], payload: bytes, decode: Decode[Content], patience: float, *, helped: bool = True
    ) -> Content:
        """Send one request and return the content of its answer.

        If this is cancelled, the request is interrupted first, so that the next one finds the box at rest.

        Raises:
            SandboxLostError: the box has ended, or broke the protocol, or did not answer in time.
        """
        number, reply = self.connection.request(header, payload, decode)
        try:
            answer = await self._in_patience(reply, patience, helped)
        except asyncio.CancelledError:
            await finish(self._interrupt(number, reply, header["op"]))
            raise
        self.retire = self.retire or answer.retire
        return answer.content

    async def _interrupt(self, number: int, reply: asyncio.Future[Answer[Any]], operation: str) -> None:
        """End a request that was cancelled. If the box does not end it, end the connection."""
        self.connection.interrupt(number)
        try:
            answer = await self._in_patience(reply, self.limits.grace + MARGIN, helped=True)
        except SandboxLostError as error:
            self.connection.abort(f"it did not end a cancelled call: {error}")
            return
        self.retire = self.retire or answer.retire
        if isinstance(answer.content, ExecutionResult) and answer.content.state_lost:
            self.unreported.add(operation)

    async def _in_patience(
        self, reply: asyncio.Future[Answer[Content]], patience: float, helped: bool
    ) -> Answer[Content]:
        """Await an answer. SandboxLostError if nothing of it came within `patience` seconds, nor with help."""
        loop, received = asyncio.get_running_loop(), self.connection.received
        began = loop.time()
        await asyncio.wait([reply], timeout=patience)  # it is still needed after a cancellation
        await self._await_rest(reply, received)
        if helped and not reply.done():
            received = self.connection.received
            await self._help(reply)
            await self._await_rest(reply, received)
        if not reply.done():
            self.silent = True
            raise SandboxLostError(f"it did not answer within {loop.time() - began:.1f} s")
        return reply.result()

    async def _await_rest(self, reply: asyncio.Future[Any], received: int) -> None:
        """Wait on while more of an answer comes than was received: this loop may have stalled meanwhile."""
        for _ in range(_MORE_LOOKS):
            if reply.done() or self.connection.received == received:
                return
            received = self.connection.received
            await asyncio.wait([reply], timeout=_LOOK_SECONDS)

    async def _help(self, reply: asyncio.Future[Any]) -> None:
        """Help the box until the answer comes, or help is of no use, or has taken too long."""
        was_revived = False
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(REVIVAL_SECONDS):
                while not reply.done() and await self._revive(was_revived):
                    was_revived = True
                    await asyncio.wait([reply], timeout=_REVIVAL_INTERVAL)
