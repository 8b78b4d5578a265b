"""Tool-call formats: from the text that a model wrote to a message with tool calls.

A `TextFormat` is a declaration: a function that cuts the calls out of the text and reads them, and a JMESPath
expression that maps a payload to `{name, arguments}`. The entries are in `families.py`.
"""

from __future__ import annotations

import re
import sys
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import jmespath
from jmespath.exceptions import JMESPathError

from ...envs.core import MalformedCall, Message, ToolCall, ToolSchema
from .assistant_message import THINK, make_call, make_message, split_thinking
from .spans import Span, Spans
from .value_readers import skip_space


class ToolFormat(Protocol):
    """A reader of a model's answers."""

    def parse(self, text: str, *, prefix: str, tools: Sequence[ToolSchema]) -> Message:
        """Return the assistant message that this text means.

        Args:
            text: The model's text of this turn, without its end-of-turn token.
            prefix: The rendered text before it; a template may have begun the turn there (say with `<think>`).
            tools: The tools of the episode.

        Returns:
            `content`, `reasoning_content` where there is thinking, `tool_calls`, and `malformed` for calls that
            cannot be read. A call has an `id` only if the model wrote one. Never raises, whatever the model wrote.
        """
        ...


def parse_ended(found: ToolFormat, text: str, *, prefix: str, tools: Sequence[ToolSchema]) -> Message:
    """Parse an answer that the model ended by itself, perhaps within a thought that it never closed.

    Calls at the end of such a thought are read. Other calls in it may be mere thoughts of a call: they are malformed,
    so that the model gets an error. Otherwise the episode would end.
    """
    message = found.parse(text, prefix=prefix, tools=tools)
    thought = message.get("reasoning_content")
    closing = found.thinking[1] if isinstance(found, TextFormat) else THINK[1]
    if not thought or closing in text or message.keys() - {"role", "content", "reasoning_content"}:
        return message
    within = found.parse(thought, prefix="", tools=tools)
    calls, content = within.get("tool_calls", []), str(within.get("content"))
    if message.get("content") or not (calls or "malformed" in within):
        return message
    if "malformed" not in within and thought.startswith(content):
        return make_message("", content, calls, [])
    error = f"a call stands within a thought that was not closed; write {closing} before a call"
    return make_message("", None, [], [{"text": thought, "error": error}])


_CALL_KEYS = {"name", "tool_name", "arguments", "parameters", "id", "tool_call_id", "type"}


@dataclass(kw_only=True, slots=True, frozen=True)
class Conventions:
    """The form that a family's templates require of calls and results, beside the syntax.

    Attributes:
        call_id: The id of a call that has none, with `{name}` and `{index}` (within the episode).
        allowed_ids: A regular expression of the ids that the templates take; other ids are replaced.
        numbers: Some templates number tool results themselves. An observation is rendered alone, so the numbers would
            restart at 0. This regular expression finds the number to replace with the real call id.
        result_roles: Roles that a tool's result may have; the first that the template renders is taken.
    """

    call_id: str = "call_{index}"
    allowed_ids: str = r"[\w.:\-]{1,128}"
    numbers: str = ""
    result_roles: tuple[str, ...] = ("tool",)


@dataclass(kw_only=True, slots=True, frozen=True)
class KnownFormat(ABC):
    """The declaration of a format that is recognised from a chat template.

    Attributes:
        name: As in `tool_format=`.
        families: The models that use it, for people.
        markers: Texts that all occur in the source of the chat templates of this format; of the texts in a tuple, one
            is enough. A format without markers has to be given by name.
        end_tokens: Tokens that end a turn in these families, beside those that the tokenizer and the model name.
        conventions: The form that the templates require of calls and results.
    """

    name: str
    families: str = ""
    markers: tuple[str | tuple[str, ...], ...] = ()
    end_tokens: tuple[str, ...] = ()
    conventions: Conventions = Conventions()

    @abstractmethod
    def parse(self, text: str, *, prefix: str, tools: Sequence[ToolSchema]) -> Message:
        """Return the assistant message that this text means; see `ToolFormat`."""

    def missing_marker(self, source: str) -> str | None:
        """Return the first marker that a template's source lacks; None if it has all."""
        for marker in self.markers:
            choices = (marker,) if isinstance(marker, str) else marker
            if not any(choice in source for choice in choices):
                return " or ".join(map(repr, choices))
        return None


