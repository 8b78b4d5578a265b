"""Assistant messages made from what a model wrote: thinking, content, calls, and calls that cannot be read."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from ...envs.core import MalformedCall, Message, ToolCall, ToolSchema
from .call_arguments import convert, read_arguments
from .value_readers import read_json_at, shorten, skip_space

THINK = ("<think>", "</think>")


def read_json(text: str) -> Any:
    """The value of a JSON text.

    Raises:
        ValueError: it is not JSON, or it holds a number that is not finite or half of a surrogate pair.
    """
    value, end = read_json_at(text, 0)
    rest = skip_space(text, end)
    if rest < len(text):
        raise ValueError(f"not valid JSON ({shorten(text[rest:])} follows it)")
    return value


def check_text(value: Any) -> None:
    """Raise a ValueError for half of a surrogate pair: neither a tokenizer nor a file can hold it."""
    json.dumps(value, ensure_ascii=False).encode()


def make_call(call: Any, *, tools: Sequence[ToolSchema] = (), python: bool = False, textual: bool = False) -> ToolCall:
    """A tool call from a normalised payload, `{name, arguments}` and perhaps `id`.

    Args:
        call: The payload.
        tools: Their schemas tell what an argument that is written as text means.
        python: The format is known to write Python literals.
        textual: The format writes every argument as text.

    Raises:
        ValueError: the payload has no name, or its arguments are not an object.
    """
    name = call.get("name") if isinstance(call, dict) else None
    if not isinstance(name, str) or not name:
        raise ValueError('a tool call needs a "name"')
    name = _flat_name(name, tools)
    try:
        arguments = read_arguments(call.get("arguments"), python=python)
    except ValueError as error:
        raise ValueError(f"the arguments of {name!r} must be a JSON object: {error}") from None
    arguments = convert(arguments, _parameters(name, tools), textual=textual)
    check_text([name, arguments])
    made: ToolCall = {"type": "function", "function": {"name": name, "arguments": arguments}}
    given = call.get("id")
    return made if given is None else {"id": str(given), **made}


def _flat_name(name: str, tools: Sequence[ToolSchema]) -> str:
    """`weather` for `weather.weather`: so Muse Glimmer calls tools, which its prompt announces as `weather.*`."""
    head, _, tail = name.partition(".")
    names = [each["function"]["name"] for each in tools]
    return head if head == tail and head in names and name not in names else name


def _parameters(name: str, tools: Sequence[ToolSchema]) -> Mapping[str, Any] | None:
    return next((each["function"].get("parameters") for each in tools if each["function"]["name"] == name), None)


def make_message(content: str, thinking: str | None, calls: list[ToolCall], malformed: list[MalformedCall]) -> Message:
    """An assistant message without empty keys."""
    message: Message = {"role": "assistant", "content": content.strip() if calls or malformed else content}
    if thinking is not None:
        message["reasoning_content"] = thinking
    if calls:
        message["tool_calls"] = calls
    if malformed:
        message["malformed"] = malformed
    return message


def split_thinking(text: str, prefix: str, markers: tuple[str, str] = THINK) -> tuple[str | None, str]:
    """Thinking and the rest; the template may have opened it already, at the end of the prefix."""
    opening, closing = markers
    opened = text.lstrip().startswith(opening)
    if not opened and not prefix.rstrip().endswith(opening.rstrip()):
        return None, text
    body = text.lstrip().removeprefix(opening) if opened else text
    thinking, closed, rest = body.partition(closing)
    return thinking.strip("\n"), rest.lstrip("\n") if closed else ""
