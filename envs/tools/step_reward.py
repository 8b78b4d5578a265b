"""The reward of one step: `self.reward`, `self.terminated` and `self.truncated` of a `ToolEnv`.

A synchronous tool that runs out of time cannot be stopped: its thread may set `self.reward` during a later turn, and
the wrong tokens would get the credit. So a tool finds the step that it was started in through its context, and a reward
that it sets after the end of that step is ignored.
"""

from __future__ import annotations

import difflib
import warnings
from collections.abc import Coroutine
from contextvars import ContextVar
from functools import cache
from typing import Any, TypeVar

from ..core import ConfigurationError, Environment
from ..rewards import number_of

Result = TypeVar("Result")

# The environment whose step is running in this context, and the step. Threads get a copy of it from `run_in_thread`.
_running: ContextVar[tuple[Any, object]] = ContextVar("gymnast_running_step", default=(None, None))


STEP = ("reward", "terminated", "truncated")


@cache  # attributes are set in every step
def _nearly(name: str) -> str | None:
    near = difflib.get_close_matches(name, STEP, n=1, cutoff=0.9)  # rewards, terminate, truncate
    return near[0] if near and not name.startswith("_") else None


class StepReward(Environment):
    """An environment with `reward`, `terminated` and `truncated` of a step, which a tool that is late cannot set."""

    reward: float = 0.0  # of this step; every step starts at 0
    terminated: bool = False  # the environment ends the episode after this step
    truncated: bool = False  # a limit of the environment ends the episode after this step
    current_step: object | None = None  # the identity of the step that is running; None between steps

    def __setattr__(self, name: str, value: Any) -> None:
        """Set an attribute, and warn of a number whose name is nearly `reward`, `terminated` or `truncated`.

        Raises:
            ConfigurationError: it is a `reward` that is no number, or outside a step; or `metrics` that are no dict.
        """
        if name in STEP:
            value = self._checked_reward(value) if name == "reward" else bool(value)
            environment, step = _running.get()
            if environment is self and step is not self.current_step:
                return  # too late. A thread that a tool itself started is of no step, so it is not late
            if name == "reward" and self.current_step is None:
                raise ConfigurationError(
                    f"{type(self).__name__}: self.reward is the reward of a step, so set it in a tool or in reply(); "
                    f"grade() returns the reward that it gives"
                )
        elif name in ("metrics", "report") and not isinstance(value, dict):
            kind = type(value).__name__
            raise ConfigurationError(f"{type(self).__name__}: self.{name} must be a dict, got {kind}: {value!r}")
        elif isinstance(value, (int, float)) and (meant := _nearly(name)):
            warnings.warn(
                f"{type(self).__name__}: self.{name} = {value!r} has no effect: did you mean self.{meant}? Give an "
                f"attribute of yours a name that is less like it",
                stacklevel=2,
            )
        super().__setattr__(name, value)

    def _checked_reward(self, value: Any) -> float:
        try:
            return number_of(value)
        except TypeError:
            name, kind = type(self).__name__, type(value).__name__
            raise ConfigurationError(f"{name}: self.reward must be a number, got {kind}: {value!r}") from None

    def _forget_step(self) -> None:
        vars(self).update(reward=0.0, terminated=False, truncated=False)

    async def _one_step(self, call: Coroutine[Any, Any, Result]) -> Result:
        """Await a call as one step, which starts with the reward 0."""
        previous = _running.get()
        self.current_step = object()
        _running.set((self, self.current_step))
        self.reward = 0.0
        try:
            return await call
        finally:
            _running.set(previous)
            self.current_step = None
