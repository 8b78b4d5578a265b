"""Histories: whether a request goes on with the messages of an earlier one, in the form that a program sends them.

Programs send a message back with other empty fields, or with the arguments of a call as text. The message is the same.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from ..core import Message


def extends(messages: Sequence[Message], history: Sequence[Message]) -> bool:
    """Whether these messages begin with the history, and end with a message that the model can answer."""
    if len(messages) < len(history) or not all(map(same_message, history, messages)):
        return False
    return len(messages) == len(history) or messages[-1]["role"] != "assistant"


def same_message(one: Message, other: Message) -> bool:
    """Whether two messages say the same."""
    try:
        return one is other or one == other or _canonical(one) == _canonical(other)
    except RecursionError:  # arguments that are nested too deeply: a missed match costs a line, never the truth
        return False


def copied(messages: Sequence[Message]) -> list[Message]:
    """Return a copy of messages, however deeply the arguments are nested that the model wrote."""
    copies: list[Any] = list(messages)
    todo: list[Any] = [copies]
    while todo:
        container = todo.pop()
        for place, item in list(container.items() if isinstance(container, dict) else enumerate(container)):
            if isinstance(item, dict | list):
                container[place] = item.copy()
                todo.append(container[place])
    return copies


def _canonical(message: Message) -> dict[str, Any]:
    kept: dict[str, Any] = {key: value for key, value in message.items() if value not in (None, "", [])}
    if "tool_calls" in kept:
        kept["tool_calls"] = [
            {**call, "function": {**call["function"], "arguments": _parsed(call["function"]["arguments"])}}
            for call in kept["tool_calls"]
        ]
    return kept


def _parsed(arguments: Any) -> Any:
    try:
        return json.loads(arguments) if isinstance(arguments, str) else arguments
    except ValueError:  # the model wrote no JSON
        return arguments
