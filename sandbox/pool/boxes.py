"""The life of a pool's boxes, which are made, lent, cleaned and closed; `scheduler.py` says when.

A box is in one `BoxState`. Making, checking, resetting and closing a box take time: each is a task, which ends in
`_step_done` or `_disposed`. Everything else happens between two awaits, so no cancellation can interrupt it.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Callable, Coroutine
from typing import Any

from ..base import Executor
from .states import BoxState, PooledBox, PoolOptions, PoolStatistics, Subpool, by_state

logger = logging.getLogger("gymnast.sandbox")

PING_SECONDS = 2.0  # for the sign of life of an idle box
RESET_SECONDS = 10.0  # after which a box is closed


class Boxes:
    """All boxes that count against `max_boxes`, in one event loop; `creators` of them are made at a time."""

    def __init__(
        self,
        options: PoolOptions,
        counters: PoolStatistics,
        creators: int,
        *,
        ready: Callable[[PooledBox], None],  # told of a box that is clean and has just answered
        closing: Callable[[PooledBox], None],  # told of a box that was on its way to a lease and is closed instead
        gone: Callable[[], None],  # told when a box no longer counts
        failed: Callable[[PooledBox, Exception], None],  # told of a box that could not be made
    ) -> None:
        self.options = options
        self.counters = counters
        self.of = by_state()
        self._count = 0
        self._ready, self._closing, self._gone, self._failed = ready, closing, gone, failed
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._creators = asyncio.Semaphore(creators)

    def __len__(self) -> int:
        return self._count

    # Changes of state.

    def enter(self, box: PooledBox, state: BoxState) -> None:
        self._take_out(box)
        self._count += 1
        box.state, box.since = state, self._loop.time()
        self.of[state][box] = box.subpool.boxes[state][box] = None
        box.subpool.register()

    def create(self, subpool: Subpool) -> None:
        sandbox = subpool.template.clone()
        if isinstance(sandbox, Executor):
            sandbox.files = {}  # a lease writes its own
        box = PooledBox(subpool, sandbox)
        self._begin(box, BoxState.CREATING, self._start(box))

    def check(self, box: PooledBox) -> None:
        """Ask an idle box for a sign of life; when it gives one, it is ready."""
        self._begin(box, BoxState.CHECKING, self._check(box))

    def move(self, box: PooledBox, subpool: Subpool) -> None:
        """Let a box count for another subpool."""
        del box.subpool.boxes[box.state][box]
        box.subpool.register()
        box.subpool = subpool
        subpool.boxes[box.state][box] = None
        subpool.register()

    def take_back(self, box: PooledBox) -> None:
        """Reset a box whose lease is over, or close it if it is used up; an unused one is ready at once."""
        if box.lease is None:
            self._become_ready(box)
            return
        box.lease.end("the lease of this box is over: use it inside `async with pool.lease()`")
        reason = "call in flight" if box.lease.busy else self.why_retire(box)
        if reason:
            self.close(box, reason)
        else:
            box.lease = None
            self._begin(box, BoxState.RESETTING, self._reset(box))

    def close(self, box: PooledBox, reason: str) -> None:
        """Close a box in the background; it counts until it is gone."""
        if box.made:
            self.counters.retired[reason] += 1
        self.enter(box, BoxState.CLOSING)
        if box.lease is not None:
            box.lease.end("the pool of this box was closed")
        if box.task is not None:
            box.task.cancel()  # `_step_done` goes on
        else:
            self._dispose(box)

    def why_retire(self, box: PooledBox) -> str | None:
        """The category of the reason why a box should not serve another lease; None without one."""
        if box.sandbox.retire_reason is not None:
            return box.sandbox.retire_reason.category
        if box.uses and not (self.options.reuse and box.sandbox.reusable):
            return "reuse=False" if box.sandbox.reusable else "not reusable"
        if box.uses and box.subpool.reused is not None:
            return "fresh=True"
        if box.uses >= self.options.max_uses:
            return "max_uses"
        # A lease may then last for the other half.
        return "age" if self._loop.time() - box.born > box.sandbox.lifetime / 2 else None

    def close_if_worn(self, box: PooledBox) -> bool:
        """Close an idle box that is too old, or known to be dead; return whether it was."""
        reason = self.why_retire(box)
        if reason is not None:
            self.close(box, reason)
        return reason is not None

    async def close_all(self) -> None:
        """Close every box, leased ones too, and wait until they are gone."""
        for state in BoxState:
            for box in list(self.of[state]) if state is not BoxState.CLOSING else ():
                self.close(box, "pool closed")
        while self._tasks:
            await asyncio.wait(set(self._tasks))

    def _leave(self, box: PooledBox) -> None:
        self._take_out(box)
        box.subpool.register()

    def _take_out(self, box: PooledBox) -> None:
        if box in self.of[box.state]:  # a new box is in no state yet
            del self.of[box.state][box], box.subpool.boxes[box.state][box]
            self._count -= 1

    # The steps.

    def _begin(self, box: PooledBox, state: BoxState, step: Coroutine[Any, Any, str | None]) -> None:
        """Start a step, which returns the reason to close the box, or None if it is ready."""
        self.enter(box, state)
        box.task = self._loop.create_task(step)
        self._tasks.add(box.task)
        box.task.add_done_callback(functools.partial(self._step_done, box))

    def _step_done(self, box: PooledBox, task: asyncio.Task[str | None]) -> None:
        self._tasks.discard(task)
        box.task = None
        error = None if task.cancelled() else task.exception()
        if isinstance(error, Exception) and box.state is BoxState.CREATING:
            self._leave(box)
            box.error = error
            box.subpool.failures += 1
            self.counters.failed_creations += 1
            self._failed(box, error)
        elif box.state is BoxState.CLOSING:  # `close` came while the step ran
            self._dispose(box)
        elif reason := self._why_close(task, error):
            self.close(box, reason)
            self._closing(box)
        else:
            self._become_ready(box)

    def _why_close(self, task: asyncio.Task[str | None], error: BaseException | None) -> str | None:
        if task.cancelled():  # by code that cancels every task of the loop
            return "cancelled"
        if error is not None:
            logger.error("a box of the pool failed and is replaced", exc_info=error)
            return "error"
        return task.result()

    def _become_ready(self, box: PooledBox) -> None:
        box.answered = True
        self._ready(box)
        box.answered = False

    async def _start(self, box: PooledBox) -> None:
        async with self._creators:
            box.born = self._loop.time()
            await box.sandbox.start()
        box.made, box.subpool.failures = True, 0
        self.counters.created += 1

    async def _check(self, box: PooledBox) -> str | None:
        try:
            await box.sandbox.ping(timeout=PING_SECONDS)
        except Exception as error:
            logger.info("an idle box gave no sign of life and is replaced: %s", error)
            return "unhealthy"
        return None

    async def _reset(self, box: PooledBox) -> str | None:
        try:
            async with asyncio.timeout(RESET_SECONDS):
                await box.sandbox.reset()
        except Exception as error:
            logger.info("a box could not be reset and is replaced: %s", error)
            return "reset failed"
        return self.why_retire(box)

    def _dispose(self, box: PooledBox) -> None:
        task = self._loop.create_task(self._release(box))
        self._tasks.add(task)
        task.add_done_callback(functools.partial(self._disposed, box))

    async def _release(self, box: PooledBox) -> None:
        try:
            if box.lease is not None:
                await box.lease.settle()
        finally:
            await box.sandbox.close()

    def _disposed(self, box: PooledBox, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if task.cancelled():  # at the end of the loop, perhaps before it began: the box is not closed yet
            self._dispose(box)
            return
        self._leave(box)
        if (error := task.exception()) is not None:
            logger.error("a box of the pool could not be closed", exc_info=error)
        self._gone()
