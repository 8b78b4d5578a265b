"""An episode for people: as text in a terminal, and as HTML in a notebook."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from html import escape
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .core import Message, ToolCall
    from .episode import Episode, ToolCallRecord, Turn

LONGEST = 1000
"""Characters of a message that are shown."""

INDENT = 12
"""The column of a message's text."""


def as_text(episode: Episode) -> str:
    """The episode in lines: a heading, then each message with its tool calls, results and rewards."""
    lines = [_heading(episode)]
    for role, text in _entries(episode):
        first, *rest = text.splitlines() or [""]
        lines += [f"{role:>{INDENT - 2}}  {first}", *(" " * INDENT + line for line in rest)]
    return "\n".join(lines)


def as_html(episode: Episode) -> str:
    """The same as a table; all text is escaped."""
    style = "vertical-align: top; text-align: left; white-space: pre-wrap; padding: 2px 12px 2px 0"
    rows = "".join(
        f'<tr><th style="{style}; opacity: 0.6; font-weight: normal">{escape(role)}</th>'
        f'<td style="{style}">{escape(text)}</td></tr>'
        for role, text in _entries(episode)
    )
    return f"<div><b>{escape(_heading(episode))}</b><table>{rows}</table></div>"


def as_transcript(messages: Iterable[Message]) -> str:
    """Messages as `[role] text` with their tool calls."""
    return "\n".join(f"[{message['role']}] {_plain_text(message)}" for message in messages)


def _plain_text(message: Message) -> str:
    content = message.get("content")
    if isinstance(content, list):
        content = "".join(str(part.get("text", f"<{part.get('type')}>")) for part in content)
    calls = [call["function"] for call in message.get("tool_calls") or []]
    return (content or "") + "".join(f"\n  {call['name']}({call['arguments']})" for call in calls)


def _heading(episode: Episode) -> str:
    reward = "no reward" if episode.reward is None else f"reward {episode.reward:g}"
    turns = "1 turn" if len(episode.turns) == 1 else f"{len(episode.turns)} turns"
    sizes = [turns, f"{episode.seconds:.2g} s"]
    sizes[1:1] = [f"{episode.num_sampled} tokens"] if episode.traces else []
    return f"{episode.spec.group}[{episode.spec.member}]: {reward}, {episode.stop.value} ({', '.join(sizes)})"


def _entries(episode: Episode) -> Iterator[tuple[str, str]]:
    """Pairs of a role and a text."""
    for message in episode.prompt if episode.turns else episode.first_messages:
        yield message["role"], _content(message)
    for turn in episode.turns:
        yield from _of_turn(turn)
    parts = {name: value for name, value in episode.reward_parts.items() if name != "environment"}
    if parts:
        yield "rewards", ", ".join(f"{name} {value}" for name, value in episode.reward_parts.items())
    if episode.failure is not None:
        yield "failed", f"at {episode.failure}"


def _of_turn(turn: Turn) -> Iterator[tuple[str, str]]:
    calls = turn.message.get("tool_calls") or []
    results = [message for message in turn.observation if message["role"] == "tool"]
    if _content(turn.message) or not calls:
        yield "assistant", _content(turn.message)
    for call, record, result in zip_longest(calls, turn.tool_calls, results):
        yield "call" if call else "tool", _call(call, record, result)
    for message in turn.observation:
        if message["role"] != "tool":
            yield message["role"], _content(message)
    if turn.reward:
        yield "reward", f"{turn.reward:+g}"


def _call(call: ToolCall | None, record: ToolCallRecord | None, result: Message | None) -> str:
    """`add(a=1, b=2) -> 3`, with the time of a slow call and the outcome of a failed one."""
    text = "" if call is None else f"{call['function']['name']}({_arguments(call['function']['arguments'])})"
    if record is not None and (record.failed or record.seconds >= 1):
        text += f" [{record.outcome}, {record.seconds:.2g} s]"
    return text if result is None else f"{text} -> {_content(result)}"


def _arguments(arguments: Any) -> str:
    if not isinstance(arguments, dict):
        return str(arguments)
    return ", ".join(
        f"{name}={json.dumps(value, ensure_ascii=False, default=repr)}" for name, value in arguments.items()
    )


def _content(message: Message) -> str:
    content: Any = message.get("content") or ""
    if isinstance(content, list):
        content = "\n".join(str(part.get("text", f"[{part.get('type')}]")) for part in content)
    more = len(content) - LONGEST
    return content if more <= 0 else f"{content[:LONGEST]} ... {more} more characters"
