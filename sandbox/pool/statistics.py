"""The numbers of a pool: callers get a `PoolStatistics`, the pool adds to `Counters`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any


@dataclass(kw_only=True, slots=True, frozen=True)
class PoolStatistics:
    """The numbers of a pool: first those of this moment, then the counts since the pool was made."""

    boxes: int  # all that count against `max_boxes`, with those that are being made or closed
    idle: int  # ready for a lease
    leased: int
    waiting: int  # leases that have no box yet
    creating: int  # boxes that are being made, or wait for their turn
    leases: int  # leases that got a box
    created: int
    reused: int  # leases whose box had served one before
    resets: int
    retired: Mapping[str, int]  # boxes closed, by reason: "oom", "max_uses", "idle", "evicted" and so on
    unhealthy: int  # idle boxes found dead or silent before a lease could get them
    failed_creations: int
    timeouts: int  # leases that got no box in time
    wait_seconds: float  # the sum over the leases that got a box
    max_wait_seconds: float


@dataclass(kw_only=True, slots=True)
class Counters:
    """Counts since a pool was made; they go on when the pool is closed and opened again."""

    leases: int = 0
    created: int = 0
    reused: int = 0
    resets: int = 0
    retired: Counter[str] = field(default_factory=Counter)
    unhealthy: int = 0
    failed_creations: int = 0
    timeouts: int = 0
    wait_seconds: float = 0.0
    max_wait_seconds: float = 0.0

    def granted(self, waited: float, *, again: bool) -> None:
        """Count a lease that got a box after `waited` seconds."""
        self.leases += 1
        self.reused += again
        self.wait_seconds += waited
        self.max_wait_seconds = max(self.max_wait_seconds, waited)

    def snapshot(self, *, boxes: int, idle: int, leased: int, waiting: int, creating: int) -> PoolStatistics:
        """Return a copy of the counts, together with the numbers of this moment."""
        counts: dict[str, Any] = {field.name: getattr(self, field.name) for field in fields(self)}
        counts["retired"] = dict(self.retired)
        return PoolStatistics(boxes=boxes, idle=idle, leased=leased, waiting=waiting, creating=creating, **counts)
