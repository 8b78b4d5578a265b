"""The lines in which leases wait for a box; `scheduler.py` moves them from line to line."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .states import Box, Subpool


@dataclass(eq=False)
class Waiter:
    """A lease that has no box yet."""

    subpool: Subpool
    turn: asyncio.Future[Box]
    priority: bool
    tried_again: bool = False
    line: Line | None = None


class Line:
    """Waiters in the order in which they are served: those with priority first. Every operation takes constant time."""

    def __init__(self) -> None:
        self._first: OrderedDict[Waiter, None] = OrderedDict()  # with priority
        self._others: OrderedDict[Waiter, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._first) + len(self._others)

    @property
    def first(self) -> Waiter:
        return next(iter(self._first or self._others))

    @property
    def last(self) -> Waiter:
        return next(reversed(self._others or self._first))

    @property
    def without_priority(self) -> int:
        return len(self._others)

    def append(self, waiter: Waiter) -> None:
        self._of(waiter)[waiter] = None
        waiter.line = self

    def push_front(self, waiter: Waiter) -> None:
        self.append(waiter)
        self._of(waiter).move_to_end(waiter, last=False)

    def remove(self, waiter: Waiter) -> None:
        del self._of(waiter)[waiter]
        waiter.line = None

    def _of(self, waiter: Waiter) -> OrderedDict[Waiter, None]:
        return self._first if waiter.priority else self._others


class Waiters:
    """All leases that have no box yet.

    - `queue`: no box is planned yet for these waiters;
    - `slots`: a box is being closed, and the waiter's box will be made in its place;
    - `Subpool.expecting`: for each of these waiters a box of the subpool is on its way.
    """

    def __init__(self) -> None:
        self.queue, self.slots = Line(), Line()
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, waiter: Waiter) -> None:
        self.queue.append(waiter)
        self._count += 1
        waiter.subpool.waiting += 1

    def remove(self, waiter: Waiter) -> None:
        assert waiter.line is not None
        waiter.line.remove(waiter)
        self._count -= 1
        waiter.subpool.waiting -= 1

    def move(self, waiter: Waiter, line: Line) -> None:
        assert waiter.line is not None
        waiter.line.remove(waiter)
        line.append(waiter)

    def move_back(self, line: Line) -> None:
        """Put the last waiter of a line to the front of the queue."""
        waiter = line.last
        line.remove(waiter)
        self.queue.push_front(waiter)
