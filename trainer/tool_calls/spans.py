"""Spans: where the calls stand in the text of an answer, and their payloads."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from .payload_readers import Reader, json_payload, python_calls, python_tag_call
from .value_readers import shorten, skip_space


@dataclass(kw_only=True, slots=True, frozen=True)
class Span:
    """Text that looks like one or several calls, with their payload or the error that makes it malformed."""

    start: int
    end: int
    payload: Any = None
    error: str = ""


Spans = Callable[[str], Iterator[Span]]
"""Cuts the calls out of a text, in order."""


def tagged(
    opening: str | re.Pattern[str],
    closing: str,
    reader: Reader,
    *,
    optional: str = "",
    begins: str = "",
    ends: str = "",
) -> Spans:
    """Cut out calls between two markers; markers within a string of the payload are text, and end nothing.

    Args:
        opening: Opens a call; a text, or a regular expression.
        closing: Closes it; may be missing before the next call and at the end of the answer. Empty if the format has no
            closing marker.
        reader: Reads the payload between them.
        optional: A regular expression of text that may stand between the payload and the closing marker.
        begins: For payloads whose texts are not escaped: a regular expression of how a call begins. A payload that
            holds that is malformed: a call that was cut looks the same as a text about calls.
        ends: The end of a call, if that is not the closing marker; the call behind it is read by itself.
    """
    return _Tagged(opening, closing, reader, optional, begins, ends or closing).spans


class _Tagged:
    """Calls between two markers; see `tagged`."""

    def __init__(
        self, opening: str | re.Pattern[str], closing: str, reader: Reader, optional: str, begins: str, ends: str
    ) -> None:
        self._opens = re.compile(re.escape(opening)) if isinstance(opening, str) else opening
        self._closing, self._ends, self._reader = closing, ends, reader
        self._markers = re.compile("|".join([self._opens.pattern, *([re.escape(ends)] if ends else [])]))
        self._between = re.compile(rf"\s*(?:{optional})?\s*")
        self._within = re.compile(rf"(?P<closed>{re.escape(ends)}\s*)?(?:{begins})") if begins else None

    def spans(self, text: str) -> Iterator[Span]:
        opened = self._opens.search(text)
        while opened:
            span = self._span(text, opened)
            yield span
            opened = self._opens.search(text, span.end)

    def _span(self, text: str, opened: re.Match[str]) -> Span:
        """Return the call whose opening marker was found."""
        start, first = opened.span()
        try:
            payload, stop = self._reader(text, first)
        except ValueError as problem:
            return self._malformed(text, start, max(first, start + 1), str(problem))  # an opening may be empty
        inner = self._within.search(text, first, stop) if self._within else None
        if inner:
            # Behind a closing marker stands the next call; without it, nothing here may be run.
            place = inner.start() if inner["closed"] else stop
            return self._malformed(text, start, place, f"another call begins within it, {shorten(inner[0])}")
        if not self._closing:
            return Span(start=start, end=stop, payload=payload)
        marker = self._markers.search(text, stop)
        end = marker.start() if marker else len(text)
        behind = self._between.match(text, stop)
        if behind and behind.end() < end:
            error = f"not valid: {shorten(text[behind.end() : end])} follows the call"
            return self._malformed(text, start, stop, error)
        if marker and marker[0] == self._closing:
            end = marker.end()
        echo, body = skip_space(text, end), text[first:stop].strip()
        if body.endswith((")", "]", "}")) and text.startswith(body, echo):  # LFM2 may repeat a call behind its mark
            end = echo + len(body)
        return Span(start=start, end=end, payload=payload)

    def _malformed(self, text: str, start: int, place: int, error: str) -> Span:
        """Return a malformed call, up to the next marker from a place on.

        Where texts are not escaped and that marker opens a call, it may stand in a text: it is not run, either.
        """
        marker = self._markers.search(text, place)
        end = marker.start() if marker else len(text)
        if marker and marker[0] == self._ends:
            end = marker.end()
        elif marker and self._within:
            closed = text.find(self._ends, marker.start())
            end = len(text) if closed < 0 else closed + len(self._ends)
        return Span(start=start, end=end, error=error)


# Calls that no marker opens: the answer is a call, or begins with one.

_LLAMA3 = re.compile(r"<\|python_tag\|>")
_LLAMA4 = re.compile(r"<\|python_end\|>(?=\s*\{)")
_PYTHON_START = "<|python_start|>"
_CALL_KEY = re.compile(r'"(name|parameters)"\s*:')
_ARGUMENT_KEYS = frozenset({"parameters", "arguments"})
_BETWEEN = re.compile(r"[;\s]*+")
_CALL_LIST = re.compile(r"\[\s*[\w.\-]+\(")


def json_answer(text: str, tag: re.Pattern[str] = _LLAMA3) -> Iterator[Span]:
    """Cut out JSON objects with a name and parameters that begin the answer, separated by semicolons or white space.

    They may also follow a tag, and so may `name.call(key=value)`. An object without parameters that is more than a name
    is an answer in JSON, and no call.
    """
    start = first = skip_space(text, 0)
    begun = None if _is_call(text, first, tag) else tag.search(text)
    if begun:
        start, first = begun.start(), skip_space(text, begun.end())
    while begun or _is_call(text, first, tag):
        reader = json_payload if text.startswith("{", first) else python_tag_call
        span = _span(reader, text, start, first, _until(tag, text, first))
        yield span
        start = span.end
        first = _BETWEEN.match(text, start).end()  # type: ignore[union-attr]  # it matches anywhere
        begun = tag.match(text, first)
        first = skip_space(text, begun.end()) if begun else first


def _is_call(text: str, first: int, tag: re.Pattern[str]) -> bool:
    """Return whether an object begins here that has a call's keys, or would have if it went on."""
    if not text.startswith("{", first):
        return False
    try:
        payload, _ = json_payload(text, first)
    except ValueError:
        return bool(_CALL_KEY.search(text, first, _until(tag, text, first)))
    return not _ARGUMENT_KEYS.isdisjoint(payload) or payload.keys() == {"name"}


def _until(tag: re.Pattern[str], text: str, first: int) -> int:
    found = tag.search(text, first)
    return found.start() if found else len(text)


def llama4_answer(text: str) -> Iterator[Span]:
    """Cut out `[name(key=value), ...]` that begins the answer or follows `<|python_start|>`, or see `json_answer`."""
    start, first = 0, skip_space(text, 0)
    if not _CALL_LIST.match(text, first):
        start = text.find(_PYTHON_START)
        first = skip_space(text, start + len(_PYTHON_START))
    if start >= 0 and _CALL_LIST.match(text, first):
        yield _span(python_calls, text, start, first, len(text))
    else:
        yield from json_answer(text, _LLAMA4)


def _span(reader: Reader, text: str, start: int, first: int, stop: int) -> Span:
    """Return the call whose payload begins at `first`; it is malformed up to `stop` if it cannot be read."""
    try:
        payload, end = reader(text, first)
    except ValueError as problem:
        return Span(start=start, end=stop, error=str(problem))
    return Span(start=start, end=end, payload=payload)
