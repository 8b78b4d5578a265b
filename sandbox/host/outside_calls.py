"""The calls that code in a box makes to functions on this side, while one request to run code is answered."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from contextvars import ContextVar, copy_context
from importlib.resources import files
from typing import NamedTuple, TypeVar

from ..cancellation import finish, stop
from ..guest.protocol import ProtocolError
from .connection import Connection

Result = TypeVar("Result")

# The connections to the boxes whose code waits for what this context is doing.
_waiting: ContextVar[tuple[Connection, ...]] = ContextVar("gymnast_boxes_that_wait", default=())


class Offer(NamedTuple):
    """What code in a box can call: the source of its functions, and who answers; see `Executor.offer`."""

    functions: str
    answer: Callable[[bytes], Awaitable[bytes]]

    @property
    def module(self) -> bytes:
        """The source of the module `tools`, which is also a command."""
        head = files("gymnast.sandbox.guest").joinpath("tools_module.py").read_text("utf-8")
        return f'{head}\n\n{self.functions}\n\nif __name__ == "__main__":\n    _main(sys.argv[1:])\n'.encode()


def check_not_waiting(connection: Connection | None) -> None:
    """Raise a RuntimeError if code in this box waits for the caller: the box would wait for its own code."""
    if connection is not None and connection in _waiting.get():
        raise RuntimeError(
            "code in this box has called the tool and waits for it, so the tool cannot use the box; let the code pass "
            "the tool what it needs, and return the rest"
        )


class OutsideCalls:
    """Answers the calls of one execution, one at a time, in the context of the caller that runs the code."""

    def __init__(self, connection: Connection, offer: Offer) -> None:
        self._connection = connection
        self._answer = offer.answer
        self._call: asyncio.Task[None] | None = None
        self._error: Exception | None = None

    async def during(self, execution: Coroutine[None, None, Result]) -> Result:
        """Await an execution. If a call cannot be answered, the code is interrupted and the error raised."""
        self._context = copy_context()
        self._context.run(lambda: _waiting.set((*_waiting.get(), self._connection)))
        self._running = asyncio.ensure_future(execution)
        self._connection.on_call = self._take
        try:
            result = await self._running
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if self._error is None or (task is not None and task.cancelling()):
                raise
            raise self._error from None
        else:
            if self._error is not None:  # the code ended at the same moment
                raise self._error
            return result
        finally:
            self._connection.on_call = None
            if self._call is not None:
                await finish(stop(self._call))  # its caller is gone

    def _take(self, number: int, call: bytes) -> None:
        if self._call is not None and not self._call.done():
            raise ProtocolError("a call while another one is open")
        loop = asyncio.get_running_loop()
        self._call = loop.create_task(self._reply(number, call), context=self._context.copy())

    async def _reply(self, number: int, call: bytes) -> None:
        try:
            self._connection.answer_call(number, await self._answer(call))
        except Exception as error:
            self._error = error
            self._running.cancel()
