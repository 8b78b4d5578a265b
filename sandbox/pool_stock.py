"""Who gets which box of a pool, in one event loop: `pool.py` is the way in, `pool_boxes.py` the life of the boxes.

A lease that is cancelled merely stops waiting: the box that was on its way to it goes to the next, or becomes idle.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import weakref
from collections import Counter, deque
from collections.abc import Hashable
from dataclasses import dataclass

from .base import Executor
from .errors import EngineError, SandboxClosedError, SandboxTimeoutError
from .pool_boxes import ON_THE_WAY, Box, Boxes, Kind, State, StockOptions
from .pool_lease import LeasedExecutor
from .pool_statistics import PoolStatistics, Tally

logger = logging.getLogger("gymnast.sandbox")

TICK_SECONDS = 5.0  # between two looks for boxes that nobody uses; less where `idle` is short
PAUSES = (1.0, 60.0)  # seconds, the shortest and the longest, between attempts to make a box that nobody waits for


@dataclass(eq=False)
class Waiter:
    kind: Kind
    turn: asyncio.Future[Box]
    ahead: bool
    tried_again: bool = False


class Stock:
    """Boxes that are lent, cleaned and replaced; belongs to the event loop in which it is made.

    Args:
        recipe: what `options.warm` boxes are kept of.
        options: how many boxes, and for how long.
        tally: where to count.
    """

    def __init__(self, recipe: Executor, options: StockOptions, tally: Tally) -> None:
        self.options = options
        self.tally = tally
        self.boxes = Boxes(options, tally, recipe.creators, changed=self.serve, failed=self._not_made)
        self.waiters: deque[Waiter] = deque()
        self.closing = False
        self._loop = asyncio.get_running_loop()
        self._kinds: weakref.WeakValueDictionary[Hashable, Kind] = weakref.WeakValueDictionary()
        self._main = self._kind(recipe)
        self._used = self._loop.time()  # when a lease last began or ended
        self._next_try = 0.0  # to make a spare box, after one could not be made
        self._timer: asyncio.TimerHandle | None = None

    def statistics(self) -> PoolStatistics:
        return self.tally.picture(
            boxes=len(self.boxes),
            idle=self.boxes.count(State.IDLE),
            leased=self.boxes.count(State.LEASED),
            waiting=len(self.waiters),
            creating=self.boxes.count(State.CREATING),
        )

    # What leases do.

    async def acquire(
        self, recipe: Executor, timeout: float, *, unused: bool, ahead: bool
    ) -> tuple[Box, LeasedExecutor]:
        """Wait for a box, first come, first served, but whoever is `ahead` before all others.

        Raises:
            SandboxTimeoutError: none was free in time.
            SandboxClosedError: the pool was closed meanwhile.
            EngineError, ImageError: the box for this lease could not be made.
        """
        started = self._used = self._loop.time()
        kind = self._unused_kind(recipe) if unused and self.options.reuse else self._kind(recipe)
        waiter = Waiter(kind, self._loop.create_future(), ahead)
        place = sum(other.ahead for other in self.waiters) if ahead else len(self.waiters)
        self.waiters.insert(place, waiter)
        try:
            self.serve()
            await asyncio.wait([waiter.turn], timeout=timeout)
        except BaseException:
            self._leave(waiter)
            raise
        if not waiter.turn.done():
            message = self._shortage(timeout)
            self._leave(waiter)
            self.tally.timeouts += 1
            raise SandboxTimeoutError(message)
        box = waiter.turn.result()
        if box.state is not State.LEASED:
            raise SandboxClosedError("the pool was closed while a lease waited")
        self.tally.granted(self._loop.time() - started, again=box.uses > 0)
        box.uses += 1
        box.lease = LeasedExecutor(box.executor)
        return box, box.lease

    def release(self, box: Box) -> None:
        """Take a box back; what is left to do goes on in the background."""
        if box.state is State.LEASED:  # otherwise the pool was closed under the lease
            self._used = self._loop.time()
            later = box.kind.reused
            if later is not None and any(waiter.kind is later for waiter in self.waiters):
                box.kind = later  # rather than to close it and to make another for them
            self.boxes.take_back(box)

    def _leave(self, waiter: Waiter) -> None:
        """Stop waiting; a box that has just been given goes back as clean as it came."""
        if waiter in self.waiters:
            self.waiters.remove(waiter)
            self.serve()
        elif waiter.turn.exception() is None:
            box = waiter.turn.result()
            if box.state is State.LEASED:
                self.boxes.take_back(box)

    def _shortage(self, timeout: float) -> str:
        now, limit = self._loop.time(), self.options.max_boxes
        out = [now - box.since for box in self.boxes.all if box.state is State.LEASED]
        longest = f", the longest for {max(out):.1f} s" if out else ""
        return (
            f"there was no box within {timeout:g} s: {len(out)} of {limit} boxes are leased{longest}, "
            f"{self.boxes.count(State.CREATING)} are being made and {len(self.waiters) - 1} other leases wait; "
            f"raise max_boxes={limit}, or run fewer episodes at a time"
        )

    # Who gets what.

    def serve(self) -> None:
        """Look, for each waiter in turn, what there is: an idle box, one on its way, or room for another.

        The first for whom there is nothing ends the round: nobody behind is served before. A box or room that is on
        its way counts for one waiter only.
        """
        if self.closing:
            return
        coming = Counter(box.kind for box in self.boxes.all if box.state in ON_THE_WAY)
        leaving = self.boxes.count(State.CLOSING)
        unserved = False
        for waiter in list(itertools.islice(self.waiters, self.options.max_boxes + 1)):
            if self._give_idle(waiter):
                continue
            if coming[waiter.kind] > 0:
                coming[waiter.kind] -= 1
            elif len(self.boxes) < self.options.max_boxes:
                self.boxes.create(waiter.kind)
            elif leaving > 0:
                leaving -= 1
            elif not self._make_room():
                unserved = True
                break
        if not unserved:
            self._keep_warm()
        self._watch()

    def _give_idle(self, waiter: Waiter) -> bool:
        """Give, or check for, a waiter the idle box of its kind that was used last."""
        for box in self.boxes.idle():
            if box.kind is not waiter.kind:
                continue
            if box.fresh:
                self.boxes.lend(box)
                self.waiters.remove(waiter)
                waiter.turn.set_result(box)
                return True
            if not self.boxes.close_if_worn(box):
                self.boxes.check(box)
                return True
        return False

    def _make_room(self) -> bool:
        """Close the box that was idle the longest, or call off one that is being made and that nobody waits for."""
        if idle := self.boxes.idle():
            self.boxes.close(idle[-1], "evicted")
            return True
        wanted = Counter(waiter.kind for waiter in self.waiters)
        for box in self.boxes.all:
            if box.state is State.CREATING and self.boxes.count(*ON_THE_WAY, kind=box.kind) > wanted[box.kind]:
                self.boxes.close(box, "evicted")
                return True
        return False

    def _keep_warm(self) -> None:
        """Make the spare boxes that are missing, while the pool is in use."""
        now = self._loop.time()
        if not self._in_use() or now < self._next_try:
            return
        wanted = self.options.warm + sum(waiter.kind is self._main for waiter in self.waiters)
        missing = wanted - self.boxes.count(State.IDLE, *ON_THE_WAY, kind=self._main)
        for _ in range(min(missing, self.options.max_boxes - len(self.boxes))):
            self.boxes.create(self._main)

    def _in_use(self) -> bool:
        recently = self._loop.time() - self._used < self.options.idle
        return recently or bool(self.waiters) or self.boxes.count(State.LEASED) > 0

    def _kind(self, recipe: Executor) -> Kind:
        return self._kinds.setdefault((recipe.key, "any"), Kind(recipe))

    def _unused_kind(self, recipe: Executor) -> Kind:
        """The kind of the boxes that are made for one lease, so that none had them before."""
        return self._kinds.setdefault((recipe.key, "unused"), Kind(recipe, reused=self._kind(recipe)))

    def _not_made(self, box: Box, error: Exception) -> None:
        """Tell the waiter that this box would have been for; if there is none, try again later.

        The engine gets a second chance for each waiter: a container that is killed while it starts costs no episode.
        """
        if box.kind is self._main:
            pause = min(PAUSES[0] * 2.0 ** min(box.kind.failures - 1, 30), PAUSES[1])
            self._next_try = self._loop.time() + pause
        waiting = [waiter for waiter in self.waiters if waiter.kind is box.kind]
        others = self.boxes.count(State.IDLE, *ON_THE_WAY, kind=box.kind)
        if len(waiting) > others:
            waiter = waiting[others]
            if isinstance(error, EngineError) and not waiter.tried_again:
                waiter.tried_again = True
                logger.warning("a box could not be made, and another one is tried: %s", error)
            else:
                self.waiters.remove(waiter)
                waiter.turn.set_exception(error)
        elif not self.closing:
            logger.warning("a box for later could not be made: %s", error)
        self.serve()

    # Time and the end.

    def _watch(self) -> None:
        """Look again in a while, as long as there is something to look after."""
        if self._timer is None and (self.boxes or self.waiters or self._next_try > self._loop.time()):
            period = min(TICK_SECONDS, max(self.options.idle / 4, 0.05))
            self._timer = self._loop.call_later(period, self._tick)

    def _tick(self) -> None:
        """Close idle boxes that are dead, or that nobody has used for long; keep the spare ones of a pool in use."""
        self._timer = None
        now, kept = self._loop.time(), 0
        in_use = self._in_use()
        for box in self.boxes.idle():
            if self.boxes.close_if_worn(box):
                continue
            spare = box.kind is self._main and kept < self.options.warm
            kept += spare
            if now - box.since >= self.options.idle and not (spare and in_use):
                self.boxes.close(box, "idle")
        self.serve()

    async def warm_up(self) -> None:
        """Make the spare boxes.

        Raises:
            EngineError, ImageError, SandboxTimeoutError: one could not be made.
        """
        self.serve()
        making = [box for box in self.boxes.all if box.state is State.CREATING]
        if tasks := [box.task for box in making if box.task is not None]:
            await asyncio.wait(tasks)
        for box in making:
            if box.error is not None:
                raise box.error

    async def shut_down(self) -> None:
        """Close every box, leased ones too, and wait until they are gone."""
        self.closing = True
        if self._timer is not None:
            self._timer.cancel()
        while self.waiters:
            self.waiters.popleft().turn.set_exception(SandboxClosedError("the pool was closed while a lease waited"))
        await self.boxes.close_all()

    async def abandon(self) -> None:
        """Release what the boxes hold, from another event loop, when their own is no more."""
        self.closing = True
        await self.boxes.abandon()
