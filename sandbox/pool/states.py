"""The boxes of a pool and their states. No decision is made here."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from enum import IntEnum

from ..base import Executor
from .lease import LeasedExecutor
from .lines import Line


class State(IntEnum):
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


def by_state() -> list[dict[Box, None]]:
    """An empty table of boxes: for each state, the boxes in the order in which they entered it."""
    return [{} for _ in State]


@dataclass(eq=False)
class Subpool:
    """The boxes of one template, which are interchangeable, and the waiters for whom one of them is on its way."""

    template: Executor
    reused: Subpool | None = None  # of fresh boxes: the subpool that a box may join after its first lease
    boxes: list[dict[Box, None]] = field(default_factory=by_state)
    expecting: Line = field(default_factory=Line)
    waiting: int = 0  # in any line
    failures: int = 0  # boxes that could not be made, in a row

    @property
    def coming(self) -> int:
        """Boxes that will soon be ready."""
        return len(self.boxes[State.CREATING]) + len(self.boxes[State.CHECKING]) + len(self.boxes[State.RESETTING])

    @property
    def spare(self) -> int:
        """Boxes that are idle or coming, and that no waiter expects."""
        return self.coming + len(self.boxes[State.IDLE]) - len(self.expecting)

    @property
    def in_use(self) -> int:
        """Boxes that are leased or expected."""
        return len(self.boxes[State.LEASED]) + len(self.expecting)


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
