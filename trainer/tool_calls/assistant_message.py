"""Assistant messages from the text of a model: thinking, content, calls, and calls that cannot be read."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from ...envs.core import MalformedCall, Message, ToolCall, ToolSchema
from ...envs.json_values import check_depth
from .call_arguments import convert, read_arguments

THINK = ("<think>", "</think>")


def make_call(call: Any, *, tools: Sequence[ToolSchema] = (), python: bool = False, textual: bool = False) -> ToolCall:
    """Return a tool call from a normalised payload, `{name, arguments}` and perhaps `id`.

    The schemas of `tools` tell the type of an argument that is written as text. A format may write Python literals
    (`python`), or every argument as text (`textual`). Raise a ValueError if the payload has no name, its arguments are
    no object or nested too deeply, or a text in it is not valid Unicode.
    """
    name = call.get("name") if isinstance(call, dict) else None
    if not isinstance(name, str) or not name:
        raise ValueError('a tool call needs a "name"')
    schemas = {tool["function"]["name"]: tool["function"].get("parameters") for tool in tools}
    head, _, tail = name.partition(".")
    if head == tail and head in schemas and name not in schemas:
        name = head  # Muse Glimmer's prompt announces a tool as `weather.*`, and it calls `weather.weather`
    try:
        arguments = read_arguments(call.get("arguments"), python=python)
        arguments = convert(arguments, schemas.get(name), textual=textual)
        check_depth(arguments)
    except ValueError as error:
        raise ValueError(f"the arguments of {name!r} must be a JSON object: {error}") from None
    made: ToolCall = {"type": "function", "function": {"name": name, "arguments": arguments}}
    if call.get("id") is not None:
        made = {"id": str(call["id"]), **made}
    try:
        json.dumps(made, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise ValueError(f"the call of {name!r} holds half of a surrogate pair, which is no text") from None
    return made


def make_message(content: str, thinking: str | None, calls: list[ToolCall], malformed: list[MalformedCall]) -> Message:
    """Return an assistant message without empty keys."""
    message: Message = {"role": "assistant", "content": content.strip() if calls or malformed else content}
    if thinking is not None:
        message["reasoning_content"] = thinking
    if calls:
        message["tool_calls"] = calls
    if malformed:
        message["malformed"] = malformed
    return message


def split_thinking(text: str, prefix: str, markers: tuple[str, str] = THINK) -> tuple[str | None, str]:
    """Return the thinking, which the end of the prefix may have opened, and the rest."""
    opening, closing = markers
    opened = text.lstrip().startswith(opening)
    if not opened and not prefix.rstrip().endswith(opening.rstrip()):
        return None, text
    body = text.lstrip().removeprefix(opening) if opened else text
    thinking, closed, rest = body.partition(closing)
    return thinking.strip("\n"), rest.lstrip("\n") if closed else ""
