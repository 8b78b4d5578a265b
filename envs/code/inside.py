"""The calls of tools that the model's code makes: bytes from a box become checked calls, and their results bytes."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any

from ...sandbox.guest.protocol import MAX_ANSWER
from ..core import ToolCall
from ..episode import ToolCallRecord
from ..json_values import check_depth
from ..tools.runner import CallResult

Run = Callable[[ToolCall], Awaitable[tuple[CallResult, ToolCallRecord]]]

_PATIENCE = 2  # code that makes so many times the calls of its budget is stopped


class InsideCalls:
    """The calls that the code of one episode makes, at most `budget`; `run` makes one."""

    def __init__(self, run: Run, budget: int) -> None:
        self.made = 0
        self._run = run
        self._budget = budget
        self._is_over = False

    async def answer(self, call: bytes) -> bytes:
        """Return the answer to a call; see `Executor.offer`.

        Raises:
            ValueError: the code goes on to make calls that are refused.
            BrokenEnvironmentError, ConfigurationError, SandboxError: a tool raised it; the episode fails.
        """
        self.made += 1
        if self.made > _PATIENCE * self._budget:
            raise ValueError(f"the code was stopped: it made {self.made} calls of tools, {self._budget} are allowed")
        if self._is_over:
            return _encoded(error="not run, the episode is over")
        if self.made > self._budget:
            return _encoded(error=f"not run, the {self._budget} calls of tools that code may make are used up")
        try:
            checked = _checked(call)
        except ValueError as error:
            return _encoded(error=f"a call must be JSON with a name and arguments: {error}")
        result, record = await self._run(checked)
        self._is_over = record.ends_episode
        if record.outcome != "ok":
            return _encoded(error=_text(result.content).removeprefix("Error: "))
        return _encoded(content=_text(result.content), is_json=result.is_json, final=record.ends_episode)


def _checked(call: bytes) -> ToolCall:
    try:
        content = json.loads(call.decode("utf-8"), parse_constant=_refuse)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if not isinstance(content, dict) or content.keys() != {"name", "arguments"}:
        raise ValueError("it is no object with the keys 'name' and 'arguments'")
    name, arguments = content["name"], content["arguments"]
    if not isinstance(name, str) or not isinstance(arguments, dict):
        raise ValueError("the name must be text, and the arguments an object")
    check_depth(arguments)
    return {"type": "function", "function": {"name": name, "arguments": arguments}}


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is no number of JSON")


def _text(content: Any) -> str:
    if isinstance(content, str):
        return content
    return "\n".join(part["text"] if part["type"] == "text" else f"[{part['type']}]" for part in content)


def _encoded(**answer: Any) -> bytes:
    data = json.dumps(answer).encode()
    if len(data) <= MAX_ANSWER:
        return data
    return _encoded(error=f"the result has {len(data)} bytes, more than {MAX_ANSWER}, and cannot be passed to code")
