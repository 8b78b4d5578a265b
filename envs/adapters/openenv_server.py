"""Our environments as an OpenEnv server: `openenv_app`."""

from __future__ import annotations

import importlib
import threading
from collections.abc import Callable, Sequence
from typing import Any

from ..core import ToolSchema
from ..engine.checked_results import ending
from ..extras import needs_extra
from ..policy import tool_call
from ..tool_env.tool_env import ToolEnv


def openenv_app(environment: ToolEnv, *, max_sessions: int = 64) -> Any:
    """Return an OpenEnv server (a FastAPI application) of an environment; run it with `uvicorn.run(openenv_app(...))`.

    Each session has a copy of the environment. `reset(seed=..., task=row)` begins an episode; its observation holds
    `messages`. The tools are listed and called as OpenEnv's MCP tools: actions `list_tools` and `call_tool`. When the
    episode ends, `done` is true, the reward includes the grade, and `metadata["stop_reason"]` is the reason. The
    protocol has no message of the model, so `reply` is never asked, and an episode that the client leaves is not
    graded.

    Args:
        environment: The prototype.
        max_sessions: Sessions at the same time; the server refuses more.

    Raises:
        MissingExtraError: OpenEnv is not installed.
        TypeError: it is not a `ToolEnv`.
    """
    if not isinstance(environment, ToolEnv):
        raise TypeError(f"openenv_app serves a ToolEnv, whose tools OpenEnv can list, got {type(environment).__name__}")
    with needs_extra("openenv", "openenv_app"):
        http_server = importlib.import_module("openenv.core.env_server.http_server")
        types = importlib.import_module("openenv.core.env_server.mcp_types")
    return http_server.create_app(
        _session_class(environment),
        types.CallToolAction,
        types.CallToolObservation,
        env_name=type(environment).__name__,
        max_concurrent_envs=max_sessions,
    )


def _session_class(prototype: ToolEnv) -> Callable[[], Any]:
    """Return the class of the sessions, made here since OpenEnv is imported lazily."""
    interfaces = importlib.import_module("openenv.core.env_server.interfaces")
    types = importlib.import_module("openenv.core.env_server.types")
    mcp = importlib.import_module("openenv.core.env_server.mcp_types")

    class FirstObservation(types.Observation):
        messages: list[dict[str, Any]]

    class Session(interfaces.Environment):
        SUPPORTS_CONCURRENT_SESSIONS = True

        def __init__(self) -> None:
            super().__init__()
            self._environment = prototype.clone()
            self._lock = threading.Lock()  # OpenEnv calls from several threads
            self._state = types.State(episode_id=None, step_count=0)
            self._over = True

        def reset(
            self, seed: int | None = None, episode_id: str | None = None, task: dict[str, Any] | None = None
        ) -> Any:
            with self._lock:
                options = None if task is None else {"task": task}
                messages, _ = self._environment.reset(seed=seed, options=options)
                self._state, self._over = types.State(episode_id=episode_id, step_count=0), False
            return FirstObservation(messages=[dict(message) for message in messages])

        def step(self, action: Any, timeout_s: float | None = None, **_: Any) -> Any:
            if isinstance(action, mcp.ListToolsAction):
                return mcp.ListToolsObservation(tools=_listed(mcp, self._environment.tool_schemas()))
            with self._lock:
                return self._call(action.tool_name, action.arguments)

        def _call(self, name: str, arguments: dict[str, Any]) -> Any:
            if self._over:
                raise RuntimeError("no episode is going on: call reset first")
            self._state.step_count += 1
            result = self._environment.step(tool_call(name, **arguments))
            reward, stop = result.reward, ending(result, type(prototype).__name__)
            if stop is not None:
                self._over = True
                reward += float(self._environment.grade(stop) or 0.0)
            return mcp.CallToolObservation(
                tool_name=name,
                result=result.messages[0].get("content") if result.messages else "",
                reward=reward,
                done=self._over,
                metadata={} if stop is None else {"stop_reason": stop.value},
            )

        @property
        def state(self) -> Any:
            return self._state

        def close(self) -> None:
            self._environment.close()

    return Session


def _listed(mcp: Any, schemas: Sequence[ToolSchema]) -> list[Any]:
    functions = [schema["function"] for schema in schemas]
    return [
        mcp.Tool(name=function["name"], description=function["description"], input_schema=function["parameters"])
        for function in functions
    ]
