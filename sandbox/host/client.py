"""Client: a guest over its connection. How it is started, how long to wait for its answers, and its files."""

from __future__ import annotations

import asyncio
import contextlib
import errno
from collections.abc import Awaitable, Callable
from typing import Any, Literal

from ..box import too_large
from ..cancellation import finish
from ..errors import EngineError, ImageError, SandboxLostError, file_error
from ..guest.protocol import PIECE
from .boot import program
from .connection import Connection, Content, Decode
from .messages import Fault, decode_nothing, decode_ready, decode_report

MARGIN = 5.0  # seconds beyond a call's own time until its answer is overdue
PATIENCE = 35.0  # seconds for a request that waits for no code, such as one piece of a file
_LONGEST_PATH = 4096  # bytes, as the kernel has it
_MORE_LOOKS, _LOOK_SECONDS = 5, 1.0  # for the rest of an answer that has begun to come
REVIVAL_SECONDS, _REVIVAL_INTERVAL = 10.0, 0.25  # how long, and how often, a box with an overdue answer gets help


class OutOfMemoryError(SandboxLostError):
    """The box ended for want of memory."""


class Client:
    """A guest, over its connection.

    Args:
        connection: to the guest.
        grace: `Limits.grace` of the box.
        revive: helps a box whose answer is overdue, or returns False if there is no use. Called again until the answer
            comes; its argument says whether it was of use before.
    """

    def __init__(self, connection: Connection, grace: float, revive: Callable[[bool], Awaitable[bool]]) -> None:
        self.connection = connection
        self.silent = False  # it did not answer in time
        self.has_bash = False  # a guest of sessions found one
        self._grace = grace
        self._revive = revive

    async def boot(
        self,
        main: Literal["supervisor", "box"],
        settings: dict[str, Any],
        what: str,
        explain: Callable[[str], Exception | None],
    ) -> None:
        """Send the guest its program and its settings, and wait until it is ready.

        Raises:
            ImageError: `what`, the image for example, lacks something.
            EngineError: the box ended, and `explain` has no better error for its last words.
        """
        self.connection.send_raw(program(main))
        try:
            unfit, self.has_bash = await self.connection.request(settings, b"", decode_ready)[1]
        except SandboxLostError as error:
            said = self.connection.stderr
            raise explain(said) or EngineError(f"the box ended while it was started: {said or error}") from error
        if unfit:
            raise ImageError(f"{what} lacks {unfit}")

    async def ping(self, timeout: float) -> None:
        """Wait for a sign of life, without any help for the box."""
        await self.ask({"op": "ping"}, b"", decode_nothing, timeout, helped=False)

    async def read_file(
        self, path: str, limit: int, user: str | None = None, *, limit_name: str = "the limit of this call"
    ) -> bytes:
        """Read a file in pieces; `SandboxFileError` as of `Executor.read_file`, with the name of the limit."""
        content = bytearray()
        while True:
            piece = await self.file("read", path, decode_report, user=user, offset=len(content), limit=limit)
            content += piece
            if len(content) > limit:
                raise too_large(path, limit, limit_name)
            if len(piece) < PIECE:
                return bytes(content)

    async def write_file(self, path: str, data: bytes, user: str | None = None) -> None:
        """Write a file in pieces; `SandboxFileError` as of `Executor.write_file`."""
        for offset in range(0, max(len(data), 1), PIECE):
            piece = data[offset : offset + PIECE]
            await self.file("write", path, decode_report, piece, user=user, offset=offset)

    async def file(
        self,
        operation: str,
        path: str,
        decode: Decode[Content | Fault],
        data: bytes = b"",
        *,
        user: str | None = None,
        **fields: Any,
    ) -> Content:
        """Make one request about a file."""
        if len(path.encode("utf-8", "surrogatepass")) >= _LONGEST_PATH:
            raise file_error(errno.ENAMETOOLONG, path, f"a path has less than {_LONGEST_PATH} bytes")
        header = {"op": "file", "do": operation, "path": path, "user": user, **fields}
        content = await self.ask(header, data, decode, PATIENCE)
        if not isinstance(content, Fault):
            return content
        if content.stage == "user":
            raise ValueError(f"user={user!r}: {content.detail}")
        raise file_error(content.errno, path, content.detail)

    async def ask(
        self,
        header: dict[str, Any],
        payload: bytes,
        decode: Decode[Content],
        patience: float,
        *,
        helped: bool = True,
        unseen: Callable[[Content], None] = lambda content: None,
    ) -> Content:
        """Send one request and return the content of its answer.

        If this is cancelled, the request is ended first, and `unseen` takes its answer. If the box does not end it, the
        connection is.

        Raises:
            SandboxLostError: the box has ended, or broke the protocol, or did not answer in time.
        """
        number, reply = self.connection.request(header, payload, decode)
        try:
            return await self.in_patience(reply, patience, helped=helped)
        except asyncio.CancelledError:
            await finish(self._interrupt(number, reply, unseen))
            raise

    async def _interrupt(self, number: int, reply: asyncio.Future[Content], unseen: Callable[[Content], None]) -> None:
        self.connection.interrupt(number)
        try:
            answer = await self.in_patience(reply, self._grace + MARGIN)
        except SandboxLostError as error:
            self.connection.abort(f"it did not end a cancelled call: {error}")
        else:
            unseen(answer)

    async def in_patience(self, reply: asyncio.Future[Content], patience: float, *, helped: bool = True) -> Content:
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
