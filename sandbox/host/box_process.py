"""RemoteProcess: a program of a box whose streams are open."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Awaitable, Callable

from ..box import Process
from ..errors import SandboxClosedError, SandboxLostError
from ..guest.protocol import PIECE
from .connection import Connection, Content, Decode
from .messages import decode_exit_code, decode_nothing, decode_output

_PATIENCE = 15.0  # seconds for a request that does not wait for the program


class RemoteProcess(Process):
    """A program in a box.

    Args:
        connection: to the guest of the box.
        number: the guest's for this program.
        has_terminal: whether it runs in a terminal.
        explain: makes the error for a box that is lost.
    """

    def __init__(
        self,
        connection: Connection,
        number: int,
        has_terminal: bool,
        explain: Callable[[SandboxLostError], Awaitable[SandboxLostError]],
    ) -> None:
        self._explain = explain
        self._connection = connection
        self._number = number
        self._has_terminal = has_terminal
        # Answers that are still to come, so that no output is lost when a caller stops waiting.
        self._reading: asyncio.Future[tuple[bytes, bool]] | None = None
        self._waiting: asyncio.Future[int] | None = None
        self._at_end = self._is_released = False

    async def read(self, *, timeout: float = math.inf) -> bytes:
        if self._at_end:
            return b""
        if self._reading is None:
            self._reading = self._begin("read", b"", decode_output)
        answer = await self._answer(self._reading, timeout)
        if answer is None:
            return b""
        self._reading = None
        data, self._at_end = answer
        return data

    async def write(self, data: bytes) -> None:
        for start in range(0, max(len(data), 1), PIECE):
            await self._answer(self._begin("write", data[start : start + PIECE], decode_nothing))

    async def wait(self, *, timeout: float = math.inf) -> int | None:
        if self._waiting is None:
            self._waiting = self._begin("wait", b"", decode_exit_code)
        return await self._answer(self._waiting, timeout)

    async def signal(self, number: int) -> None:
        await self._answer(self._begin("signal", b"", decode_nothing, number=int(number)))

    async def resize(self, columns: int, rows: int) -> None:
        if not self._has_terminal:
            raise TypeError("this process has no terminal: open it with tty=(columns, rows)")
        await self._answer(self._begin("resize", b"", decode_nothing, columns=columns, rows=rows))

    async def release(self) -> None:
        """Kill the program and its processes, unless the box is gone."""
        with contextlib.suppress(SandboxLostError):
            release = self._begin("release", b"", decode_nothing)
            self._is_released = True
            await self._answer(release, _PATIENCE)

    def _begin(self, operation: str, payload: bytes, decode: Decode[Content], **fields: int) -> asyncio.Future[Content]:
        if self._is_released:
            raise SandboxClosedError("a program is used in the block that opened it")
        header = {"op": operation, "process": self._number, **fields}
        return self._connection.request(header, payload, decode)[1]

    async def _answer(self, future: asyncio.Future[Content], timeout: float = math.inf) -> Content | None:
        """Return the answer, or None if it does not come in time; then it is still to come."""
        await asyncio.wait([future], timeout=None if timeout == math.inf else timeout)
        if not future.done():
            return None
        try:
            return future.result()
        except SandboxLostError as error:
            raise await self._explain(error) from error
