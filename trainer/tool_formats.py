"""Tool-call formats: from the text that a model wrote to a message with tool calls.

A `TextFormat` is declarative: how its calls are cut out of the text and read, and a JMESPath expression that maps each
payload to `{name, arguments}`. The entries are in `families.py`.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import jmespath

from ..envs.core import MalformedCall, Message, ToolCall, ToolSchema
from .answers import THINK, make_call, make_message, split_thinking
from .call_readers import Reader
from .literals import shorten


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
            cannot be read. A call has an `id` only if the model wrote one. Never raises on what a model may write.
        """
        ...


@dataclass(kw_only=True, slots=True, frozen=True)
class Span:
    """A stretch of text that claims to be a call, or a list of calls: what it says, or why it cannot be read."""

    start: int
    end: int
    payload: Any = None
    error: str = ""


_CALL_KEYS = {"name", "tool_name", "arguments", "parameters", "id", "tool_call_id", "type"}
Spans = Callable[[str], Iterator[Span]]
"""Cuts the calls out of a text, in order."""


@dataclass(kw_only=True, slots=True, frozen=True)
class Conventions:
    """What a family's templates ask of calls and results, beside the syntax.

    Attributes:
        call_id: The id of a call to which the model gave none, with `{name}` and `{index}` (within the episode).
        allowed_ids: Ids that the templates take, as a regular expression; others are replaced.
        numbered: The template counts the calls of an episode by itself, and an id is such a number.
        result_roles: Roles that a tool's result may have; the first that the template renders is taken.
    """

    call_id: str = "call_{index}"
    allowed_ids: str = r"[\w.:\-]{1,128}"
    numbered: bool = False
    result_roles: tuple[str, ...] = ("tool",)


@dataclass(kw_only=True, slots=True, frozen=True)
class KnownFormat(ABC):
    """What is declared of every format that is recognised from a chat template.

    Attributes:
        name: As in `tool_format=`.
        families: The models that use it, for people.
        markers: Texts that all occur in the source of the chat templates of this format (of several in a tuple, one
            does); without any it is only given by name.
        end_tokens: Tokens that end a turn in these families, beside those that the tokenizer and the model tell.
        conventions: What the templates ask of calls and results.
    """

    name: str
    families: str
    markers: tuple[str | tuple[str, ...], ...] = ()
    end_tokens: tuple[str, ...] = ()
    conventions: Conventions = Conventions()

    @abstractmethod
    def parse(self, text: str, *, prefix: str, tools: Sequence[ToolSchema]) -> Message:
        """The assistant message that this text means; see `ToolFormat`."""

    def missing_marker(self, source: str) -> str | None:
        """A marker that a template's source lacks."""
        for marker in self.markers:
            choices = (marker,) if isinstance(marker, str) else marker
            if not any(each in source for each in choices):
                return " or ".join(map(repr, choices))
        return None


@dataclass(kw_only=True, slots=True, frozen=True)
class TextFormat(KnownFormat):
    """A format whose calls stand within the text of an answer.

    Attributes:
        spans: Cuts the calls out of the text.
        payload: JMESPath: a call's payload -> `{name, arguments}`, and `id` where the model writes one.
        values: The arguments are JSON, text only (XML), or may be Python literals.
        thinking: The markers around thoughts.
        wrappers: Markers around calls or content that say nothing themselves.
    """

    spans: Spans
    payload: str = "{name: name, arguments: arguments, id: id}"
    values: Literal["json", "text", "python"] = "json"
    thinking: tuple[str, str] = THINK
    wrappers: tuple[str, ...] = ()

    def parse(self, text: str, *, prefix: str, tools: Sequence[ToolSchema]) -> Message:
        for wrapper in self.wrappers:
            text = text.removeprefix(wrapper)
        thinking, text = split_thinking(text, prefix, self.thinking)
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
        content = self._without_wrappers("".join([*pieces, text[position:]]))
        return make_message(content, thinking, calls, malformed)

    def _read(self, span: Span, tools: Sequence[ToolSchema]) -> tuple[list[ToolCall], list[str]]:
        """The calls of a span, and what is wrong with those that cannot be read."""
        if span.error:
            return [], [span.error]
        payloads = span.payload if isinstance(span.payload, list) else [span.payload]
        calls: list[ToolCall] = []
        errors = [] if payloads else ["a list of tool calls without a call"]
        for each in payloads:
            try:
                mapped = self._mapped(each)
                textual, python = self.values == "text", self.values == "python"
                calls.append(make_call(mapped, tools=tools, python=python, textual=textual))
            except ValueError as error:
                errors.append(str(error))
        return calls, errors

    def _mapped(self, payload: Any) -> Any:
        """`{name, arguments}` of a payload.

        Raises:
            ValueError: there are no arguments, but something that may have been meant as such.
        """
        if not isinstance(payload, dict):
            return payload
        mapped = jmespath.search(self.payload, payload)
        others = payload.keys() - _CALL_KEYS
        if mapped["arguments"] is None and others:
            raise ValueError(f"a tool call has no {sorted(others)}, but a name and arguments")
        return mapped

    def _without_wrappers(self, content: str) -> str:
        for wrapper in self.wrappers:
            content = content.replace(wrapper, "")
        return content


