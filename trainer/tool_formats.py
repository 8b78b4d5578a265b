"""Tool-call formats: from the text that a model wrote to a message with tool calls.

A format is one entry of `FORMATS`: the markers that its chat templates carry, how to cut the calls out of the text,
and a JMESPath expression that maps each call's payload to `{name, arguments}`.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import jmespath
from transformers import PreTrainedTokenizerBase

from ..envs.core import MalformedCall, Message, ToolCall, ToolSchema
from .answers import check_text, make_call, make_message, read_json, split_thinking


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
"""A user's own parser: text of one turn -> assistant message. A ValueError says that the turn cannot be read."""


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
        return jmespath.search(self.payload, read_json(payload))


@dataclass(kw_only=True, slots=True, frozen=True)
class ResponseTemplateFormat:
    """The tokenizer's own `response_template` (transformers >= 5.13)."""

    tokenizer: Any
    payload: str = "{name: function.name, arguments: function.arguments}"
    name: str = "response_template"

    def parse(self, text: str, *, prefix: str, tools: Sequence[ToolSchema]) -> Message:
        options = {"tools": list(tools)} if tools and _TYPES_ARGUMENTS else {}
        try:
            parsed = self.tokenizer.parse_response(text, prefix=prefix, **options)
            found = parsed.get("tool_calls") or []
            calls = [make_call(index, jmespath.search(self.payload, each)) for index, each in enumerate(found)]
            check_text(parsed)
        except Exception as error:  # the template's own code runs here, on whatever the model wrote
            thinking, content = split_thinking(text, prefix)
            malformed: list[MalformedCall] = [{"text": content, "error": str(error) or type(error).__name__}]
            return make_message(content, thinking, [], malformed)
        thinking = parsed.get("reasoning_content") or parsed.get("thinking")
        return make_message(parsed.get("content") or "", thinking, calls, [])


# transformers >= 5.15 types the arguments by the tool's schema.
_TYPES_ARGUMENTS = "tools" in inspect.signature(PreTrainedTokenizerBase.parse_response).parameters


@dataclass(kw_only=True, slots=True, frozen=True)
class CallableFormat:
    """A user's own parser."""

    parser: ToolParser
    name: str = "custom"

    def parse(self, text: str, *, prefix: str, tools: Sequence[ToolSchema]) -> Message:
        try:
            message = self.parser(text)
        except ValueError as error:
            return make_message(text, None, [], [{"text": text, "error": str(error) or type(error).__name__}])
        if not isinstance(message, dict) or message.get("role", "assistant") != "assistant":
            raise TypeError(f"tool_format must return an assistant message (a dict), got {message!r}")
        return {"content": "", **message, "role": "assistant"}


@dataclass(kw_only=True, slots=True, frozen=True)
class PlainFormat:
    """No calls: the answer is text, perhaps with thinking before it."""

    name: str = "plain"

    def parse(self, text: str, *, prefix: str, tools: Sequence[ToolSchema]) -> Message:
        thinking, content = split_thinking(text, prefix)
        return make_message(content, thinking, [], [])


_DECODER = json.JSONDecoder()


def _json_end(text: str, start: int) -> int | None:
    """Where the JSON value that begins at `start` ends; None when there is no complete one."""
    try:
        return _DECODER.raw_decode(text, start)[1]
    except (ValueError, RecursionError):
        return None


def _skip(text: str, start: int, characters: str = " \t\r\n") -> int:
    while start < len(text) and text[start] in characters:
        start += 1
    return start


_TOOL_CALL = re.compile(r"</?tool_call>")


def _hermes_spans(text: str) -> Iterator[Span]:
    """`<tool_call>` JSON `</tool_call>`; markers within a JSON string are its text, and end nothing."""
    opening, closing = "<tool_call>", "</tool_call>"
    start = text.find(opening)
    while start >= 0:
        first = _skip(text, start + len(opening))
        marker = _TOOL_CALL.search(text, _json_end(text, first) or first)
        stop = marker.start() if marker else len(text)
        end = marker.end() if marker and marker[0] == closing else stop
        yield Span(start=start, end=end, payload=text[first:stop].strip())
        start = text.find(opening, end)


_PYTHON_TAG = "<|python_tag|>"
_CALL_KEY = re.compile(r'"(name|parameters)"\s*:')


def _llama_spans(text: str) -> Iterator[Span]:
    """The answer is one JSON object with a name and parameters, or several, separated by semicolons or white space.

    They begin the answer, or follow `<|python_tag|>`. An object that has neither key is an answer in JSON, no call.
    """
    start = max(text.find(_PYTHON_TAG), 0)
    first = _skip(text, start + len(_PYTHON_TAG) if text.startswith(_PYTHON_TAG, start) else start)
    while first < len(text) and text[first] == "{":
        complete = _json_end(text, first)
        end = len(text) if complete is None else complete
        if not _CALL_KEY.search(text, first, end):
            return
        yield Span(start=start, end=end, payload=text[first:end])
        start = end
        first = _skip(text, end, "; \t\r\n")
        if text.startswith(_PYTHON_TAG, first):
            first = _skip(text, first + len(_PYTHON_TAG))


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
    payload="{name: name, arguments: not_null(parameters, arguments)}",
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
        if reads_probe(candidate.parse(render_call(), prefix="", tools=())):
            return candidate, f"the template's markers {list(candidate.markers)} and a call it rendered"
        looked_for.append(f"{candidate.name} (it does not read the call that the template renders)")
    return None, "looked for " + ", ".join(looked_for)


def reads_probe(message: Message) -> bool:
    """Whether the message is nothing but a call like `PROBE_CALL`."""
    calls = [call["function"] for call in message.get("tool_calls", [])]
    return calls == [PROBE_CALL["function"]] and "malformed" not in message


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
