"""The boxes of a pool, their states and numbers, and the lines in which leases wait. No decision is made here."""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass, field
from enum import IntEnum

from ..lifecycle import Sandbox
from .lease import LeasedBox, LeasedExecutor


class BoxState(IntEnum):
    """The state of a box; the numbers index lists."""

    CREATING = 0
    CHECKING = 1  # asked for a sign of life
    RESETTING = 2
    IDLE = 3
    LEASED = 4
    CLOSING = 5


@dataclass(kw_only=True, slots=True, frozen=True)
class PoolOptions:
    """See `ExecutorPool`."""

    max_boxes: int
    warm: int
    max_uses: int
    reuse: bool
    idle: float


@dataclass(kw_only=True, slots=True)
class PoolStatistics:
    """The numbers of a pool: first those of this moment, then the counts since the pool was made."""

    boxes: int = 0  # all that count against `max_boxes`, with those that are being made or closed
    idle: int = 0  # ready for a lease
    leased: int = 0
    waiting: int = 0  # leases that have no box yet
    creating: int = 0  # boxes that are being made, or wait for their turn
    leases: int = 0  # leases that got a box
    created: int = 0
    reused: int = 0  # leases whose box had served one before
    retired: Counter[str] = field(default_factory=Counter)  # boxes closed, by reason: "oom", "max_uses", "idle" ...
    failed_creations: int = 0
    timeouts: int = 0  # leases that got no box in time
    wait_seconds: float = 0.0  # the sum over the leases that got a box


def by_state() -> list[dict[PooledBox, None]]:
    """An empty table of boxes: for each state, the boxes in the order in which they entered it."""
    return [{} for _ in BoxState]


class Registry:
    """Those subpools that a decision may concern, so that none looks at all of them."""

    def __init__(self) -> None:
        self.surplus: dict[Subpool, None] = {}  # a box is being made there that no waiter expects
        self.yielding: dict[Subpool, None] = {}  # a waiter without priority expects a box there


class WaitingLine:
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

    def add(self, waiter: Waiter, *, first: bool = False) -> None:
        line = self._of(waiter)
        line[waiter] = None
        if first:
            line.move_to_end(waiter, last=False)

    def remove(self, waiter: Waiter) -> None:
        del self._of(waiter)[waiter]

    def _of(self, waiter: Waiter) -> OrderedDict[Waiter, None]:
        return self._first if waiter.priority else self._others


class Queue(WaitingLine):
    """The waiters for whom no box is planned yet. Each subpool knows its own ones in this order."""

    def add(self, waiter: Waiter, *, first: bool = False) -> None:
        super().add(waiter, first=first)
        waiter.subpool.queued[waiter] = None
        if first:
            waiter.subpool.queued.move_to_end(waiter, last=False)

    def remove(self, waiter: Waiter) -> None:
        super().remove(waiter)
        del waiter.subpool.queued[waiter]


@dataclass(eq=False)
class Subpool:
    """The boxes of one template, which are interchangeable, and the waiters for whom one of them is on its way."""

    template: Sandbox
    key: Hashable  # of the template
    registry: Registry
    reused: Subpool | None = None  # of fresh boxes: the subpool that a box may join after its first lease
    boxes: list[dict[PooledBox, None]] = field(default_factory=by_state)
    expecting: WaitingLine = field(default_factory=WaitingLine)
    queued: OrderedDict[Waiter, None] = field(default_factory=OrderedDict)  # those in the queue
    failures: int = 0  # boxes that could not be made, in a row

    @property
    def coming(self) -> int:
        """Boxes that will soon be ready."""
        boxes = self.boxes
        return len(boxes[BoxState.CREATING]) + len(boxes[BoxState.CHECKING]) + len(boxes[BoxState.RESETTING])

    @property
    def spare(self) -> int:
        """Boxes that are idle or coming, and that no waiter expects."""
        return self.coming + len(self.boxes[BoxState.IDLE]) - len(self.expecting)

    def register(self) -> None:
        """Keep the registry up to date; called after each change of the boxes or of the waiters that expect one."""
        registry = self.registry
        if self.boxes[BoxState.CREATING] and self.coming > len(self.expecting):
            registry.surplus[self] = None
        else:
            registry.surplus.pop(self, None)
        if self.expecting.without_priority:
            registry.yielding[self] = None
        else:
            registry.yielding.pop(self, None)


@dataclass(eq=False)
class PooledBox:
    """One box of a pool. Only `Boxes` changes its state."""

    subpool: Subpool
    sandbox: Sandbox
    state: BoxState = BoxState.CREATING
    since: float = 0.0  # when it entered its state
    born: float = 0.0
    uses: int = 0
    answered: bool = False  # just now, so it needs no check
    made: bool = False
    error: Exception | None = None  # why it could not be made
    lease: LeasedExecutor | LeasedBox | None = None
    task: asyncio.Task[str | None] | None = None


@dataclass(eq=False)
class Waiter:
    """A lease that has no box yet. It stands in one of these lines.

    - the queue: no box is planned yet for these waiters;
    - the slots: a box is being closed, and the waiter's box will be made in its place;
    - `Subpool.expecting`: for each of these waiters a box of the subpool is on its way.
    """

    subpool: Subpool
    turn: asyncio.Future[PooledBox]
    priority: bool
    number: int  # in the order of arrival
    passed: float | None = None  # since when others are served out of turn, while this one is the first
    tried_again: bool = False
    line: WaitingLine | None = None

    def move(self, line: WaitingLine | None, *, first: bool = False) -> None:
        """Leave the line, if it stands in one, and stand in another one: at its end, or as the first."""
        if self.line is not None:
            self.line.remove(self)
        if line is not None:
            line.add(self, first=first)
        self.line = line
        self.subpool.register()
