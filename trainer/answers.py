"""Assistant messages made from what a model wrote: thinking, content, calls, and calls that cannot be read."""

from __future__ import annotations

import json
from typing import Any, NoReturn

from ..envs.core import MalformedCall, Message, ToolCall


def read_json(text: str) -> Any:
    """The value of a JSON text.

    Raises:
        ValueError: it is not JSON, or it holds what no UTF-8 text can (half of a surrogate pair).
    """
    try:
        value = json.loads(text, parse_constant=_refuse_constant)
        check_text(value)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"not valid JSON ({error})") from None
    return value


def _refuse_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is not a JSON number")


def check_text(value: Any) -> None:
    """Refuse half surrogate pairs, which neither a tokenizer nor a file takes."""
    json.dumps(value, ensure_ascii=False).encode()


def make_call(index: int, call: Any) -> ToolCall:
    """A tool call from a normalised payload.

    Raises:
        ValueError: the payload has no name, or arguments that are neither an object nor text.
    """
    name = call.get("name") if isinstance(call, dict) else None
    if not isinstance(name, str) or not name:
        raise ValueError('a tool call needs a "name"')
    arguments = call.get("arguments")
    if arguments is None:
        arguments = {}
    if not isinstance(arguments, dict | str):
        raise ValueError(f"the arguments of {name!r} must be a JSON object")
    return {"id": f"call_{index}", "type": "function", "function": {"name": name, "arguments": arguments}}


def make_message(content: str, thinking: str | None, calls: list[ToolCall], malformed: list[MalformedCall]) -> Message:
    """An assistant message with only the keys that say something."""
    message: Message = {"role": "assistant", "content": content.strip() if calls or malformed else content}
    if thinking is not None:
        message["reasoning_content"] = thinking
    if calls:
        message["tool_calls"] = calls
    if malformed:
        message["malformed"] = malformed
    return message


def split_thinking(text: str, prefix: str) -> tuple[str | None, str]:
    """Thinking and the rest; the template may have opened `<think>` already, at the end of the prefix."""
    opened = text.lstrip().startswith("<think>")
    if not opened and not prefix.rstrip().endswith("<think>"):
        return None, text
    body = text.lstrip().removeprefix("<think>") if opened else text
    thinking, closed, rest = body.partition("</think>")
    return thinking.strip("\n"), rest.lstrip("\n") if closed else ""
