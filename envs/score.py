"""The score of one step: what tools say with `self.reward`, `self.terminated` and `self.metrics`.

A synchronous tool that ran out of time cannot be stopped: it may set `self.reward` while the next turn is played, and
the wrong tokens would get the credit. So each step has a score of its own, which its tools find through the context
that they were started in; what comes late lands in the score of a step that is over, where nobody reads it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import Any, Generic, TypeVar

Value = TypeVar("Value")


@dataclass(slots=True)
class Score:
    """What is said about one step; the metrics are those of the episode so far."""

    reward: float = 0.0
    terminated: bool = False
    metrics: dict[str, float] = field(default_factory=dict)


_running: ContextVar[tuple[Any, Score]] = ContextVar("gymnast_running_step", default=(None, Score()))


class PerStep(Generic[Value]):
    """An attribute that lives in the score of the step that the caller belongs to; outside any, in the latest one."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, environment: Any, owner: type | None = None) -> Value:
        return self if environment is None else getattr(_score(environment), self._name)  # type: ignore[return-value]

    def __set__(self, environment: Any, value: Value) -> None:
        setattr(_score(environment), self._name, value)


@contextmanager
def one_step(environment: Any) -> Iterator[None]:
    """A step with a score of its own, which goes on from what was set since the last one, except for the reward."""
    latest, previous = _latest(environment), _running.get()
    score = replace(latest, reward=0.0, metrics=dict(latest.metrics))
    vars(environment)["_score"] = score  # for callers without the context, such as threads of a tool's own
    _running.set((environment, score))
    try:
        yield
    finally:
        _running.set(previous)
        vars(environment)["_score"] = replace(score, metrics=dict(score.metrics))  # out of reach for who comes late


def _score(environment: Any) -> Score:
    owner, score = _running.get()
    return score if owner is environment else _latest(environment)


def _latest(environment: Any) -> Score:
    return vars(environment).setdefault("_score", Score())
