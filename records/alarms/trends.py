"""How the metrics of a training develop.

Every function takes the logs of the training steps so far, oldest first, each a dict of metrics.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

Logs = Sequence[Mapping[str, Any]]

LATEST = 5
"""Number of logs that are compared at the beginning and at the end of a run, to see whether it has learned."""

RISEN = 0.5
"""A run learns if its reward rose by more than this many initial standard deviations. A success rate of one half can
rise by one deviation at most."""


def latest(logs: Logs, name: str, count: int) -> list[float]:
    """Return the values of a metric in the latest logs that have it."""
    return [log[name] for log in logs if name in log][-count:]


def has_converged(logs: Logs) -> bool:
    """Return whether the reward has risen by more than `RISEN` initial standard deviations: equal groups succeed."""
    # A fast run has learned much within its first fifth, so few logs are taken.
    before, after = ends_of(logs, "reward", most=LATEST)
    deviation, _ = ends_of(logs, "reward_std", most=LATEST)
    return after - before > RISEN * deviation


def ends_of(logs: Logs, name: str, *, most: int | None = None) -> tuple[float, float]:
    """Return the means of a metric over the first and the last fifth of the logs, or `most` logs at each end.

    They are NaN if there are fewer than five values.
    """
    values: list[Any] = [log[name] for log in logs if name in log and math.isfinite(log[name])]
    part = len(values) // 5 if most is None else min(len(values) // 5, most)
    return (sum(values[:part]) / part, sum(values[-part:]) / part) if part else (math.nan, math.nan)
