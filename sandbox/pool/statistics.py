"""The numbers of a pool."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


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
