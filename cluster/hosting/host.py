"""EnvironmentHost: holds the real environments of many episodes, and answers the calls of `HostLink`."""

from __future__ import annotations

import asyncio
from typing import Any

from ...envs.core import Message, StopReason, ToolCall
from ...envs.engine.environment_caller import EnvironmentCaller, Grade
from ...envs.episode import EpisodeSpec, Task
from ...envs.registry import ENVIRONMENT_COLUMN, EnvironmentSource
from ...sandbox.cancellation import finish
from .caught_errors import CaughtError
from .link import Opened, ResetReply, StepReply


class EnvironmentHost:
    """Holds environments, each under the number of its episode.

    A call of an episode cancels the episode's previous call, if that is still running, and waits for its end: the
    caller has abandoned it. So a transport needs no message for cancellation.
    """

    def __init__(self, source: EnvironmentSource) -> None:
        self._source = source
        self._hosted: dict[int, EnvironmentCaller] = {}
        self._calls: dict[int, asyncio.Task[Any]] = {}

    async def call(self, method: str, episode: int, *arguments: Any) -> Any:
        """Return the result of a method, or a `CaughtError` if it raised an exception."""
        task = asyncio.current_task()
        assert task is not None
        previous, self._calls[episode] = self._calls.get(episode), task
        try:
            if previous is not None:
                previous.cancel()
                await finish(asyncio.wait([previous]))
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
        environment = self._hosted[episode] = EnvironmentCaller(self._source.create, spec)
        await environment.open()
        return Opened(environment.name, environment.gives_rewards, environment.min_step_seconds)

    async def _reset(
        self, episode: int, name: str | None, seed: int | None, options: dict[str, Any] | None
    ) -> ResetReply:
        if episode not in self._hosted:
            await self._open(episode, name)
        environment = self._hosted[episode]
        messages, info = await environment.reset(seed=seed, options=options)
        tools = environment.tool_schemas()
        calls: list[ToolCall] = [{"function": {"name": tool["function"]["name"], "arguments": {}}} for tool in tools]
        final = [call["function"]["name"] for call in calls if environment.is_final(call)]
        return ResetReply(messages, info, tools, final, environment.own_seconds)

    async def _step(self, episode: int, action: Message) -> StepReply:
        environment = self._hosted[episode]
        return StepReply(await environment.step(action), environment.render_html())

    async def _grade(self, episode: int, stop: str) -> Grade:
        environment = self._hosted[episode]
        await environment.wait_for_step()
        return await environment.grade(StopReason(stop))

    async def _close(self, episode: int) -> None:
        environment = self._hosted.pop(episode, None)
        error = None if environment is None else await finish(environment.close())
        if error is not None:
            raise error
