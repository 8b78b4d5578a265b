"""TapedEnvironment: an environment whose calls a tape may record or answer."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial, wraps
from typing import Any

from ..core import StopReason
from ..runtime.threads import run_in_loop
from ..runtime.user_calls import watch_blocking
from ..tools.runner import Call, CallResult
from ..tools.step_reward import StepReward
from .tape import Tape


class TapedEnvironment(StepReward):
    """An environment that has a tape while it records or replays: for its hooks, and as the `Runner` of its tools."""

    grade_in_replay: bool = False  # True: `grade` runs again in a replay, as a tool marked `replay="run"`

    _tape: Tape | None = None
    _is_grading: bool = False

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "agrade" in vars(cls):  # the class writes a form of it
            _let_tape_answer(cls)

    async def _by_tape(self, call: Call, hook: Callable[[], Awaitable[Any]]) -> Any:
        """Return the result of a hook, which the tape records or answers."""
        assert self._tape is not None

        async def make() -> CallResult:
            return CallResult("ok", await hook())

        return (await self._tape.run(call, make)).content

    async def _grade_by_tape(self, stop: StopReason, hook: Callable[[], Awaitable[Any]]) -> float | None:
        self._is_grading = True
        try:
            call = Call(
                kind="grade",
                name="grade",
                arguments={"stop": stop.value},
                function=type(self).agrade,
                runs_in_replay=self.grade_in_replay,
            )
            return await self._by_tape(call, hook)
        finally:
            self._is_grading = False


def _let_tape_answer(cls: type[TapedEnvironment]) -> None:
    """Let both forms of `grade` that a class writes ask the tape, except below a form that has asked (`super()`)."""
    judge, blocking = cls.agrade, cls.grade

    @wraps(judge)
    def agrade(self: TapedEnvironment, stop: StopReason) -> Awaitable[float | None]:
        hook = partial(watch_blocking, judge, self, stop)
        return hook() if self._tape is None or self._is_grading else self._grade_by_tape(stop, hook)

    @wraps(blocking)
    def grade(self: TapedEnvironment, stop: StopReason) -> float | None:
        if self._tape is None or self._is_grading:
            return blocking(self, stop)
        return run_in_loop(self._grade_by_tape(stop, partial(watch_blocking, judge, self, stop)))

    cls.agrade, cls.grade = agrade, grade  # type: ignore[method-assign, assignment]
