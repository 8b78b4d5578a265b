"""The score of one step: what tools say with `self.reward`, `self.terminated` and `self.metrics`.

A synchronous tool that ran out of time cannot be stopped: it may set `self.reward` while the next turn is played, and
the wrong tokens would get the credit. So each step has a score of its own, which its tools find through the context
that they were started in; what comes late lands in the score of a step that is over, where nobody reads it.
"""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass, field
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


class one_step:  # read as `with one_step(environment):`
    """A step with a score of its own, which goes on from what was set since the last one, except for the reward."""

    __slots__ = ("_environment", "_previous", "_score")

    def __init__(self, environment: Any) -> None:
        self._environment = environment

    def __enter__(self) -> None:
        latest, self._previous = _latest(self._environment), _running.get()
        self._score = Score(0.0, latest.terminated, dict(latest.metrics))
        vars(self._environment)["_score"] = self._score  # for callers without the context, such as a tool's own threads
        _running.set((self._environment, self._score))

    def __exit__(self, *error: object) -> None:
        _running.set(self._previous)
        score = self._score
        # Out of reach for who comes late.
        vars(self._environment)["_score"] = Score(score.reward, score.terminated, dict(score.metrics))


def _score(environment: Any) -> Score:
    owner, score = _running.get()
    return score if owner is environment else _latest(environment)


def _latest(environment: Any) -> Score:
    return vars(environment).setdefault("_score", Score())
