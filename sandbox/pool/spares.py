"""Spares: the idle boxes that a pool keeps in advance, and when it gives them up."""

from __future__ import annotations

import asyncio

from .boxes import Boxes
from .states import BoxState, PoolOptions, Subpool


class Spares:
    """Keeps `warm` boxes of `main`, the subpool of the pool's template, while the pool is in use.

    It keeps no box for leases with `fresh=True`: with 8 or more episodes side by side the engine is the bottleneck, and
    a spare box gains nothing.
    """

    def __init__(self, options: PoolOptions, boxes: Boxes, main: Subpool) -> None:
        self.options, self.boxes, self.main = options, boxes, main
        self._loop = asyncio.get_running_loop()
        self._used = self._loop.time()

    def note_use(self) -> None:
        """A lease begins or ends."""
        self._used = self._loop.time()

    def missing(self, waiting: int) -> int:
        """Return how many spare boxes should be made now, while so many leases wait.

        After a failure this is 0 until a lease gets a new box.
        """
        return self.options.warm - self.main.spare if self._in_use(waiting) and not self.main.failures else 0

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
