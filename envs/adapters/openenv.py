"""OpenEnvEnvironment: the environments of OpenEnv's servers, by the official client."""

from __future__ import annotations

import asyncio
import functools
import importlib
import inspect
import json
import math
import re
from collections.abc import Callable, Mapping
from typing import Any

from ...sandbox.cancellation import finish
from ..core import BrokenEnvironmentError, Message
from ..extras import needs_extra
from ..runtime.threads import run_in_thread
from ..tools.tool import Tool, collect_tools
from .json_schema import described_tool
from .seeded import SeededEnv

FULL = "CAPACITY_REACHED"
MODELS_FAULT = "VALIDATION_ERROR"  # the action does not fit the server's schema
FULL_SECONDS = 0.2  # between two questions for a free session


class OpenEnvServerError(BrokenEnvironmentError):
    """An OpenEnv server is gone, or its environment raised an exception: the episode fails and has no reward."""


class OpenEnvEnvironment(SeededEnv):
    """An environment of an OpenEnv server, each episode in a session of its own.

        environment = OpenEnvEnvironment("http://localhost:8000")
        environment = OpenEnvEnvironment(lambda: GenericEnvClient.from_docker_image("echo-env:latest"))

    If the server lists tools (MCP), the model has these. Otherwise it has one tool, `act`, with the fields of the
    server's action. Rewards count for the turn that earned them, and `done` is a termination: the protocol knows no
    truncation. A row may have `prompt` (text before the first observation), `seed`, and `options` for `reset`.
    """

    _client: Any = None
    _remote: tuple[Tool, ...] = ()
    _first: str = ""

    def __init__(
        self,
        server: str | Callable[[], Any],
        *,
        describe: Callable[[Mapping[str, Any]], str] | None = None,
        wait_timeout: float = 300.0,
        message_timeout: float = 60.0,
        **options: Any,
    ) -> None:
        """Make the environment; `reset` connects.

        Args:
            server: The URL of a server, or a function that returns an OpenEnv client with dicts as actions
                (`GenericEnvClient`); it is called for each episode, may be `async`, and its client is closed.
            describe: The text of an observation. By default its only text, or else its JSON.
            wait_timeout: Seconds to wait for a free session while the server says that it has none.
            message_timeout: Seconds for one answer of the server, when a URL is given.
            options: The options of `ToolEnv`.

        Raises:
            MissingExtraError: OpenEnv is not installed.
        """
        with needs_extra("openenv", "OpenEnvEnvironment"):
            self._generic = importlib.import_module("openenv.core").GenericEnvClient
        self._server = server
        self._describe = describe or default_text
        self._wait_timeout = wait_timeout
        self._message_timeout = message_timeout
        super().__init__(**options)

    async def _prepare(self, task: Mapping[str, Any]) -> None:
        self._opened.push_async_callback(self._disconnect)
        arguments: dict[str, Any] = dict(task.get("options") or {})
        seed = self.seed_of(task)
        if seed is not None:
            arguments["seed"] = seed
        result = await self._connect(arguments)
        self._first = self._describe(result.observation)
        self._remote = tuple(await self._find_tools())

    def reset_task(self, task: Mapping[str, Any]) -> list[Message]:
        parts = [text for text in (task.get("prompt", ""), self._first) if text]
        if not parts:
            raise ValueError("the server's first observation has no text; give the rows a `prompt`")
        return [{"role": "user", "content": "\n\n".join(parts)}]

    def _all_tools(self) -> dict[str, Tool]:
        return collect_tools([*super()._all_tools().values(), *self._remote], type(self).__name__)

    async def _connect(self, arguments: dict[str, Any]) -> Any:
        """Begin an episode in a session; waits while the server has none that is free."""
        give_up = asyncio.get_running_loop().time() + self._wait_timeout
        while True:
            await finish(self._begin_session())  # a container that is starting would be lost by a cancellation
            try:
                return await self._client.reset(**arguments)
            except Exception as error:
                await self._disconnect()
                if _code(error) != FULL or asyncio.get_running_loop().time() > give_up:
                    raise OpenEnvServerError(f"the OpenEnv server did not reset: {error}") from error
            await asyncio.sleep(FULL_SECONDS)

    async def _begin_session(self) -> None:
        if isinstance(self._server, str):
            self._client = self._generic(base_url=self._server, message_timeout_s=self._message_timeout)
        else:
            self._client = await run_in_thread(_started, self._server)

    async def _disconnect(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await finish(_closed(client))

    async def _find_tools(self) -> list[Tool]:
        try:
            listed = (await self._client.step({"type": "list_tools"})).observation["tools"]
        except (RuntimeError, KeyError):  # its actions are its own
            return [await self._own_action()]
        return [
            _tool(tool["name"], tool["description"], tool["input_schema"], functools.partial(self._call, tool["name"]))
            for tool in listed
        ]

    async def _own_action(self) -> Tool:
        import aiohttp

        url = re.sub("^ws", "http", self._client.base_url)
        async with aiohttp.ClientSession() as session, session.get(f"{url}/schema") as response:
            schema = (await response.json())["action"]
        schema["properties"].pop("metadata", None)  # the client's own notes
        return _tool("act", schema.get("description") or "Take one step.", schema, self._act)

    async def _act(self, arguments: dict[str, Any]) -> str:
        return self._describe((await self._ask(arguments)).observation)

    async def _call(self, name: str, arguments: dict[str, Any]) -> Any:
        result = await self._ask({"type": "call_tool", "tool_name": name, "arguments": arguments})
        observation = result.observation
        if observation.get("error"):
            raise ValueError(observation["error"]["message"])
        return _plain(observation.get("result"))

    async def _ask(self, action: dict[str, Any]) -> Any:
        if self.terminated:
            raise ValueError("the episode is over")
        try:
            result = await self._client.step(action)
        except Exception as error:
            if _code(error) == MODELS_FAULT:
                raise ValueError(str(error)) from error
            raise OpenEnvServerError(f"the OpenEnv server failed: {type(error).__name__}: {error}") from error
        self.reward += float(result.reward or 0.0)
        self.terminated = result.done
        return result


def default_text(observation: Mapping[str, Any]) -> str:
    """Return the only text of an observation, or its JSON; the empty string if there is only metadata."""
    told = {name: value for name, value in observation.items() if name != "metadata" and value is not None}
    texts = [value for value in told.values() if isinstance(value, str)]
    if not told:
        return ""
    return texts[0] if len(told) == len(texts) == 1 else json.dumps(told)


# The client has a time limit, and a step that is cut off would lose the session.
_tool = functools.partial(described_tool, timeout=math.inf)


def _plain(result: Any) -> Any:
    """Return the value in a result of FastMCP, or the result itself."""
    if not isinstance(result, dict) or "content" not in result:
        return result
    text = "\n".join(part.get("text", "") for part in result["content"])
    if result.get("is_error"):
        raise ValueError(text)
    return text if result.get("data") is None else result["data"]


def _code(error: Exception) -> str:
    """Return the code of an error of the server, which the client writes into the message."""
    found = re.search(r"\(code: (\w+)\)$", str(error))
    return found[1] if found else ""


# The client blocks the event loop while it starts or stops a container, so both are done in a thread, in a loop of its
# own. Its connection belongs to the loop in which it is used.


def _started(make: Callable[[], Any]) -> Any:
    made = make()
    return asyncio.run(_resolved(made)) if inspect.isawaitable(made) else made


async def _resolved(made: Any) -> Any:
    client = await made
    await client.disconnect()
    return client


async def _closed(client: Any) -> None:
    await client.disconnect()
    await run_in_thread(_close, client)


def _close(client: Any) -> None:
    async def close() -> None:
        await client.close()

    asyncio.run(close())
