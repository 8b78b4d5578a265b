"""Calls that no marker opens: the answer is a call, or begins with one."""

from __future__ import annotations

import re
from collections.abc import Iterator

from .payload_readers import json_payload, python_calls, python_tag_call
from .spans import Span
from .value_readers import skip_space

_PYTHON_TAG = "<|python_tag|>"
_PYTHON_START = "<|python_start|>"
_CALL_KEY = re.compile(r'"(name|parameters)"\s*:')
_ARGUMENT_KEYS = frozenset({"parameters", "arguments"})
_BETWEEN = re.compile(r"[;\s]*")
_CALL_LIST = re.compile(r"\[\s*[\w.\-]+\(")


def json_answer(text: str) -> Iterator[Span]:
    """JSON objects with a name and parameters that begin the answer, separated by semicolons or white space.

    They may also follow `<|python_tag|>`, and so may `name.call(key=value)`. An object without parameters that is more
    than a name is an answer in JSON, and no call.
    """
    start = 0
    first = skip_space(text, 0)
    if not text.startswith("{", first) or not _is_call(text, first):
        start = first = text.find(_PYTHON_TAG)
    while 0 <= first < len(text):
        tagged = text.startswith(_PYTHON_TAG, first)
        first = skip_space(text, first + len(_PYTHON_TAG)) if tagged else first
        if not tagged and not (text.startswith("{", first) and _is_call(text, first)):
            return
        span = _read(text, start, first)
        yield span
        start = span.end
        first = _BETWEEN.match(text, start).end()  # type: ignore[union-attr]  # it matches anywhere


def _read(text: str, start: int, first: int) -> Span:
    try:
        reading = (json_payload if text.startswith("{", first) else python_tag_call)(text, first)
    except ValueError as problem:
        following = text.find(_PYTHON_TAG, first)
        return Span(start=start, end=len(text) if following < 0 else following, error=str(problem))
    return Span(start=start, end=reading.end, payload=reading.payload)


def _is_call(text: str, first: int) -> bool:
    """Whether the object that begins here has a call's keys, or would have if it went on."""
    span = _read(text, first, first)
    if isinstance(span.payload, dict):
        return not _ARGUMENT_KEYS.isdisjoint(span.payload) or span.payload.keys() == {"name"}
    return bool(_CALL_KEY.search(text, first, span.end))


def python_answer(text: str) -> Iterator[Span]:
    """`[name(key=value), ...]` that begins the answer, or follows the `<|python_start|>` of Llama 4."""
    start, first = 0, skip_space(text, 0)
    if not _CALL_LIST.match(text, first):
        start = text.find(_PYTHON_START)
        first = skip_space(text, start + len(_PYTHON_START))
        if start < 0 or not _CALL_LIST.match(text, first):
            return
    try:
        reading = python_calls(text, first)
    except ValueError as problem:
        yield Span(start=start, end=len(text), error=str(problem))
    else:
        yield Span(start=start, end=reading.end, payload=reading.payload)


def llama4_answer(text: str) -> Iterator[Span]:
    """`[name(key=value), ...]`, or calls in JSON as Llama 4's own template writes them."""
    calls = list(python_answer(text))
    yield from calls or json_answer(text)
