"""Tool-call formats: from the text that a model wrote to a message with tool calls.

A format is one entry of `FORMATS`: the markers that its chat templates carry, how to cut the calls out of the text,
and a JMESPath expression that maps each call's payload to `{name, arguments}`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import jmespath

from ..envs.core import MalformedCall, Message, ToolCall, ToolSchema


class ToolFormat(Protocol):
    """Reads a model's answer."""

    def parse(self, text: str, *, prefix: str, tools: Sequence[ToolSchema]) -> Message:
        """The assistant message that this text means.

        Args:
            text: What the model wrote in this turn, without its end-of-turn token.
            prefix: The rendered text before it; a template may have begun the turn there (say with `<think>`).
            tools: The tools of the episode.

        Returns:
            `content`, `reasoning_content` where there is thinking, `tool_calls`, and `malformed` for calls that
            cannot be read. Never raises on what a model may write.
        """
        ...


ToolParser = Callable[[str], Message]
"""A user's own parser: text of one turn -> assistant message."""


@dataclass(kw_only=True, slots=True, frozen=True)
class Span:
    """A stretch of text that claims to be one tool call."""

    start: int
    end: int
    payload: str


@dataclass(kw_only=True, slots=True, frozen=True)
class JSONFormat:
    """A format whose calls are JSON objects within the text."""

    name: str
    markers: tuple[str, ...]  # texts that all occur in the chat templates of this format
    spans: Callable[[str], Iterator[Span]]  # cuts the calls out of the text
    payload: str  # JMESPath: payload -> {name, arguments}

    def parse(self, text: str, *, prefix: str, tools: Sequence[ToolSchema]) -> Message:
        thinking, text = split_thinking(text, prefix)
        calls: list[ToolCall] = []
        malformed: list[MalformedCall] = []
        content, position = "", 0
        for span in self.spans(text):
            content += text[position : span.start]
            position = span.end
            try:
                calls.append(make_call(len(calls), self._read(span.payload)))
            except ValueError as error:
                malformed.append({"text": text[span.start : span.end], "error": str(error)})
        content += text[position:]
        return make_message(content, thinking, calls, malformed)

    def _read(self, payload: str) -> Any:
        try:
            value = json.loads(payload)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"not valid JSON ({error})") from None
        return jmespath.search(self.payload, value)


@dataclass(kw_only=True, slots=True, frozen=True)
class ResponseTemplateFormat:
    """The tokenizer's own `response_template` (transformers >= 5.13)."""

    tokenizer: Any
    payload: str = "{name: function.name, arguments: function.arguments}"
    name: str = "response_template"

    def parse(self, text: str, *, prefix: str, tools: Sequence[ToolSchema]) -> Message:
        try:
            parsed = self.tokenizer.parse_response(text, prefix=prefix, tools=list(tools) or None)
            found = parsed.get("tool_calls") or []
            calls = [make_call(index, jmespath.search(self.payload, each)) for index, each in enumerate(found)]
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            malformed: list[MalformedCall] = [{"text": text, "error": str(error) or type(error).__name__}]
            return make_message(text, None, [], malformed)
        thinking = parsed.get("reasoning_content") or parsed.get("thinking")
        return make_message(parsed.get("content") or "", thinking, calls, [])


@dataclass(kw_only=True, slots=True, frozen=True)
class CallableFormat:
    """A user's own parser."""

    parser: ToolParser
    name: str = "custom"

    def parse(self, text: str, *, prefix: str, tools: Sequence[ToolSchema]) -> Message:
        message = self.parser(text)
        if not isinstance(message, dict) or message.get("role", "assistant") != "assistant":
            raise TypeError(f"tool_format must return an assistant message (a dict), got {message!r}")
        return {**message, "role": "assistant"}


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


def _hermes_spans(text: str) -> Iterator[Span]:
    for match in re.finditer(r"<tool_call>(.*?)(</tool_call>|(?=<tool_call>)|\Z)", text, re.DOTALL):
        yield Span(start=match.start(), end=match.end(), payload=match[1].strip())


def _llama_spans(text: str) -> Iterator[Span]:
    """The whole answer is one JSON object, or several, separated by semicolons or white space."""
    decoder = json.JSONDecoder()
    start = len(text) - len(text.lstrip())
    if text.startswith("<|python_tag|>", start):
        start += len("<|python_tag|>")
    if not re.match(r'\s*\{\s*"', text[start:]):
        return  # plain text
    while start < len(text):
        try:
            _, end = decoder.raw_decode(text, start)
        except (ValueError, RecursionError):
            end = len(text)
        yield Span(start=start, end=end, payload=text[start:end])
        start = end + len(text[end:]) - len(text[end:].lstrip("; \t\r\n"))


HERMES = JSONFormat(
    name="hermes",
    markers=("<tool_call>", "arguments"),
    spans=_hermes_spans,
    payload="{name: name, arguments: arguments}",
)
LLAMA3 = JSONFormat(
    name="llama3",
    markers=("<|start_header_id|>", "parameters"),
    spans=_llama_spans,
    payload="{name: name, arguments: parameters || arguments}",
)

FORMATS: dict[str, JSONFormat] = {each.name: each for each in (HERMES, LLAMA3)}


def recognise(template: str, render_call: Callable[[], str]) -> tuple[JSONFormat | None, str]:
    """The format of a chat template, and why: its markers occur, and it reads what the template renders.

    Args:
        template: The template's source.
        render_call: Renders the text of an assistant turn that calls `PROBE_CALL`.
    """
    looked_for = []
    for candidate in FORMATS.values():
        missing = [marker for marker in candidate.markers if marker not in template]
        if missing:
            looked_for.append(f"{candidate.name} (its template has no {missing[0]!r})")
            continue
        read = candidate.parse(render_call(), prefix="", tools=()).get("tool_calls", [])
        if [call["function"] for call in read] == [PROBE_CALL["function"]]:
            return candidate, f"the template's markers {list(candidate.markers)} and a call it rendered"
        looked_for.append(f"{candidate.name} (it does not read the call that the template renders)")
    return None, "looked for " + ", ".join(looked_for)


PROBE_CALL: ToolCall = {
    "id": "call_0",
    "type": "function",
    "function": {"name": "probe_tool", "arguments": {"city": "Zürich", "days": 3}},
}
PROBE_TOOL: ToolSchema = {
    "type": "function",
    "function": {
        "name": "probe_tool",
        "description": "A tool that shows how the template renders tools.",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "description": "A city."},
                "days": {"type": "integer", "description": "A number of days."},
            },
            "required": ["city", "days"],
        },
    },
}
