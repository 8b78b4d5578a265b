"""Clean-up that goes on to its end while its task is being cancelled."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from typing import Any, TypeVar

Result = TypeVar("Result")


async def finish(call: Coroutine[Any, Any, Result] | asyncio.Task[Result]) -> Result:
    """Await a call to its end even if this task is cancelled; then raise the cancellation.

    If the call fails too, its error is the cause of the cancellation.
    """
    task = asyncio.ensure_future(call)
    cancellation: asyncio.CancelledError | None = None
    with _anyio_shield():
        while not task.done():
            try:
                await asyncio.wait({task})
            except asyncio.CancelledError as error:
                cancellation = error
    if cancellation is not None:
        raise cancellation from (None if task.cancelled() else task.exception())
    return task.result()


@contextlib.asynccontextmanager
async def removed_at_end(
    remove: Callable[[Result], Coroutine[Any, Any, Any]],
) -> AsyncIterator[Callable[[Coroutine[Any, Any, Result]], Awaitable[Result]]]:
    """Give a function that awaits a call to its end, as `finish` does; at the end, remove the results of its calls."""
    made: list[asyncio.Task[Result]] = []

    def make(call: Coroutine[Any, Any, Result]) -> Awaitable[Result]:
        made.append(asyncio.create_task(call))
        return finish(made[-1])  # so that nothing is made that nobody knows

    try:
        yield make
    finally:
        for task in made:
            if not task.cancelled() and task.exception() is None:
                await finish(remove(task.result()))


async def stop(task: asyncio.Task[Any]) -> None:
    """Cancel a task and wait until it has ended; its error is dropped."""
    task.cancel()
    await asyncio.wait({task})
    if not task.cancelled():
        task.exception()  # mark it as seen, or asyncio logs it


def _anyio_shield() -> contextlib.AbstractContextManager[object]:
    """Hold back anyio's cancellation: it is repeated in every pass of the event loop, which would spin."""
    anyio = sys.modules.get("anyio")  # without this import there is no scope of anyio
    return contextlib.nullcontext() if anyio is None else anyio.CancelScope(shield=True)
