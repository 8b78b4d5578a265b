"""What must be finished is finished, whoever is cancelled meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

Result = TypeVar("Result")


async def finish(call: Coroutine[Any, Any, Result]) -> Result:
    """Await to the end even while this task is being cancelled; the cancellation goes on afterwards."""
    task = asyncio.ensure_future(call)
    cancellation: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError as error:
            if task.cancelled():
                raise
            cancellation = error
    if cancellation is not None:
        raise cancellation
    return task.result()
