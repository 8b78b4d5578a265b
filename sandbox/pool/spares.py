"""Spares: the idle boxes that a pool keeps in advance, and when it gives them up."""

from __future__ import annotations

import asyncio
import logging

from .boxes import Boxes
from .states import BoxState, PoolOptions, Subpool

logger = logging.getLogger("gymnast.sandbox")

PAUSE_SECONDS = 1.0  # after a failure, before the next attempt to make a spare box
SPARE_TRIES = 3  # failures in a row after which no spare box is tried until a lease gets a new one


class Spares:
    """Keeps `warm` boxes of the pool's template while the pool is in use.

    It keeps no box for leases with `fresh=True`: each waits until one is made. With a spare one, a lone lease waits
    0.7 s less on a busy machine of two cores; with 8 or more episodes side by side nothing is gained, as the engine is
    then the bottleneck.

    Args:
        options: how many, and for how long.
        boxes: the boxes of the pool.
        main: the boxes of the pool's template.
    """

    def __init__(self, options: PoolOptions, boxes: Boxes, main: Subpool) -> None:
        self.options, self.boxes, self.main = options, boxes, main
        self._loop = asyncio.get_running_loop()
        self._used = self._loop.time()
        self._next_try = 0.0

    def note_use(self) -> None:
        """A lease begins or ends."""
        self._used = self._loop.time()

    def note_failure(self, subpool: Subpool, error: Exception, *, reported: bool) -> None:
        """A box could not be made. Log the error unless a lease has reported it."""
        if subpool is self.main:
            self._next_try = self._loop.time() + PAUSE_SECONDS
        if not reported:
            hint = "; no other is tried before a lease needs one" if subpool.failures >= SPARE_TRIES else ""
            logger.warning("a spare box could not be made: %s%s", error, hint)

    def missing(self, waiting: int) -> int:
        """Return how many spare boxes should be made now.

        Args:
            waiting: leases that wait.
        """
        if not self._in_use(waiting) or self.pausing or self.main.failures >= SPARE_TRIES:
            return 0
        return self.options.warm - self.main.spare

    def close_unused(self, waiting: int) -> None:
        """Close idle boxes that are dead, or that nobody has used for long; keep the spare ones of a pool in use."""
        now = self._loop.time()
        kept = self.options.warm if self._in_use(waiting) else 0
        for box in reversed(list(self.boxes.of[BoxState.IDLE])):
            if self.boxes.close_if_worn(box):
                continue
            if box.subpool is self.main and kept > 0:
                kept -= 1
            elif now - box.since >= self.options.idle:
                self.boxes.close(box, "idle")

    def _in_use(self, waiting: int) -> bool:
        recently = self._loop.time() - self._used < self.options.idle
        return recently or waiting > 0 or len(self.boxes.of[BoxState.LEASED]) > 0

    @property
    def pausing(self) -> bool:
        """Whether spare boxes wait for a while, because one could not be made."""
        return self._next_try > self._loop.time()
