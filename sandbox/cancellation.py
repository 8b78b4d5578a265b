"""Clean-up that goes on to its end while its task is being cancelled."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Coroutine
from typing import Any, TypeVar

Result = TypeVar("Result")


async def finish(call: Coroutine[Any, Any, Result]) -> Result:
    """Await a call to its end even while this task is being cancelled; the cancellation goes on afterwards.

    It goes on where the call fails, too: the call's error is then its cause.
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


def _anyio_shield() -> contextlib.AbstractContextManager[object]:
    """Keep anyio's cancellation out: it comes again in every pass of the event loop, which would spin."""
    anyio = sys.modules.get("anyio")  # nobody is in a scope of anyio where it has not been imported
    return contextlib.nullcontext() if anyio is None else anyio.CancelScope(shield=True)
