"""How the metrics of a training develop, and from which size on that is an alarm.

Every function takes the logs of the training steps so far, oldest first, each a dict of metrics.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

Logs = Sequence[Mapping[str, Any]]

REPEATED = 3
"""A tool's error is an alarm from this many calls on."""

MANY_FLAT = 0.5
"""Share of groups with equal rewards."""

LATEST = 5
"""Number of logs that are compared at the beginning and at the end of a run, to see whether it has learned."""

MANY_TRUNCATED = 0.25
"""Share of the episodes that a limit cuts."""

SHIFT = 0.25
"""Change of a stop reason's share between the beginning and the end of a run."""

RUN_AWAY = 2.0
"""Growth of the mean length between the beginning and the end of a run."""

RISEN = 0.5
"""A run learns if its reward rose by more than this many initial standard deviations. A success rate of one half can
rise by one deviation at most."""

LARGE_GAP = 0.01
"""Mean distance of the generator's log-probabilities from the trainer's."""

LEAST_SAMPLE_SIZE = 0.5

LOGS_IN_A_ROW = 3
"""Number of latest logs that must all have a low sample size."""

MANY_REJECTED = 0.5
"""Share of the episodes that a correction removes."""

USUAL_ENDS = ("stop/final_answer", "stop/env_terminated")
"""Stop reasons whose share may change: a policy that learns to finish."""

_NUMBER = re.compile(r"\d+(\.\d+)?")


def flat_share(logs: Logs) -> float | None:
    """Return the share of groups with equal rewards in the latest logs; None if it is not logged."""
    shares = [log["frac_reward_zero_std"] for log in logs[-LATEST:] if "frac_reward_zero_std" in log]
    return sum(shares) / len(shares) if shares else None


def has_converged(logs: Logs) -> bool:
    """Return whether the reward has risen by more than `RISEN` first standard deviations.

    Equal groups are then successes.
    """
    # A fast run has learned much within its first fifth, so few logs are taken.
    before, after = ends_of(logs, "reward", most=LATEST)
    deviation, _ = ends_of(logs, "reward_std", most=LATEST)
    return after - before > RISEN * deviation


def shifts(logs: Logs) -> Iterator[tuple[str, float, float]]:
    """Yield the stop reasons whose share has changed, with the share before and after."""
    for name in sorted({name for log in logs for name in log if name.startswith("stop/")} - set(USUAL_ENDS)):
        before, after = ends_of(logs, name)
        if abs(after - before) > SHIFT:
            yield name.removeprefix("stop/"), before, after


def gap_growth(logs: Logs) -> tuple[float, float] | None:
    """Return the mean distance of the generator's log-probabilities from the trainer's before and now, if it grows."""
    before, after = ends_of(logs, "sampling/sampling_logp_difference/mean")
    return (before, after) if after > LARGE_GAP and after > 2 * before else None


def low_sample_size(logs: Logs) -> float | None:
    """Return the latest effective sample size, if it stays low."""
    sizes = [log["mismatch/ess"] for log in logs if "mismatch/ess" in log][-LOGS_IN_A_ROW:]
    return sizes[-1] if len(sizes) == LOGS_IN_A_ROW and max(sizes) < LEAST_SAMPLE_SIZE else None


def rejected_share(logs: Logs) -> float | None:
    """Return the share of the latest episodes that the correction removed, if it is most of them."""
    share = next((log["mismatch/rejected"] for log in reversed(logs) if "mismatch/rejected" in log), 0.0)
    return share if share > MANY_REJECTED else None


def length_growth(logs: Logs) -> tuple[float, float] | None:
    """Return the mean length of answers in tokens before and now, if it runs away."""
    before, after = ends_of(logs, "completions/mean_length")
    return (before, after) if before > 0 and after > RUN_AWAY * before else None


def ends_of(logs: Logs, name: str, *, most: int | None = None) -> tuple[float, float]:
    """Return the means of a metric over the first and the last fifth of the logs, or `most` logs at each end.

    They are NaN if there are fewer than five values.
    """
    values: list[Any] = [log[name] for log in logs if name in log and math.isfinite(log[name])]
    part = len(values) // 5 if most is None else min(len(values) // 5, most)
    return (sum(values[:part]) / part, sum(values[-part:]) / part) if part else (math.nan, math.nan)


def repeated(errors: Iterable[tuple[str, str, str]]) -> list[tuple[tuple[str, str, str], int]]:
    """Return the errors of tool calls (tool, outcome, message) that came again and again, and how often, at most three.

    Messages count by their first line without its numbers, so "7 is too high" and "9 is too high" are one.
    """
    counts = Counter((tool, outcome, alike(message)) for tool, outcome, message in errors)
    return [(error, count) for error, count in counts.most_common(3) if count >= REPEATED]


def alike(message: str) -> str:
    """Return the first line of an error without its numbers."""
    return _NUMBER.sub("#", message.partition("\n")[0])
