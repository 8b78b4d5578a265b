"""Episodes and messages for people: as text in a terminal, and as HTML in a notebook."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
from itertools import zip_longest
from typing import Any

Message = Mapping[str, Any]

Entry = tuple[str, str]
"""A role, or another heading, and a text."""

LONGEST = 1000
"""Characters of a message that are shown."""

INDENT = 12
"""The column of a message's text."""


def as_text(heading: str, entries: Iterable[Entry]) -> str:
    """Return the heading, and lines for each entry."""
    lines = [heading]
    for role, text in entries:
        first, *rest = text.splitlines() or [""]
        lines += [f"{role:>{INDENT - 2}}  {first}", *(" " * INDENT + line for line in rest)]
    return "\n".join(lines)


def as_html(heading: str, entries: Iterable[Entry]) -> str:
    """Return the heading and a table of the entries; all text is escaped."""
    style = "vertical-align: top; text-align: left; white-space: pre-wrap; padding: 2px 12px 2px 0"
    rows = "".join(
        f'<tr><th style="{style}; opacity: 0.6; font-weight: normal">{escape(role)}</th>'
        f'<td style="{style}">{escape(text)}</td></tr>'
        for role, text in entries
    )
    return f"<div><b>{escape(heading)}</b><table>{rows}</table></div>"


def as_transcript(messages: Iterable[Message]) -> str:
    """Return messages as `[role] text` with their tool calls."""
    lines = []
    for message in messages:
        calls = [call["function"] for call in message.get("tool_calls") or []]
        lines.append(f"[{message['role']}] {named_text(message)}")
        lines += [f"  {call['name']}({call['arguments']})" for call in calls]
    return "\n".join(lines)


def named_text(message: Message) -> str:
    """Return the text of a message; a part of its content that is not text is named, as in `[image 640x480]`."""
    content = message.get("content") or ""
    if isinstance(content, str):
        return content
    return "".join(_named(part) for part in content)


def _named(part: Mapping[str, Any]) -> str:
    picture = part.get("image")
    if isinstance(picture, Mapping) and "width" in picture:  # from a record
        return f"[image {picture['width']}x{picture['height']}]"
    known = getattr(picture, "width", None)
    return str(part.get("text", f"[{part.get('type')}]" if known is None else picture))


def entry_of(message: Message) -> Entry:
    """Return a message's role and text."""
    return message["role"], _content(message)


def entries_of_turn(answer: Message, observation: Sequence[Message], outcomes: Sequence[str]) -> Iterator[Entry]:
    """Yield an answer of the model, its calls with their outcomes and results, and the other messages."""
    calls = answer.get("tool_calls") or []
    results = [message for message in observation if message["role"] == "tool"]
    if _content(answer) or not calls:
        yield "assistant", _content(answer)
    told = outcomes if calls or results else ()  # code in the text of an answer is no call of it
    for call, outcome, result in zip_longest(calls, told, results):
        yield "call" if call else "tool", _call(call, outcome or "", result)
    yield from (entry_of(message) for message in observation if message["role"] != "tool")


def _call(call: Mapping[str, Any] | None, outcome: str, result: Message | None) -> str:
    """Return e.g. `add(a=1, b=2) -> 3`; the outcome stands before the arrow."""
    text = "" if call is None else f"{call['function']['name']}({written_arguments(call['function']['arguments'])})"
    return text + outcome if result is None else f"{text}{outcome} -> {_content(result)}"


def written_arguments(arguments: Any) -> str:
    """Return the arguments of a tool call as Python would have them, `a=1, b=2`; a str stays as it is."""
    if not isinstance(arguments, dict):
        return str(arguments)
    return ", ".join(
        f"{name}={json.dumps(value, ensure_ascii=False, default=repr)}" for name, value in arguments.items()
    )


def _content(message: Message) -> str:
    return cut(named_text(message))


def cut(text: str, longest: int = LONGEST) -> str:
    """Return the beginning of a long text, and how much more there is."""
    more = len(text) - longest
    return text if more <= 0 else f"{text[:longest]} ... {more} more characters"
