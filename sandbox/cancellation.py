"""What must be finished is finished, whoever is cancelled meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

Result = TypeVar("Result")


async def finish(call: Coroutine[Any, Any, Result]) -> Result:
    """Await to the end even while this task is being cancelled; the cancellation goes on afterwards.

    It goes on where the call fails, too: the call's error is then its cause.
    """
    task = asyncio.ensure_future(call)
    cancellation: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError as error:
            cancellation = error
    if cancellation is not None:
        raise cancellation from (None if task.cancelled() else task.exception())
    return task.result()
