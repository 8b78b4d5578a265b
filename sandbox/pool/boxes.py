"""The life of a pool's boxes: each is made, lent, cleaned and closed in tasks of its own; `pool_stock.py` says when.

A box is in one `State`. What takes time (to make, check, reset or close it) is a task, and all these tasks end in
`_step_done` or `_gone`. All else happens between two awaits, so no cancellation can come in the middle of it.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

from .base import Executor
from .pool_lease import LeasedExecutor
from .pool_statistics import Tally

logger = logging.getLogger("gymnast.sandbox")

PING_SECONDS = 2.0  # for the sign of life of an idle box
RESET_SECONDS = 10.0  # after which a box is closed rather than waited for
CANCELLED_SECONDS = 0.05  # after which a loop that cancels everything still runs, or has ended


class State(Enum):
    CREATING = auto()
    CHECKING = auto()  # asked for a sign of life
    RESETTING = auto()
    IDLE = auto()
    LEASED = auto()
    CLOSING = auto()


ON_THE_WAY = (State.CREATING, State.CHECKING, State.RESETTING)  # soon to be had by whoever waits for the kind


@dataclass(eq=False)
class Kind:
    """The boxes of one key, which are interchangeable."""

    recipe: Executor
    reused: Kind | None = None  # of boxes for leases of unused ones: the kind that they may become after that
    failures: int = 0  # boxes that could not be made, in a row


@dataclass(eq=False)
class Box:
    kind: Kind
    executor: Executor
    state: State = State.CREATING
    since: float = 0.0  # when it came into its state
    born: float = 0.0
    uses: int = 0
    fresh: bool = False  # it has answered just now, and needs no check
    made: bool = False
    error: Exception | None = None  # why it could not be made
    lease: LeasedExecutor | None = None
    task: asyncio.Task[str | None] | None = None


@dataclass(kw_only=True, slots=True, frozen=True)
class StockOptions:
    """See `ExecutorPool`."""

    max_boxes: int
    warm: int
    max_uses: int
    reuse: bool
    idle: float


class Boxes:
    """All boxes that count against `max_boxes`; belongs to the event loop in which it is made.

    Args:
        options: when a box is used up.
        tally: where to count.
        creators: boxes that are made at a time.
        changed: called when a box is ready, or gone.
        failed: called with a box that could not be made, which does not count any more.
    """

    def __init__(
        self,
        options: StockOptions,
        tally: Tally,
        creators: int,
        *,
        changed: Callable[[], None],
        failed: Callable[[Box, Exception], None],
    ) -> None:
        self.options = options
        self.tally = tally
        self.all: set[Box] = set()
        self._changed = changed
        self._failed = failed
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._creators = asyncio.Semaphore(creators)

    def __len__(self) -> int:
        return len(self.all)

    def count(self, *states: State, kind: Kind | None = None) -> int:
        return sum(box.state in states and kind in (None, box.kind) for box in self.all)

    def idle(self) -> list[Box]:
        """The idle boxes, the one that was used last first."""
        return sorted((box for box in self.all if box.state is State.IDLE), key=lambda box: box.since, reverse=True)

    # What is asked for.

    def create(self, kind: Kind) -> None:
        box = Box(kind, kind.recipe.clone())
        self.all.add(box)
        self._begin(box, State.CREATING, self._start(box))

    def check(self, box: Box) -> None:
        """Ask an idle box for a sign of life; it is ready again when it has given one."""
        self._begin(box, State.CHECKING, self._check(box))

    def lend(self, box: Box) -> None:
        box.state, box.since = State.LEASED, self._loop.time()

    def take_back(self, box: Box) -> None:
        """An unused box is ready at once, any other after its reset, unless it is used up."""
        if box.lease is None:
            self._ready(box)
            return
        box.lease.end("the lease of this box is over: use it inside `async with pool.lease()`")
        reason = "call in flight" if box.lease.busy else self.why_retire(box)
        if reason:
            self.close(box, reason)
        else:
            box.lease = None
            self._begin(box, State.RESETTING, self._reset(box))

    def close(self, box: Box, reason: str) -> None:
        """Close a box in the background; it counts until it is gone."""
        if box.made:
            self.tally.retired[reason] += 1
        box.state, box.since = State.CLOSING, self._loop.time()
        if box.lease is not None:
            box.lease.end("the pool of this box was closed")
        if box.task is not None:
            box.task.cancel()  # `_step_done` goes on
        else:
            self._dispose(box)

    def why_retire(self, box: Box) -> str | None:
        """A word on why a box should serve no other lease."""
        if box.executor.retire_reason is not None:
            return _category(box.executor.retire_reason)
        if box.uses and not self.options.reuse:
            return "reuse=False"
        if box.uses and box.kind.reused is not None:
            return "unused=True"
        if box.uses >= self.options.max_uses:
            return "max_uses"
        # A lease may then last for the other half.
        return "age" if self._loop.time() - box.born > box.executor.lifetime / 2 else None

    def close_if_worn(self, box: Box) -> bool:
        """Close an idle box that is too old, or known to be dead."""
        reason = self.why_retire(box)
        if reason is None:
            return False
        self.tally.unhealthy += box.executor.retire_reason is not None
        self.close(box, reason)
        return True

    async def close_all(self) -> None:
        """Close every box, leased ones too, and wait until they are gone."""
        for box in self.all:
            if box.state is not State.CLOSING:
                self.close(box, "pool closed")
        while self._tasks:
            await asyncio.wait(set(self._tasks))

    async def abandon(self) -> None:
        """Release what the boxes hold, from another event loop, when their own is no more."""
        for box in list(self.all):
            if box.lease is not None:
                box.lease.end("the event loop of this box's pool has ended")
            await box.executor.close()
        self.all.clear()

    # The steps.

    def _begin(self, box: Box, state: State, step: Coroutine[Any, Any, str | None]) -> None:
        """Start a step, which returns why the box must go, or None if it is ready."""
        box.state, box.since = state, self._loop.time()
        box.task = self._loop.create_task(step)
        self._tasks.add(box.task)
        box.task.add_done_callback(functools.partial(self._step_done, box))

    def _step_done(self, box: Box, task: asyncio.Task[str | None]) -> None:
        self._tasks.discard(task)
        box.task = None
        error = None if task.cancelled() else task.exception()
        if isinstance(error, Exception) and box.state is State.CREATING:
            self.all.discard(box)
            box.error = error
            box.kind.failures += 1
            self.tally.failed_creations += 1
            self._failed(box, error)
        elif box.state is State.CLOSING:  # it was asked to go meanwhile
            self._dispose(box)
        elif task.cancelled():
            # By somebody who cancels everything, mostly a loop that ends: no task of it would come to its end.
            self._loop.call_later(CANCELLED_SECONDS, self._close_cancelled, box)
        elif error is not None:
            logger.error("a box of the pool failed and is replaced", exc_info=error)
            self.close(box, "error")
        elif reason := task.result():
            self.close(box, reason)
        else:
            self._ready(box)

    def _close_cancelled(self, box: Box) -> None:
        if box.state is not State.CLOSING:
            self.close(box, "cancelled")

    def _ready(self, box: Box) -> None:
        box.state, box.since = State.IDLE, self._loop.time()
        box.fresh = True
        self._changed()
        box.fresh = False

    async def _start(self, box: Box) -> None:
        async with self._creators:
            box.born = self._loop.time()
            await box.executor.start()
        box.made, box.kind.failures = True, 0
        self.tally.created += 1

    async def _check(self, box: Box) -> str | None:
        try:
            await box.executor.ping(timeout=PING_SECONDS)
        except Exception as error:
            logger.info("an idle box gave no sign of life and is replaced: %s", error)
            self.tally.unhealthy += 1
            return "unhealthy"
        return None

    async def _reset(self, box: Box) -> str | None:
        try:
            async with asyncio.timeout(RESET_SECONDS):
                await box.executor.reset()
        except Exception as error:
            logger.info("a box could not be reset and is replaced: %s", error)
            return "reset failed"
        self.tally.resets += 1
        return self.why_retire(box)

    def _dispose(self, box: Box) -> None:
        task = self._loop.create_task(self._remove(box))
        self._tasks.add(task)
        task.add_done_callback(functools.partial(self._gone, box))

    async def _remove(self, box: Box) -> None:
        try:
            if box.lease is not None:
                await box.lease.settle()
        finally:
            await box.executor.close()

    def _gone(self, box: Box, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self.all.discard(box)
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("a box of the pool could not be closed", exc_info=error)
        self._changed()


def _category(reason: str) -> str:
    """A word for what an executor says of why it should be replaced."""
    if reason.startswith("the box is lost"):
        return "lost"
    return "memory" if "MiB of memory" in reason else reason.split(":")[0]
