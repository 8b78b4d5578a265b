"""Tool-call formats: from the text that a model wrote to a message with tool calls.

A `TextFormat` is declarative: how its calls are cut out of the text and read, and a JMESPath expression that maps each
payload to `{name, arguments}`. The entries are in `families.py`.
"""

from __future__ import annotations

import re
import sys
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import jmespath
from jmespath.exceptions import JMESPathError

from ..envs.core import MalformedCall, Message, ToolCall, ToolSchema
from .answers import THINK, make_call, make_message, split_thinking
from .call_readers import Reader
from .literals import shorten, skip_space


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
        numbers: Where a template that counts calls by itself writes their numbers in results, as a regular expression.
            It counts from 0 in what is rendered here, so the ids are put there instead.
        result_roles: Roles that a tool's result may have; the first that the template renders is taken.
    """

    call_id: str = "call_{index}"
    allowed_ids: str = r"[\w.:\-]{1,128}"
    numbers: str = ""
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
    families: str = ""
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
    payload: str = "{name: name, arguments: not_null(arguments, parameters), id: id}"
    values: Literal["json", "text", "python"] = "json"
    thinking: tuple[str, str] = THINK
    wrappers: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        try:
            jmespath.compile(self.payload)
        except JMESPathError as error:
            raise ValueError(f"payload={self.payload!r} is no JMESPath expression: {error}") from None

    def parse(self, text: str, *, prefix: str, tools: Sequence[ToolSchema]) -> Message:
        for wrapper in self.wrappers:
            text = text.removeprefix(wrapper)
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
        content = "".join(without_ends(each, self.wrappers) for each in pieces)
        return make_message(content, thinking, calls, malformed)

    def _later_thoughts(self, text: str) -> tuple[list[str], str]:
        """Thoughts that do not begin the answer, and the rest: a call in them was thought of, and is not run.

        A closing marker without an opening one ends thoughts that began before. A marker within a call is its text.
        """
        opening, closing = self.thinking
        if closing not in text:
            return [], text
        calls = [(span.start, span.end) for span in self.spans(text) if not span.error]
        marks = re.finditer(f"{re.escape(opening)}|{re.escape(closing)}", text)
        outside = [mark for mark in marks if not _within(mark.start(), calls)]
        thoughts, rest, position = [], [], 0
        begun: int | None = 0  # the first closing marker may lack its opening one
        for mark in outside:
            if mark[0] == opening:
                begun = mark.start() if begun in (0, None) else begun
            elif begun is not None:
                thoughts.append(text[max(begun, position) : mark.start()].removeprefix(opening).strip("\n"))
                rest.append(text[position:begun])
                position, begun = mark.end(), None
        return thoughts, "".join([*rest, text[position:]]).lstrip("\n") if thoughts else text

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


def _within(place: int, stretches: Sequence[tuple[int, int]]) -> bool:
    index = bisect_right(stretches, (place, sys.maxsize)) - 1
    return index >= 0 and place < stretches[index][1]


def without_ends(text: str, markers: Sequence[str]) -> str:
    """A text without the markers that it begins or ends with, and the white space around those."""
    start, end = 0, len(text)
    while marker := next((each for each in markers if text.startswith(each, skip_space(text, start))), None):
        start = skip_space(text, start) + len(marker)
    trimmed = len(text.rstrip())
    while marker := next((each for each in markers if text.endswith(each, start, trimmed)), None):
        end = trimmed = trimmed - len(marker)
        while trimmed > start and text[trimmed - 1].isspace():
            trimmed -= 1
    return text[start:end]


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
    ends = ends or closing
    markers = re.compile("|".join([opens.pattern, re.escape(ends)] if ends else [opens.pattern]))
    within = rf"(?P<closed>{re.escape(ends)}\s*)?(?:{begins})"
    cutter = _Cutter(
        closing=closing,
        ends=ends,
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
    ends: str
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
        """What cannot be read, up to the next marker from a place on.

        Where texts are not escaped and that marker opens a call, it may stand in a text: it is not run, either.
        """
        marker = self.markers.search(text, place)
        if self.within and marker and marker[0] != self.ends:
            closed = text.find(self.ends, marker.start())
            end = len(text) if closed < 0 else closed + len(self.ends)
            return Span(start=start, end=end, error=error)
        stop = marker.start() if marker else len(text)
        end = marker.end() if marker and marker[0] == self.ends else stop
        return Span(start=start, end=end, error=error)
