"""What a pool has counted: `PoolStatistics` is the picture that callers get, `Tally` what the pool adds to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(kw_only=True, slots=True, frozen=True)
class PoolStatistics:
    """The numbers of a pool: first those of this moment, then those since the pool was made."""

    boxes: int  # all that count against `max_boxes`, with those that are being made or closed
    idle: int  # ready for a lease
    leased: int
    waiting: int  # leases that have no box yet
    creating: int  # boxes that are being made, or wait for their turn to be
    leases: int  # leases that got a box
    created: int
    reused: int  # leases whose box had served one before
    resets: int
    retired: Mapping[str, int]  # boxes closed, by reason: "oom", "max_uses", "idle", "evicted" and so on
    unhealthy: int  # idle boxes found dead or silent before a lease could get them
    failed_creations: int
    timeouts: int  # leases that got no box in time
    wait_seconds: float  # that the leases which got a box waited, all together
    max_wait_seconds: float


@dataclass(kw_only=True, slots=True)
class Tally:
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

    def picture(self, *, boxes: int, idle: int, leased: int, waiting: int, creating: int) -> PoolStatistics:
        """The counts as they are now, which later ones do not change, with the numbers of this moment."""
        return PoolStatistics(
            boxes=boxes,
            idle=idle,
            leased=leased,
            waiting=waiting,
            creating=creating,
            leases=self.leases,
            created=self.created,
            reused=self.reused,
            resets=self.resets,
            retired=dict(self.retired),
            unhealthy=self.unhealthy,
            failed_creations=self.failed_creations,
            timeouts=self.timeouts,
            wait_seconds=self.wait_seconds,
            max_wait_seconds=self.max_wait_seconds,
        )