@dataclass(kw_only=True, slots=True, frozen=True)
class TextFormat(KnownFormat):
    """A format whose calls stand within the text of an answer.

    Attributes:
        spans: Cuts the calls out of the text.
        payload: JMESPath: a call's payload -> `{name, arguments}`, and `id` where the model writes one.
        values: The arguments are JSON, or text (XML), or may be Python literals.
        thinking: The markers around thoughts.
        wrappers: Markers around calls or content; they are removed.
    """

    spans: Spans
    payload: str = "{name: name, arguments: not_null(arguments, parameters), id: id}"
    values: Literal["json", "text", "python"] = "json"
    thinking: tuple[str, str] = THINK
    wrappers: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        try:
            jmespath.compile(self.payload)
        except JMESPathError as error:
            raise ValueError(f"payload={self.payload!r} is not a JMESPath expression: {error}") from None

    def parse(self, text: str, *, prefix: str, tools: Sequence[ToolSchema]) -> Message:
        text = self._unwrapped(text)
        thinking, text = split_thinking(text, prefix, self.thinking)
        thoughts, text = self._later_thoughts(text)
        if thoughts:
            thinking = "\n".join([*filter(None, [thinking]), *thoughts])
        calls: list[ToolCall] = []
        malformed: list[MalformedCall] = []
        pieces, position = [], 0
        for span in self.spans(text):
            pieces.append(text[position : span.start])
            position = span.end
            found, errors = self._read(span, tools)
            calls += found
            if errors:
                malformed.append({"text": text[span.start : span.end], "error": "; ".join(errors)})
        pieces.append(text[position:])
        content = "".join(_without_ends(piece, self.wrappers) for piece in pieces)
        return make_message(content, thinking, calls, malformed)

    def _unwrapped(self, text: str) -> str:
        """Return the answer without the wrappers that it begins with."""
        opening = self.thinking[0]
        while not text.startswith(opening) and (found := next(filter(text.startswith, self.wrappers), "")):
            text = text.removeprefix(found)
        return text

    def _later_thoughts(self, text: str) -> tuple[list[str], str]:
        """Return thoughts that do not begin the answer, and the rest of it. A call within a thought is not run.

        A closing marker without an opening one ends thoughts that began before, unless nothing follows it: then the
        model closed a thought twice, and the marker is dropped. A marker within a call is its text.
        """
        opening, closing = self.thinking
        if closing not in text:
            return [], text
        calls = [(span.start, span.end) for span in self.spans(text) if not span.error]
        marks = re.finditer(f"{re.escape(opening)}|{re.escape(closing)}", text)
        outside = [mark for mark in marks if not _within(mark.start(), calls)]
        thoughts, rest, position, last = [], [], 0, len(text.rstrip())
        begun: int | None = 0  # the first closing marker may lack its opening one
        for mark in outside:
            if mark[0] == opening:
                begun = mark.start() if begun in (0, None) else begun
            elif mark.end() >= last and (begun is None or not text.startswith(opening, begun)):
                return thoughts, "".join([*rest, text[position : mark.start()]]).lstrip("\n")
            elif begun is not None:
                thoughts.append(text[max(begun, position) : mark.start()].removeprefix(opening).strip("\n"))
                rest.append(text[position:begun])
                position, begun = mark.end(), None
        return thoughts, "".join([*rest, text[position:]]).lstrip("\n") if thoughts else text

    def _read(self, span: Span, tools: Sequence[ToolSchema]) -> tuple[list[ToolCall], list[str]]:
        """Return the calls of a span, and the errors of the calls that cannot be read."""
        if span.error:
            return [], [span.error]
        payloads = span.payload if isinstance(span.payload, list) else [span.payload]
        calls: list[ToolCall] = []
        errors = [] if payloads else ["a list of tool calls without a call"]
        textual, python = self.values == "text", self.values == "python"
        for payload in payloads:
            try:
                calls.append(make_call(self._mapped(payload), tools=tools, python=python, textual=textual))
            except ValueError as error:
                errors.append(str(error))
        return calls, errors

    def _mapped(self, payload: Any) -> Any:
        """Return `{name, arguments}` of a payload; raise a ValueError if other keys stand in place of the arguments."""
        if not isinstance(payload, dict):
            return payload  # `make_call` refuses it
        mapped = jmespath.search(self.payload, payload)
        others = payload.keys() - _CALL_KEYS
        if mapped["arguments"] is None and others:
            raise ValueError(f"a tool call has no {sorted(others)}, but a name and arguments")
        return mapped


def _within(place: int, stretches: Sequence[tuple[int, int]]) -> bool:
    index = bisect_right(stretches, (place, sys.maxsize)) - 1
    return index >= 0 and place < stretches[index][1]


def _without_ends(text: str, markers: Sequence[str]) -> str:
    """Return a text without the markers that it begins or ends with, and the white space around those."""
    start, end = 0, len(text)
    while marker := next((mark for mark in markers if text.startswith(mark, skip_space(text, start))), None):
        start = skip_space(text, start) + len(marker)
    trimmed = len(text.rstrip())
    while marker := next((mark for mark in markers if text.endswith(mark, start, trimmed)), None):
        end = trimmed = trimmed - len(marker)
        while trimmed > start and text[trimmed - 1].isspace():
            trimmed -= 1
    return text[start:end]
