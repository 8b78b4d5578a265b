"""The base of both clients of a guest: how a guest is started, and how long to wait for an answer."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any, ClassVar, Literal

from ..errors import EngineError, ImageError, SandboxLostError
from ..limits import Limits
from .boot import program
from .connection import Answer, Connection, Content
from .messages import Ready, decode_ready

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
