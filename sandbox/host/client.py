"""The base of both clients of a guest: how a guest is started, and how long to wait for an answer."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any, ClassVar, Literal

from ..cancellation import finish
from ..errors import EngineError, ImageError, SandboxLostError
from ..limits import Limits
from .boot import program
from .connection import Answer, Connection, Content, Decode
from .messages import Ready, decode_nothing, decode_ready

MARGIN = 5.0  # seconds beyond a call's own time until its answer is overdue
_MORE_LOOKS, _LOOK_SECONDS = 5, 1.0  # for the rest of an answer that has begun to come
REVIVAL_SECONDS, _REVIVAL_INTERVAL = 10.0, 0.25  # how long, and how often, a box with an overdue answer gets help


class OutOfMemoryError(SandboxLostError):
    """The box ended for want of memory."""


class Client:
    """A guest, over its connection.

    Args:
        connection: to the guest.
        limits: of the box.
        revive: helps a box whose answer is overdue, or returns False if there is no use. Called again until the answer
            comes; its argument says whether it was of use before.
    """

    guest: ClassVar[Literal["supervisor", "box"]]

    def __init__(self, connection: Connection, limits: Limits, revive: Callable[[bool], Awaitable[bool]]) -> None:
        self.connection = connection
        self.limits = limits
        self.silent = False  # it did not answer in time
        self._revive = revive

    async def boot(self, settings: dict[str, Any], what: str, explain: Callable[[str], Exception | None]) -> Ready:
        """Send the supervisor its program and its settings, and wait until it is ready.

        Raises:
            ImageError: `what`, the image for example, lacks something.
            EngineError: the box ended, and `explain` has no better error for its last words.
        """
        self.connection.send_raw(program(self.guest))
        try:
            ready = (await self.connection.request(settings, b"", decode_ready)[1]).content
        except SandboxLostError as error:
            said = self.connection.stderr
            raise explain(said) or EngineError(f"the box ended while it was started: {said or error}") from error
        if ready.unfit:
            raise ImageError(f"{what} lacks {ready.unfit}")
        return ready

    async def ping(self, timeout: float) -> None:
        """Wait for a sign of life, without any help for the box."""
        await self.ask({"op": "ping"}, b"", decode_nothing, timeout, helped=False)

    async def ask(
        self, header: dict[str, Any], payload: bytes, decode: Decode[Content], patience: float, *, helped: bool = True
    ) -> Content:
        """Send one request and return the content of its answer.

        If this is cancelled, the request is ended first. If the box does not end it, the connection is.

        Raises:
            SandboxLostError: the box has ended, or broke the protocol, or did not answer in time.
        """
        number, reply = self.connection.request(header, payload, decode)
        try:
            answer = await self._in_patience(reply, patience, helped)
        except asyncio.CancelledError:
            await finish(self._interrupt(number, reply, header["op"]))
            raise
        self._note(header["op"], answer, unseen=False)
        return answer.content

    async def _interrupt(self, number: int, reply: asyncio.Future[Answer[Any]], operation: str) -> None:
        self.connection.interrupt(number)
        try:
            answer = await self._in_patience(reply, self.limits.grace + MARGIN, helped=True)
        except SandboxLostError as error:
            self.connection.abort(f"it did not end a cancelled call: {error}")
        else:
            self._note(operation, answer, unseen=True)

    def _note(self, operation: str, answer: Answer[Any], *, unseen: bool) -> None:
        """Take note of an answer; the caller of an unseen one is gone."""

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
