"""Decides which lease gets which box, in one event loop; `boxes.py` holds the life of the boxes.

An event is a lease that comes or ends, or a box that is ready or gone. It moves only the waiters that it concerns from
one line to another (`Waiter`), so its cost grows neither with the boxes nor with the waiters nor with the templates. A
lease that is cancelled leaves its line, and its box goes to the next.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import weakref
from collections.abc import Hashable

from ..errors import EngineError, SandboxClosedError, SandboxTimeoutError
from ..lifecycle import Sandbox
from .boxes import Boxes
from .lease import LeasedBox, LeasedExecutor, lease_of
from .preparation import Preparations
from .spares import Spares
from .states import BoxState, PooledBox, PoolOptions, PoolStatistics, Queue, Registry, Subpool, Waiter, WaitingLine

logger = logging.getLogger("gymnast.sandbox")

# A box that comes free may go to a lease of its own image out of turn: to one that stands at most this many times
# `max_boxes` behind the first, while the first has been passed over for less than these seconds.
NEAR, PATIENCE = 4, 10.0
_CLOSED = "the pool was closed while a lease waited"
TICK_SECONDS = 5.0  # between two searches for boxes to close; less if `idle` is short


class Scheduler:
    """Lends, cleans and replaces boxes, in the event loop in which it is made; spare boxes are made like `template`."""

    def __init__(self, template: Sandbox, options: PoolOptions, counters: PoolStatistics) -> None:
        self.options = options
        self.counters = counters
        self.boxes = Boxes(
            options,
            counters,
            template.creators,
            ready=self._ready,
            closing=self._closing,
            gone=self._gone,
            failed=self._failed,
        )
        self.closing = self.closed = False
        self._loop = asyncio.get_running_loop()
        self._queue, self._slots, self._registry = Queue(), WaitingLine(), Registry()
        self._arrived = itertools.count()
        self._waiting = 0  # leases
        self.preparations = Preparations(self._prepared)
        self._subpools: weakref.WeakValueDictionary[Hashable, Subpool] = weakref.WeakValueDictionary()
        self._spares = Spares(options, self.boxes, self._subpool(template))
        self._timer: asyncio.TimerHandle | None = None

    def fill_in(self, numbers: PoolStatistics) -> None:
        """Set the numbers of this moment."""
        numbers.boxes, numbers.waiting = len(self.boxes), self._waiting
        numbers.idle = len(self.boxes.of[BoxState.IDLE])
        numbers.leased = len(self.boxes.of[BoxState.LEASED])
        numbers.creating = len(self.boxes.of[BoxState.CREATING])

    # Leases.

    async def acquire(
        self, template: Sandbox, timeout: float, *, fresh: bool, priority: bool
    ) -> tuple[PooledBox, LeasedExecutor | LeasedBox]:
        """Wait for a box: first come, first served, but leases with priority first. Raises as `ExecutorPool.lease`."""
        started = self._loop.time()
        subpool = self._subpool(template, fresh=fresh and self.options.reuse)
        self._spares.note_use()
        self._waiting += 1
        try:
            if not await self.preparations.finish(subpool.key, template, timeout):
                late = f"the image of this lease was not ready within {timeout:g} s"
                raise self._late(f"{late}: it is still being fetched or built")
            waiter = Waiter(subpool, self._loop.create_future(), priority, next(self._arrived))
            box = await self._wait_for_box(waiter, timeout, started + timeout)
        finally:
            self._waiting -= 1
        self.counters.leases += 1
        self.counters.reused += box.uses > 0
        self.counters.wait_seconds += self._loop.time() - started
        box.uses += 1
        box.lease = lease_of(box.sandbox, template)
        return box, box.lease

    async def _wait_for_box(self, waiter: Waiter, timeout: float, deadline: float) -> PooledBox:
        if self.closing:
            raise SandboxClosedError(_CLOSED)
        try:
            waiter.move(self._queue)
            self._advance()
            await asyncio.wait([waiter.turn], timeout=deadline - self._loop.time())
            if not waiter.turn.done():
                raise self._late(self._shortage(timeout))
        except BaseException:
            self._leave(waiter)
            raise
        box = waiter.turn.result()
        if box.state is not BoxState.LEASED:
            raise SandboxClosedError(_CLOSED)
        return box

    def release(self, box: PooledBox) -> None:
        """Take a box back; it is cleaned in the background."""
        if box.state is not BoxState.LEASED:  # the pool was closed during the lease
            return
        self._spares.note_use()
        reused = box.subpool.reused
        if reused is not None and (reused.queued or reused.expecting):
            self.boxes.move(box, reused)  # a waiter gets it after a reset, which is faster than a new box
        self.boxes.take_back(box)
        self._keep_image(box.subpool)
        self._advance()

    def _keep_image(self, subpool: Subpool) -> None:
        """Promise a box that is being reset to a lease of its own image, out of turn: a new box takes far longer."""
        if subpool.queued and subpool.coming > len(subpool.expecting):
            first, waiter = self._queue.first, next(iter(subpool.queued))
            first.passed = first.passed or self._loop.time()
            is_near = waiter.number - first.number <= NEAR * self.options.max_boxes
            if is_near and not first.priority and self._loop.time() - first.passed < PATIENCE:
                waiter.move(subpool.expecting)

    def _leave(self, waiter: Waiter) -> None:
        """Stop waiting; a box that was granted in the meantime goes back unused."""
        if waiter.line is not None:
            waiter.move(None)
            self._advance()
        elif waiter.turn.exception() is None:
            box = waiter.turn.result()
            if box.state is BoxState.LEASED:
                self.boxes.take_back(box)

    def _late(self, message: str) -> SandboxTimeoutError:
        self.counters.timeouts += 1
        return SandboxTimeoutError(message)

    def _shortage(self, timeout: float) -> str:
        now, limit = self._loop.time(), self.options.max_boxes
        out = [now - box.since for box in self.boxes.of[BoxState.LEASED]]
        longest = f", the longest for {max(out):.1f} s" if out else ""
        return (
            f"there was no box within {timeout:g} s: {len(out)} of {limit} boxes are leased{longest}, "
            f"{len(self.boxes.of[BoxState.CREATING])} are being made and {self._waiting - 1} other leases wait; "
            f"raise max_boxes={limit}, or run fewer episodes at a time"
        )

    # Events of images and boxes.

    def _prepared(self, key: Hashable, error: BaseException | None) -> None:
        if error is not None:
            self.counters.failed_creations += 1
            if key == self._spares.main.key:
                self._spares.main.failures += 1
            logger.warning("an image could not be got ready; it is tried again for the next lease: %s", error)
        self._advance()

    def _ready(self, box: PooledBox) -> None:
        if box.subpool.expecting:
            self._grant(box.subpool.expecting.first, box)
        else:
            self.boxes.enter(box, BoxState.IDLE)
        self._advance()

    def _closing(self, box: PooledBox) -> None:
        while len(box.subpool.expecting) > box.subpool.coming:
            box.subpool.expecting.last.move(self._queue, first=True)
        self._advance()

    def _gone(self) -> None:
        if self._slots and not self.closing:
            self._create_for(self._slots.first)
        self._advance()

    def _failed(self, box: PooledBox, error: Exception) -> None:
        """Tell the first waiter that expects a box; without one, the box was a spare one.

        Each waiter gets a second attempt: a container that is killed while it starts costs no episode.
        """
        subpool = box.subpool
        expected = len(subpool.expecting) > subpool.coming
        if not expected and not self.closing:
            logger.warning("a spare box could not be made; no other is tried before a lease gets a new one: %s", error)
        if expected:
            waiter = subpool.expecting.first
            if isinstance(error, EngineError) and not waiter.tried_again:
                waiter.tried_again = True
                logger.warning("a box could not be made, and another one is tried: %s", error)
                self.boxes.create(subpool)
            else:
                self._end_wait(waiter, error)
        self._advance()

    # Decisions.

    def _advance(self) -> None:
        """Serve the queue up to the first waiter for whom there is no box; then make spare boxes."""
        if self.closing:
            return
        while self._queue and self._provide(self._queue.first):
            pass
        if self._queue and self._queue.first.priority:
            # The next box must be for this waiter: take back the boxes on their way to waiters without priority.
            for line in (self._slots, *[subpool.expecting for subpool in self._registry.yielding]):
                while line.without_priority:
                    line.last.move(self._queue, first=True)
        missing, main = min(self._spares.missing(self._waiting), self._room), self._spares.main
        if missing > 0 and self.preparations.begin(main.key, main.template) is None and not self._queue:
            for _ in range(missing):
                self.boxes.create(main)
        self._watch()

    def _provide(self, waiter: Waiter) -> bool:
        """Find an idle box for a waiter, or one that is on its way, or room for another one."""
        subpool = waiter.subpool
        if self._offer_idle(waiter):
            return True
        if subpool.coming > len(subpool.expecting):
            waiter.move(subpool.expecting)
        elif self._room > 0:
            self._create_for(waiter)
        elif self._room_soon > 0 or self._make_room():
            waiter.move(self._slots)
        else:
            return False
        return True

    def _offer_idle(self, waiter: Waiter) -> bool:
        """Grant the box that became idle last, or check it first if it has not answered just now."""
        idle = waiter.subpool.boxes[BoxState.IDLE]
        while idle:
            box = next(reversed(idle))
            if box.answered:
                self._grant(waiter, box)
                return True
            if not self.boxes.close_if_worn(box):
                self.boxes.check(box)
                waiter.move(waiter.subpool.expecting)
                return True
        return False

    @property
    def _room(self) -> int:
        """How many boxes may be added now."""
        return self.options.max_boxes - len(self.boxes)

    @property
    def _room_soon(self) -> int:
        """How many may be added once all that are being closed are gone and other waiters have got theirs."""
        return self._room + len(self.boxes.of[BoxState.CLOSING]) - len(self._slots)

    def _make_room(self) -> bool:
        """Close the box that has been idle longest, or one that is being made and that no waiter expects."""
        for box in self.boxes.of[BoxState.IDLE]:
            self.boxes.close(box, "evicted")
            return True
        for subpool in self._registry.surplus:
            self.boxes.close(next(reversed(subpool.boxes[BoxState.CREATING])), "evicted")
            return True
        return False

    def _grant(self, waiter: Waiter, box: PooledBox) -> None:
        self.boxes.enter(box, BoxState.LEASED)
        waiter.move(None)
        waiter.turn.set_result(box)

    def _end_wait(self, waiter: Waiter, error: BaseException) -> None:
        waiter.move(None)
        waiter.turn.set_exception(error)

    def _create_for(self, waiter: Waiter) -> None:
        self.boxes.create(waiter.subpool)
        waiter.move(waiter.subpool.expecting)

    # Subpools, spare boxes and time.

    def _subpool(self, template: Sandbox, *, fresh: bool = False) -> Subpool:
        """The boxes of a template; if `fresh`, only those that no lease has had."""
        key = (template.key, fresh)
        subpool = self._subpools.get(key)
        if subpool is None:
            reused = self._subpool(template) if fresh else None
            subpool = Subpool(template, key[0], self._registry, reused)
            self._subpools[key] = subpool
        return subpool

    def _watch(self) -> None:
        """Look again in a while, as long as there is a box or a waiter."""
        if self._timer is None and (self.boxes or self._waiting):
            period = min(TICK_SECONDS, max(self.options.idle / 4, 0.05))
            self._timer = self._loop.call_later(period, self._tick)

    def _tick(self) -> None:
        self._timer = None
        self._spares.close_unused(self._waiting)
        self._advance()

    async def warm_up(self) -> None:
        """Make the spare boxes; raises the error of one that could not be made."""
        if self.options.warm:
            await self.preparations.prepare([self._spares.main.template], wait=True)
        self._advance()
        making = list(self.boxes.of[BoxState.CREATING])
        if tasks := [box.task for box in making if box.task is not None]:
            await asyncio.wait(tasks)
        for box in making:
            if box.error is not None:
                raise box.error

    async def shut_down(self) -> None:
        """Close every box, leased ones too, and wait until they are gone. Several calls may do so at the same time."""
        self.closing = True
        if self._timer is not None:
            self._timer.cancel()
        expecting = [subpool.expecting for subpool in list(self._subpools.values())]
        for line in (self._queue, self._slots, *expecting):
            while line:
                self._end_wait(line.first, SandboxClosedError(_CLOSED))
        await self.preparations.stop()
        await self.boxes.close_all()
        self.closed = True
