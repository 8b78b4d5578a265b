"""Messages, tool calls and their results as other formats have them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from ...envs.core import Message
from ...envs.episode import ToolCallRecord, Turn


def calls_of(message: Message, number: int) -> list[tuple[str, str, dict[str, Any]]]:
    """Return the id, name and arguments of each tool call of turn `number`; calls without an id get one."""
    return [
        (call.get("id") or f"turn_{number}_call_{place}", function["name"], _arguments(function["arguments"]))
        for place, call in enumerate(message.get("tool_calls") or [])
        for function in [call["function"]]
    ]


def results_of(turn: Turn, number: int) -> Iterator[tuple[str | None, Message, ToolCallRecord | None]]:
    """Yield the result messages of a turn's tools with the ids and records of their calls; results come in call order.

    A result without a call tells the model of a malformed call.
    """
    ids = iter(calls_of(turn.message, number))
    records = iter(turn.tool_calls)
    for message in turn.observation:
        if message["role"] == "tool":
            call = next(ids, None)
            yield None if call is None else call[0], message, next(records, None)


def others_of(turn: Turn) -> list[Message]:
    """Return the messages of the environment after a turn that are not results of tools."""
    return [message for message in turn.observation if message["role"] != "tool"]


def _arguments(arguments: dict[str, Any] | str) -> dict[str, Any]:
    if not isinstance(arguments, str):
        return dict(arguments)
    try:
        decoded = json.loads(arguments or "{}")
    except ValueError:
        decoded = None
    return decoded if isinstance(decoded, dict) else {"arguments": arguments}  # as the model wrote them
