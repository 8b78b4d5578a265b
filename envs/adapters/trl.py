"""Our environments in TRL: `to_trl` makes what its `environment_factory=` takes."""

from __future__ import annotations

import inspect
import json
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, get_type_hints

from ..core import BrokenEnvironmentError, Message, StopReason
from ..engine.checked_results import ending
from ..policy import tool_call
from ..tool_env.tool_env import ToolEnv
from ..tools.tool import Tool

OVER = "The episode is over."


def to_trl(environment: ToolEnv) -> type:
    """Return a class for `environment_factory=` of TRL's trainers: its methods are the environment's tools.

        trainer = trl.GRPOTrainer(..., environment_factory=to_trl(Calculator()), train_dataset=Dataset.from_list(
            trl_rows(rows)))

    `reset` takes the row; its seed is made from the row, so a group begins in the same state. `get_reward` grades the
    episode and gives its whole reward. TRL differs from gymnast in these points: it has no final tool, so the model
    may go on after one, and is told that the episode is over. A message without a tool call ends the episode, so
    `reply` is never asked. It cannot drop an episode, so a broken environment stops the training in `get_reward`.

    Raises:
        TypeError: it is not a `ToolEnv`.
        ValueError: it has no tools before its first reset, or tools that TRL cannot take: without a signature (of
            `MCPTools`), or with a name that TRL hides.
    """
    if not isinstance(environment, ToolEnv):
        raise TypeError(f"to_trl takes a ToolEnv, whose tools TRL can call, got {environment!r}")
    if environment._sources or not environment.tools:
        raise ValueError(
            f"TRL asks for the tools before the first episode, and {type(environment).__name__} knows "
            f"{'only a part of them' if environment.tools else 'none'} then"
        )
    methods = {name: _method(tool) for name, tool in environment.tools.items()}
    return type(type(environment).__name__, (_EnvironmentOfTRL,), {"_prototype": environment, **methods})


def trl_rows(rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return rows whose `prompt` is messages, as TRL needs it; empty if the environment makes them from the row."""
    return [{**row, "prompt": _as_messages(row.get("prompt", ""))} for row in rows]


class _EnvironmentOfTRL:
    """One slot of TRL's pool of environments: it is reset for each episode."""

    _prototype: ToolEnv

    def __init__(self) -> None:
        self._environment = self._prototype.clone()
        self._reward: float | None = None  # of the steps so far
        self._stop: StopReason | None = None
        self._broken: BaseException | None = None

    def reset(self, **row: Any) -> str | None:
        """Begin an episode, and return the text that TRL adds to the last message of the row's prompt."""
        self._reward, self._stop, self._broken = 0.0, None, None
        seed = zlib.crc32(json.dumps(row, sort_keys=True, default=repr).encode())
        messages, _ = self._environment.reset(seed=seed, options={"task": row})
        return _text_to_add(messages, row.get("prompt"))

    def get_reward(self) -> float:
        """Grade the episode; return the rewards of its steps and its grade."""
        if self._broken is not None:
            raise BrokenEnvironmentError("the episode failed, so it has no reward") from self._broken
        if self._reward is None:
            raise RuntimeError("get_reward() was called before reset(), or twice")
        grade = self._environment.grade(self._stop or StopReason.MODEL_STOPPED)
        reward, self._reward = self._reward + float(grade or 0.0), None
        return reward

    def _call(self, name: str, arguments: dict[str, Any]) -> Any:
        if self._stop is not None:
            return OVER
        try:
            result = self._environment.step(tool_call(name, **arguments))
        except Exception as error:  # TRL would show it to the model and go on
            self._broken = error
            self._stop = StopReason.FAILED
            return OVER
        assert self._reward is not None
        self._reward += result.reward
        self._stop = ending(result, type(self._environment).__name__)
        [message] = result.messages or [{"role": "tool", "content": OVER}]
        return message.get("content")


def _method(described: Tool) -> Callable[..., Any]:
    """Return a method that TRL describes to the model as we describe the tool."""
    if described.name in ("reset", "get_reward") or not described.name.isidentifier() or described.name.startswith("_"):
        raise ValueError(f"TRL hides a tool named {described.name!r}; give it another name with @tool(name=...)")
    signature = inspect.signature(described.function)
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in signature.parameters.values()):
        raise ValueError(f"the tool {described.name!r} has no signature, from which TRL makes its schema")
    hints = get_type_hints(described.function)

    def method(self: _EnvironmentOfTRL, **arguments: Any) -> Any:
        return self._call(described.name, arguments)

    own = inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    method.__name__ = method.__qualname__ = described.name
    method.__doc__ = inspect.getdoc(described.function)
    method.__annotations__ = hints
    method.__signature__ = signature.replace(parameters=[own, *signature.parameters.values()])  # type: ignore[attr-defined]
    return method


def _text_to_add(messages: Sequence[Message], prompt: Any) -> str | None:
    if prompt is not None and list(messages) == _as_messages(prompt):
        return None  # the model reads it in the row
    if len(messages) != 1 or messages[0]["role"] != "user" or not isinstance(messages[0].get("content"), str):
        raise ValueError(
            f"TRL adds one text to the row's prompt, and this environment begins with {list(messages)!r}: give one "
            f"user message in reset_task, and a system message in the row's prompt"
        )
    return messages[0]["content"]  # type: ignore[return-value, typeddict-item]


def _as_messages(prompt: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": prompt}] if isinstance(prompt, str) else list(prompt)
