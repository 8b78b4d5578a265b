"""Changes: coroutines of one event loop wait until a condition holds."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class Changes:
    """Wakes its waiters after each change of the state that they look at. All calls are made in one event loop."""

    def __init__(self) -> None:
        self._waiters: list[asyncio.Future[None]] = []

    async def until(self, holds: Callable[[], object]) -> None:
        """Return as soon as the condition holds: at once, or after a `tell`."""
        while not holds():
            change: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiters.append(change)
            await change

    def tell(self) -> None:
        """Let all waiters look at their condition again."""
        waiters, self._waiters = self._waiters, []
        for change in waiters:
            if not change.done():  # else its waiter was cancelled
                change.set_result(None)
