"""Gymnasium spaces of chat messages."""

from __future__ import annotations

import string
from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium.spaces import Space

MAPPING = (dict, Mapping)  # dict first: the check for a Mapping takes ten times as long
ROLES = frozenset({"system", "developer", "user", "assistant", "tool"})


def message_error(message: Any) -> str | None:
    """Return the error in a chat message, as one clause; None if it is well formed."""
    if not isinstance(message, MAPPING):
        return f"a message is a mapping such as {{'role': 'user', 'content': '...'}}, got {type(message).__name__}"
    role = message.get("role")
    if not isinstance(role, str) or role not in ROLES:
        return f"'role' must be one of {sorted(ROLES)}, got {role!r}"
    content = message.get("content")
    if "content" not in message and role != "assistant":
        return f"a message of the {role} has 'content', got only {sorted(message)}"
    if isinstance(content, list):
        wrong = [part for part in content if not isinstance(part, Mapping) or "type" not in part]
        if wrong:
            return f"a content part is a mapping with a 'type', got {wrong[0]!r}"
    elif content is not None and not isinstance(content, str):
        return f"'content' must be text, a list of parts or None, got {type(content).__name__}"
    calls = message.get("tool_calls")
    if calls is not None and not isinstance(calls, list):
        return f"'tool_calls' must be a list, got {type(calls).__name__}"
    for call in calls or ():
        if not _is_tool_call(call):
            return f"a tool call is {{'function': {{'name': str, 'arguments': mapping or JSON}}}}, got {call!r}"
    return None


def _is_tool_call(call: Any) -> bool:
    function = call.get("function") if isinstance(call, MAPPING) else None
    if not isinstance(function, MAPPING) or not isinstance(function.get("name"), str):
        return False
    return isinstance(function.get("arguments"), (str, *MAPPING))


def check_action(action: Any, name: str) -> None:
    """Raise a TypeError if `step` was given no chat message."""
    if (clause := message_error(action)) is not None:
        raise TypeError(f"{name}.step() takes the model's message: {clause}: {action!r}")


def check_messages(messages: Any, source: str) -> None:
    """Raise a ValueError, which begins with the source such as "Guess.step()", if this is no list of chat messages."""
    if not isinstance(messages, list | tuple):
        raise ValueError(
            f"{source} must give a list of messages, got {type(messages).__name__}: {messages!r}; write e.g. "
            f"[{{'role': 'user', 'content': '...'}}]"
        )
    for index, message in enumerate(messages):
        clause = message_error(message)
        if clause is not None:
            alone = "; give the messages alone, without info" if isinstance(message, list | tuple) else ""
            raise ValueError(f"{source} gave a wrong message at place {index}: {clause}{alone}")


class MessageSpace(Space[Any]):
    """All chat messages; `sample` draws an assistant message of random text."""

    def __init__(self, seed: int | np.random.Generator | None = None) -> None:
        super().__init__(shape=None, dtype=None, seed=seed)

    @property
    def is_np_flattenable(self) -> bool:
        return False

    def sample(self, mask: Any | None = None, probability: Any | None = None) -> dict[str, Any]:
        if mask is not None or probability is not None:
            raise ValueError("a space of messages has no finite set of elements: mask and probability must be None")
        letters = self.np_random.choice(list(string.ascii_lowercase + " "), size=int(self.np_random.integers(1, 33)))
        return {"role": "assistant", "content": "".join(letters)}

    def contains(self, x: Any) -> bool:
        return message_error(x) is None

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self)

    def __hash__(self) -> int:
        return hash(type(self))

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


class MessagesSpace(MessageSpace):
    """All lists of chat messages; `sample` draws a list of one."""

    def sample(self, mask: Any | None = None, probability: Any | None = None) -> Any:
        return [super().sample(mask, probability)]

    def contains(self, x: Any) -> bool:
        return isinstance(x, list) and all(message_error(message) is None for message in x)
