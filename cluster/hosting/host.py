"""EnvironmentHost: holds the real environments of many episodes, and answers the calls of `HostLink`."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any

import gymnasium

from ...envs.core import Environment, StopReason, Task, ToolCall
from ...envs.engine.opening_and_closing import GRACE_SECONDS, open_environment, wait_for_threads
from ...envs.episode import EpisodeSpec
from ...envs.registry import ENVIRONMENT_COLUMN, EnvironmentSource
from ...envs.runtime.threads import run_in_thread, thread_calls
from ...envs.runtime.user_calls import watch_blocking, within
from ...sandbox.cancellation import finish
from .caught_errors import CaughtError
from .link import GradeReply, Opened, ResetReply, StepReply


class EnvironmentHost:
    """Holds environments, each under the number of its episode.

    A call of an episode cancels the episode's previous call, if that is still running, and waits for its end: the
    caller has abandoned it. So a transport needs no message for cancellation.
    """

    def __init__(self, source: EnvironmentSource) -> None:
        self._source = source
        self._hosted: dict[int, _Hosted] = {}
        self._calls: dict[int, asyncio.Task[Any]] = {}

    async def call(self, method: str, episode: int, *arguments: Any) -> Any:
        """The result of a method, or a `CaughtError` if it raised an exception."""
        task = asyncio.current_task()
        assert task is not None
        previous, self._calls[episode] = self._calls.get(episode), task
        try:
            if previous is not None:
                previous.cancel()
                await finish(_ended(previous))
            return await getattr(self, f"_{method}")(episode, *arguments)
        except BaseException as error:  # SystemExit, too: user code must not end the host
            return CaughtError.of(error)
        finally:
            if self._calls.get(episode) is task:
                del self._calls[episode]

    async def close(self) -> None:
        """Close all environments."""
        episodes = {*self._hosted, *self._calls}
        await asyncio.gather(*(asyncio.create_task(self.call("close", episode)) for episode in episodes))

    async def _open(self, episode: int, name: str | None) -> Opened:
        row = {} if name is None else {ENVIRONMENT_COLUMN: name}
        spec = EpisodeSpec(task=Task(id=str(episode), row=row), group=str(episode))
        environment = await open_environment(self._source.create, spec)
        hosted = self._hosted[episode] = _Hosted(environment)
        core = hosted.core
        if not isinstance(core, Environment):
            return Opened(type(core).__name__, True, None)
        return Opened(type(core).__name__, core.gives_rewards, core.min_step_seconds)

    async def _reset(self, episode: int, seed: int | None, options: dict[str, Any] | None) -> ResetReply:
        hosted = self._hosted[episode]
        result = await hosted.call("reset", seed=seed, options=options)
        core = hosted.core
        if not isinstance(core, Environment):
            return ResetReply(result, [], [])
        tools = core.tool_schemas()
        names: list[str] = [schema["function"]["name"] for schema in tools]
        calls: list[ToolCall] = [{"function": {"name": name, "arguments": {}}} for name in names]
        return ResetReply(result, tools, [name for name, call in zip(names, calls, strict=True) if core.is_final(call)])

    async def _step(self, episode: int, action: Any) -> StepReply:
        hosted = self._hosted[episode]
        thread_calls.set(hosted.step_threads)
        try:
            result = await hosted.call("step", action)
        finally:
            thread_calls.set(None)
        hosted.step_threads.clear()
        return StepReply(result, hosted.core.render_html() if isinstance(hosted.core, Environment) else None)

    async def _grade(self, episode: int, stop: str) -> GradeReply:
        hosted = self._hosted[episode]
        core = hosted.core
        if not isinstance(core, Environment):
            return GradeReply(None, {}, {})
        if hosted.step_threads:
            await wait_for_threads(hosted.step_threads, type(core).__name__)
        wrapped = hosted.environment is not core  # wrappers call the synchronous form
        reason = StopReason(stop)
        reward = await (run_in_thread(core.grade, reason) if wrapped else watch_blocking(core.agrade, reason))
        return GradeReply(reward, core.metrics, core.report)

    async def _close(self, episode: int) -> None:
        hosted = self._hosted.pop(episode, None)
        if hosted is not None:
            late = TimeoutError(f"{type(hosted.core).__name__}.close() did not finish within {GRACE_SECONDS:g} s")
            error = await finish(_error_of(within(GRACE_SECONDS, late, hosted.call("close"))))
            if error is not None:
                raise error


class _Hosted:
    """An environment, and the threads that its present step has started."""

    def __init__(self, environment: gymnasium.Env[Any, Any]) -> None:
        self.environment = environment
        self.core: gymnasium.Env[Any, Any] = environment.unwrapped
        self.step_threads: list[asyncio.Future[Any]] = []

    def call(self, method: str, *arguments: Any, **options: Any) -> Awaitable[Any]:
        """Call the asynchronous form, or the synchronous one in a thread for wrappers, as the engine does."""
        if isinstance(self.environment, Environment):
            return watch_blocking(getattr(self.environment, f"a{method}"), *arguments, **options)
        return run_in_thread(getattr(self.environment, method), *arguments, **options)


async def _error_of(call: Awaitable[Any]) -> BaseException | None:
    """The error as a value: a SystemExit that a task of its own raises would end the event loop."""
    try:
        await call
    except BaseException as error:
        return error
    return None


async def _ended(call: asyncio.Task[Any]) -> None:
    await asyncio.wait([call])
