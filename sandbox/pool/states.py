"""The boxes of a pool and their states, which are counted as they change. No decision is made here."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from enum import IntEnum

from ..base import Executor
from .lease import LeasedExecutor
from .lines import Line


class State(IntEnum):
    """The state of a box. The numbers begin at 0 and index lists, as a pool counts by state on every event."""

    CREATING = 0
    CHECKING = 1  # asked for a sign of life
    RESETTING = 2  # up to here a box will soon be ready
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


@dataclass(eq=False)
class Subpool:
    """The boxes of one template, which are interchangeable, and the waiters for whom one of them is on its way."""

    template: Executor
    reused: Subpool | None = None  # of fresh boxes: the subpool that a box may join after its first lease
    boxes: list[dict[Box, None]] = field(default_factory=lambda: [{} for _ in State])  # by state
    coming: int = 0  # boxes that will soon be ready
    living: int = 0  # boxes that are not being closed
    expecting: Line = field(default_factory=Line)
    waiting: int = 0  # in any line
    failures: int = 0  # boxes that could not be made, in a row

    @property
    def spare(self) -> int:
        """Boxes that are idle or coming, and that no waiter expects."""
        return self.coming + len(self.boxes[State.IDLE]) - len(self.expecting)

    def add(self, box: Box) -> None:
        self.boxes[box.state][box] = None
        self.coming += box.state <= State.RESETTING
        self.living += box.state < State.CLOSING

    def remove(self, box: Box) -> None:
        del self.boxes[box.state][box]
        self.coming -= box.state <= State.RESETTING
        self.living -= box.state < State.CLOSING


@dataclass(eq=False)
class Box:
    """One box of a pool. Only `Boxes` changes its state."""

    subpool: Subpool
    executor: Executor
    state: State = State.CREATING
    since: float = 0.0  # when it entered its state
    born: float = 0.0
    uses: int = 0
    answered: bool = False  # just now, so it needs no check
    made: bool = False
    error: Exception | None = None  # why it could not be made
    lease: LeasedExecutor | None = None
    task: asyncio.Task[str | None] | None = None
