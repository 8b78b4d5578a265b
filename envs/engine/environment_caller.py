"""EnvironmentCaller: calls the environment of one episode, whatever kind of `gymnasium.Env` it is."""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, NamedTuple, TypeVar

import gymnasium

from ..core import ConfigurationError, Environment, Message, StepResult, StopReason, ToolCall, ToolSchema
from ..episode import EpisodeSpec
from ..runtime.threads import run_in_thread, thread_calls
from ..runtime.user_calls import TimeLimit, being_cancelled, watch_blocking, within
from .checked_results import checked_metrics, checked_reset, checked_reward, checked_step

GRACE_SECONDS = 30.0  # after the end of an episode, for a step that still runs in a thread, and for `close`

Result = TypeVar("Result")


class Grade(NamedTuple):
    """The judgement of an episode that has ended, and the facts that the environment has collected."""

    reward: float  # added to the last turn's
    metrics: dict[str, float]
    report: dict[str, Any]


class EnvironmentCaller:
    """Calls the environment of one episode, for the engine and for hosts on other machines.

    The asynchronous form of an `Environment` is awaited. Wrappers, and environments that others wrote, have the
    synchronous form only: it runs in a thread, since it may block. Results are checked here, and nowhere else: see
    `checked_results.py` for the errors. `step_timeout` limits the seconds of `open`, and of each `reset`, `step` and
    `grade`. Call `close` at the end, also if `open` was cancelled.
    """

    name: str  # of the environment's class, without its wrappers; known once it is open
    gives_rewards: bool = True  # False: the environment judges nothing
    min_step_seconds: float | None = None  # seconds that one step may take, if the environment says so
    _core: Environment  # the environment without its wrappers; for one of others, a stand-in with the default answers

    def __init__(
        self,
        create: Callable[[EpisodeSpec], gymnasium.Env[Any, Any]],
        spec: EpisodeSpec,
        step_timeout: float | None = None,
    ) -> None:
        self._create = create
        self._spec = spec
        self._limit = TimeLimit(step_timeout or math.inf)
        self._environment: gymnasium.Env[Any, Any] | None = None  # from `open` until `close`
        self._is_closed = False
        self._closing = threading.Lock()
        self._step_threads: list[asyncio.Future[Any]] = []  # those that the present step has started

    async def open(self) -> None:
        """Make the environment in a thread, since its constructor may block.

        If this is cancelled, the thread closes the environment that it is still making.
        """
        await self.in_time("the environment was not made", run_in_thread(self._make))
        assert self._environment is not None
        core = self._environment.unwrapped
        self.name = type(core).__name__
        self._core = core if isinstance(core, Environment) else Environment()
        self.gives_rewards, self.min_step_seconds = self._core.gives_rewards, self._core.min_step_seconds

    def _make(self) -> None:
        environment = self._create(self._spec)
        with self._closing:
            if not self._is_closed:
                self._environment = environment
                return
        environment.close()

    async def reset(self, *, seed: int | None, options: dict[str, Any] | None) -> tuple[list[Message], dict[str, Any]]:
        """Begin the episode, and return its first messages and the info.

        Raises:
            ConfigurationError: `step_timeout` is shorter than a step of this environment may take.
        """
        limit, least = self._limit.seconds, self.min_step_seconds
        if least is not None and limit <= least and limit < math.inf:
            raise ConfigurationError(
                f"step_timeout={limit:g} s must be longer than the {least:g} s that one turn in {self.name} may take "
                f"(its min_step_seconds; in a CodeEnv that is six times code_timeout). Otherwise slow code would fail "
                f"the episode instead of being interrupted"
            )
        result = checked_reset(await self._call(self._environment, "reset", seed=seed, options=options), self.name)
        self._limit.seconds = max(limit, self.own_seconds)
        return result

    @property
    def own_seconds(self) -> float:
        """The seconds that a step or a grade of the episode that has begun limits itself to; 0 if it does not say."""
        return self._core.own_seconds

    def tool_schemas(self) -> list[ToolSchema]:
        """Return the tools of the episode that has begun."""
        return self._core.tool_schemas()

    def is_final(self, call: ToolCall) -> bool:
        """Return whether a tool call ends the episode if it succeeds."""
        return self._core.is_final(call)

    async def step(self, action: Message) -> StepResult:
        """Give the environment a message of the model, and return its reply."""
        thread_calls.set(self._step_threads)
        try:
            result = await self._call(self._environment, "step", action)
        finally:
            thread_calls.set(None)
        self._step_threads.clear()
        result = checked_step(result, self.name)
        self._check_gives_rewards("step", result.reward)
        return result

    def render_html(self) -> str | None:
        """Return the state of the episode as HTML, if the environment draws it."""
        return self._core.render_html()

    async def wait_for_step(self) -> None:
        """Wait for a step that was cancelled while it ran in a thread: the environment must not change while it grades.

        A TimeoutError says that it goes on for too long.
        """
        loop = asyncio.get_running_loop()
        own = [call for call in self._step_threads if call.get_loop() is loop]  # others ran inside these
        if own and self._environment is not None and self._core is self._environment.unwrapped:  # others do not grade
            late = f"{self.name}.step() was still running in its thread {GRACE_SECONDS:g} s after episode_timeout"
            await within(GRACE_SECONDS, TimeoutError(late), asyncio.wait(own))

    async def grade(self, stop: StopReason) -> Grade:
        """Ask the environment for the grade of the episode, around any wrappers. Call `wait_for_step` first."""
        given = await self._call(self._core, "grade", stop)
        reward = 0.0 if given is None else checked_reward(given, f"{self.name}.grade()")
        self._check_gives_rewards("grade", reward)
        metrics = checked_metrics(self._core.metrics, self.name, "self.metrics")
        if not isinstance(self._core.report, dict):
            raise TypeError(f"{self.name}.report must be a dict, got {type(self._core.report).__name__}")
        return Grade(reward, metrics, dict(self._core.report))

    async def close(self) -> BaseException | None:
        """Close the environment, if one was made and is open. Its error is returned, since the episode itself stands.

        Call it in a task that nobody cancels; see `finish`.
        """
        self._limit.close()
        with self._closing:
            environment, self._environment, self._is_closed = self._environment, None, True
        if environment is None:
            return None
        late = TimeoutError(f"{type(environment.unwrapped).__name__}.close() did not finish within {GRACE_SECONDS:g} s")
        try:
            await within(GRACE_SECONDS, late, _called(environment, environment, "close"))
        except GeneratorExit:
            raise
        except BaseException as error:
            if isinstance(error, asyncio.CancelledError) and being_cancelled():
                raise
            return error
        return None

    def in_time(self, late: str, call: Awaitable[Result]) -> Coroutine[Any, Any, Result]:
        """Await a call for `step_timeout` at most; `late` begins the message of the TimeoutError."""
        error = TimeoutError(f"{late} within step_timeout={self._limit.seconds:g} s")
        return self._limit.run(error, call)

    def _call(self, owner: Any, method: str, *arguments: Any, **options: Any) -> Coroutine[Any, Any, Any]:
        call = _called(self._environment, owner, method, *arguments, **options)
        return self.in_time(f"{self.name}.{method}() did not finish", call)

    def _check_gives_rewards(self, method: str, reward: float) -> None:
        if reward and not self.gives_rewards:
            raise ValueError(f"{self.name}.gives_rewards is False, but its {method} gave {reward}; set it to True")


def _called(outermost: Any, owner: Any, method: str, *arguments: Any, **options: Any) -> Awaitable[Any]:
    """Call a method of an environment, or of the core of a wrapped one: then in a thread, as its wrappers do."""
    if isinstance(outermost, Environment):
        return watch_blocking(getattr(owner, f"a{method}"), *arguments, **options)
    return run_in_thread(getattr(owner, method), *arguments, **options)
