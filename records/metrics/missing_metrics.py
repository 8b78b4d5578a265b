"""Metrics that some episodes of an environment have and others lack."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from .evaluation_logs import EvaluationLog

Weighted = dict[str, list[tuple[float, float]]]
"""Under each name, pairs of a value and its weight in the mean."""

EPISODES = "turns/mean"
"""A metric that every episode has that was played: its weights count them."""

OWN = "environment/"
"""Begins the names of the metrics that an environment reports itself."""

SUCCESS = OWN + "success"

logger = logging.getLogger(__name__)


class MissingMetrics:
    """Counts a missing `success` as 0, and warns of each metric that some episodes of an environment lack, once a run.

    A metric is the mean of the episodes that have it. An environment that sets `success` only when it succeeds would
    have the mean 1, however seldom that is.
    """

    def __init__(self, *, warns: bool = True) -> None:
        self._warns = warns  # in one process
        self._with_success: set[str] = set()  # environments that have reported it, by the beginning of their names
        self._named: set[str] = set()  # metrics that a warning has named

    def restore(self, history: Iterable[Mapping[str, Any]]) -> None:
        """Learn from the logs of a resumed run which environments have reported `success`."""
        for log in history:
            evaluation = EvaluationLog.of(log)
            names = log if evaluation is None else evaluation.metrics
            self._with_success |= {name.removesuffix(SUCCESS) for name in names if name.endswith(SUCCESS)}

    def count(self, values: Weighted) -> None:
        """Add the missing successes of played episodes to their metrics, whose weights are numbers of episodes."""
        for beginning in _environments(values):
            episodes = _total(values[beginning + EPISODES])
            if beginning + SUCCESS in values:
                self._with_success.add(beginning)
            for name in [name for name in values if name.startswith(beginning + OWN)]:
                self._warn(beginning, name, episodes - _total(values[name]), episodes)
            missing = episodes - _total(values.get(beginning + SUCCESS, ()))
            if missing and beginning in self._with_success:
                for name in {SUCCESS, beginning + SUCCESS}:  # one name where there is one environment
                    values.setdefault(name, []).append((0.0, missing))

    def _warn(self, beginning: str, name: str, missing: float, episodes: float) -> None:
        if not missing or not self._warns or name in self._named:
            return
        self._named.add(name)
        metric, place = name.removeprefix(beginning + OWN), beginning.removeprefix("environments/").removesuffix("/")
        effect = f"they count as 0 in {name}" if name.endswith(SUCCESS) else f"{name} is the mean of the others"
        logger.warning(
            "%g of %g episodes%s have no metric %r: %s. Set it in every episode, such as self.metrics[%r] = 0.0 at "
            "reset. This is said once for each metric.",
            *(missing, episodes, f" of the environment {place!r}" if place else "", metric, effect, metric),
        )


def _environments(values: Weighted) -> Iterator[str]:
    """Yield the beginning of the names of each environment; empty for an only one."""
    named = [name.removesuffix(EPISODES) for name in values if name.endswith("/" + EPISODES)]
    yield from named or [""] * (EPISODES in values)


def _total(pairs: Iterable[tuple[float, float]]) -> float:
    return sum(weight for _, weight in pairs)