def tagged(
    opening: str | re.Pattern[str],
    closing: str,
    reader: Reader,
    *,
    optional: str = "",
    begins: str = "",
    ends: str = "",
) -> Spans:
    """Calls between an opening and a closing marker; markers within a string of the payload are text, and end nothing.

    Args:
        opening: Opens a call; a text, or a regular expression.
        closing: Closes it; may be missing where the next call or the end of the answer follows. Empty: there is none.
        reader: Reads what stands between them.
        optional: A regular expression of what may stand between the payload and the closing marker.
        begins: For payloads whose texts are not escaped: a regular expression of how a call begins. A payload that
            holds that is malformed, since nobody can tell a call that was cut from a text about calls.
        ends: What a call ends with, where that is not the closing marker; the call behind it is read by itself.
    """
    opens = re.compile(re.escape(opening)) if isinstance(opening, str) else opening
    markers = re.compile("|".join([opens.pattern, re.escape(closing)] if closing else [opens.pattern]))
    within = rf"(?P<closed>{re.escape(ends or closing)}\s*)?(?:{begins})"
    cutter = _Cutter(
        closing=closing,
        reader=reader,
        markers=markers,
        between=re.compile(rf"\s*(?:{optional})?\s*"),
        within=re.compile(within) if begins else None,
    )

    def spans(text: str) -> Iterator[Span]:
        opened = opens.search(text)
        while opened:
            span = cutter.span(text, opened)
            yield span
            opened = opens.search(text, span.end)

    return spans


@dataclass(kw_only=True, slots=True, frozen=True)
class _Cutter:
    """Cuts one call out of a text; see `tagged`."""

    closing: str
    reader: Reader
    markers: re.Pattern[str]
    between: re.Pattern[str]
    within: re.Pattern[str] | None

    def span(self, text: str, opened: re.Match[str]) -> Span:
        """The call whose opening marker was found."""
        start, first = opened.span()
        try:
            reading = self.reader(text, first)
        except ValueError as problem:
            return self._malformed(text, start, first, str(problem))
        inner = self.within.search(text, first, reading.end) if self.within else None
        if inner:
            # Behind a closing marker stands the next call; without it, nothing here may be run.
            place = inner.start() if inner["closed"] else reading.end
            return self._malformed(text, start, place, f"another call begins within it, {shorten(inner[0])}")
        if not self.closing:
            return Span(start=start, end=reading.end, payload=reading.payload)
        marker = self.markers.search(text, reading.end)
        stop = marker.start() if marker else len(text)
        behind = self.between.match(text, reading.end)
        if behind and behind.end() < stop:
            error = f"not valid: {shorten(text[behind.end() : stop])} follows the call"
            return self._malformed(text, start, reading.end, error)
        end = marker.end() if marker and marker[0] == self.closing else stop
        return Span(start=start, end=end, payload=reading.payload)

    def _malformed(self, text: str, start: int, place: int, error: str) -> Span:
        """What cannot be read, up to the next marker from a place on."""
        marker = self.markers.search(text, place)
        stop = marker.start() if marker else len(text)
        end = marker.end() if marker and marker[0] == self.closing else stop
        return Span(start=start, end=end, error=error)
