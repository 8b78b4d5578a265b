"""The reward of one step: `self.reward`, `self.terminated` and `self.truncated` of a `ToolEnv`.

A synchronous tool that runs out of time cannot be stopped: its thread may set `self.reward` during a later turn, and
the wrong tokens would get the credit. So a tool finds the step that it was started in through its context, and a reward
that it sets after the end of that step is ignored.
"""

from __future__ import annotations

from collections.abc import Coroutine
from contextvars import ContextVar
from typing import Any, TypeVar

from ..core import ConfigurationError, Environment
from ..rewards import number_of

Result = TypeVar("Result")

# The environment whose step is running in this context, and the step. Threads get a copy of it from `run_in_thread`.
_running: ContextVar[tuple[Any, object]] = ContextVar("gymnast_running_step", default=(None, None))


class StepReward(Environment):
    """An environment with `reward`, `terminated` and `truncated` of a step, which a tool that is late cannot set."""

    _step: object | None = None  # the step that is running
    _reward: float = 0.0
    _terminated: bool = False
    _truncated: bool = False

    @property
    def reward(self) -> float:
        """The reward of this step; every step starts at 0.

        Raises:
            ConfigurationError: it is set to something else than a number, or outside a step.
        """
        return self._reward

    @reward.setter
    def reward(self, value: float) -> None:
        name = type(self).__name__
        try:
            number = number_of(value)
        except TypeError:
            kind = type(value).__name__
            raise ConfigurationError(f"{name}: self.reward must be a number, got {kind}: {value!r}") from None
        if self._is_late():
            return
        if self._step is None:
            raise ConfigurationError(
                f"{name}: self.reward is the reward of a step, so set it in a tool or in reply(); grade() returns the "
                f"reward that it gives"
            )
        self._reward = number

    @property
    def terminated(self) -> bool:
        """Whether the environment ends the episode after this step."""
        return self._terminated

    @terminated.setter
    def terminated(self, value: bool) -> None:
        if not self._is_late():
            self._terminated = bool(value)

    @property
    def truncated(self) -> bool:
        """Whether a limit of the environment ends the episode after this step."""
        return self._truncated

    @truncated.setter
    def truncated(self, value: bool) -> None:
        if not self._is_late():
            self._truncated = bool(value)

    @property
    def current_step(self) -> object | None:
        """The identity of the step that is running; None between steps."""
        return self._step

    def _is_late(self) -> bool:
        """Return whether the caller is of a step that is over. A thread that a tool itself started is of no step."""
        environment, step = _running.get()
        return environment is self and step is not self._step

    async def _one_step(self, call: Coroutine[Any, Any, Result]) -> Result:
        """Await a call as one step, which starts with the reward 0."""
        previous = _running.get()
        self._step, self._reward = object(), 0.0
        _running.set((self, self._step))
        try:
            return await call
        finally:
            _running.set(previous)
            self._step = None
