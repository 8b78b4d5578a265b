"""Spares: the idle boxes that a pool keeps in advance, and when it gives them up."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator

from .boxes import Boxes
from .states import PoolOptions, State, Subpool

logger = logging.getLogger("gymnast.sandbox")

PAUSE_SECONDS = 1.0  # after a failure, before the next attempt to make a spare box
SPARE_TRIES = 3  # failures in a row after which no spare box is tried until a lease gets a new one


class Spares:
    """Keeps `warm` boxes of the pool's template while the pool is in use, and as many fresh ones while they are wanted.

    Args:
        options: how many, and for how long.
        boxes: the boxes of the pool.
        main: the boxes of the pool's template.
        fresh: the template's boxes that no lease has had; they are kept from other leases.
    """

    def __init__(self, options: PoolOptions, boxes: Boxes, main: Subpool, fresh: Subpool) -> None:
        self.options, self.boxes, self.main, self.fresh = options, boxes, main, fresh
        self._loop = asyncio.get_running_loop()
        self._used = self._loop.time()
        self._fresh_wanted_until = 0.0
        self._next_try = 0.0

    def note_use(self, subpool: Subpool) -> None:
        """A lease begins or ends."""
        self._used = self._loop.time()
        if subpool is self.fresh:
            self._fresh_wanted_until = self._used + self.options.idle

    def note_failure(self, subpool: Subpool, error: Exception, *, reported: bool) -> None:
        """A box could not be made. Log the error unless a lease has reported it."""
        if subpool in (self.main, self.fresh):
            self._next_try = self._loop.time() + PAUSE_SECONDS
        if not reported:
            hint = "; no other is tried before a lease needs one" if subpool.failures >= SPARE_TRIES else ""
            logger.warning("a spare box could not be made: %s%s", error, hint)

    def held_back(self, *, ending: int = 0) -> int:
        """How many unused fresh boxes to keep from other leases, once `ending` leases of fresh boxes are over.

        At least one of the pool's boxes is left to the other leases, or they would wait for ever.
        """
        if self._loop.time() >= self._fresh_wanted_until:
            return 0
        return max(0, min(self.options.warm, self.options.max_boxes - 1 - self.fresh.in_use + ending))

    def missing_fresh(self, *, ending: int = 0) -> int:
        """How many of those are not there, and for which other leases leave room."""
        return max(0, self.held_back(ending=ending) - self.fresh.spare)

    def needs_place_of(self, subpool: Subpool) -> bool:
        """Whether a fresh box whose lease ends must make room for an unused one."""
        return subpool is self.fresh and self.missing_fresh(ending=1) > 0

    def may_evict(self, subpool: Subpool) -> bool:
        """Whether another lease may have the place of an idle box of this subpool."""
        return subpool is not self.fresh or subpool.spare > self.held_back()

    def missing(self, waiting: int, *, blocked: bool) -> Iterator[tuple[Subpool, int]]:
        """How many spare boxes of which subpool should be made now.

        Args:
            waiting: leases that wait.
            blocked: some of them get nothing for now, so only fresh boxes are made.
        """
        if not self._in_use(waiting) or self.pausing:
            return
        if self.fresh.failures < SPARE_TRIES:
            yield self.fresh, self.missing_fresh()
        if not blocked and self.main.failures < SPARE_TRIES:
            yield self.main, self.options.warm - self.main.spare

    def close_unused(self, waiting: int) -> None:
        """Close idle boxes that are dead, or that nobody has used for long; keep the spare ones of a pool in use."""
        now = self._loop.time()
        kept = {self.main: self.options.warm if self._in_use(waiting) else 0, self.fresh: self.held_back()}
        for box in reversed(list(self.boxes.of[State.IDLE])):
            if self.boxes.close_if_worn(box):
                continue
            if kept.get(box.subpool, 0) > 0:
                kept[box.subpool] -= 1
            elif now - box.since >= self.options.idle:
                self.boxes.close(box, "idle")

    def _in_use(self, waiting: int) -> bool:
        recently = self._loop.time() - self._used < self.options.idle
        return recently or waiting > 0 or len(self.boxes.of[State.LEASED]) > 0

    @property
    def pausing(self) -> bool:
        """Whether spare boxes wait for a while, because one could not be made."""
        return self._next_try > self._loop.time()
