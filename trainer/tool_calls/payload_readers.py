"""Readers of tool calls: from a text and a place in it to the payload that begins there, and where that ends.

A reader skips white space, and raises a ValueError if there is no complete payload. A caller may try it at every
opening of a hostile text; `value_readers.py` says how that stays linear.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from .literals import BraceLiterals, PythonLiterals
from .value_readers import Found, read_json_at, reading_error, shorten, skip_space

Reader = Callable[[str, int], Found]

_LONGEST_HEADER = 512  # characters; so that a hostile text without the header's end is not searched to its own end
_NAME = r"[\w.\-]{1,256}"


# JSON.


def json_payload(text: str, start: int) -> Found:
    """Read a JSON object or array."""
    payload, end = read_json_at(text, start)
    if not isinstance(payload, dict | list):
        raise ValueError(f"a tool call must be a JSON object or array, got {shorten(payload)}")
    return payload, end


def json_or(reader: Reader) -> Reader:
    """Return a reader of JSON where an object or a list of objects begins, and of other calls by `reader`."""
    return lambda text, start: (json_payload if _JSON.match(text, start) else reader)(text, start)


_JSON = re.compile(r"\s*(?:\[\s*)?\{")


def named_json(header: str) -> Reader:
    """Return a reader of a header that names the tool, and the arguments as a JSON object after it.

    Args:
        header: A regular expression with the group `name`, and perhaps `id`.
    """
    pattern = re.compile(header)

    def read(text: str, start: int) -> Found:
        first = skip_space(text, start)
        match = pattern.match(text, first, first + _LONGEST_HEADER)
        name = match["name"].strip() if match else ""
        if not match or not name:
            raise reading_error(text, first, "the name of a tool")
        arguments, end = read_json_at(text, match.end())
        if not isinstance(arguments, dict | str):  # a text may hold the object, see `read_arguments`
            raise ValueError(f"the arguments of {name!r} must be a JSON object, got {shorten(arguments)}")
        return {"name": name, "id": match.groupdict().get("id"), "arguments": arguments}, end

    return read


# Python calls.


class _Calls(PythonLiterals):
    """`name(key=value)`."""

    def call(self, start: int) -> Found:
        match = _CALL.match(self.text, start)
        if not match:
            raise reading_error(self.text, start, "a name and '('")
        arguments, end = self.items(match.end(), "arguments)", self._argument)
        return {"name": match["name"], "arguments": dict(arguments)}, end

    def _argument(self, start: int) -> Found:
        match = _ARGUMENT.match(self.text, start)
        if not match:
            raise reading_error(self.text, start, "a key and '='")
        first = match.end()
        is_text = self.text.startswith(("'", '"'), first)
        value, end = self.quoted(first, _AFTER_ARGUMENT) if is_text else self.json_or_value(first)
        return (match["key"], value), end


_CALL = re.compile(rf"(?P<name>{_NAME})\s*\(")
_ARGUMENT = re.compile(rf"(?P<key>{_NAME})\s*=\s*")
_AFTER_ARGUMENT = rf"\s*(?:,\s*{_NAME}\s*[=(]|,?\s*\)(?![\w'\"]))"


def python_calls(text: str, start: int) -> Found:
    """Read `[name(key=value, ...), other()]`, or one call without brackets; the payload is a list."""
    first = skip_space(text, start)
    reader = _Calls(text)
    if not text.startswith("[", first):
        call, end = reader.whole(lambda: reader.call(first))
        return [call], end
    calls, end = reader.whole(lambda: reader.items(first + 1, "calls]", reader.call))
    if not calls:
        raise ValueError("expected a call, got an empty list")
    return calls, end


def python_lines(text: str, start: int) -> Found:
    """Read `name(key=value)` calls, each on a line of its own; the payload is a list."""
    payload, position = [], skip_space(text, start)
    while not payload or _CALL.match(text, position):
        calls, end = python_calls(text, position)
        payload += calls
        position = skip_space(text, end)
    return payload, position


def python_tag_call(text: str, start: int) -> Found:
    """Read `name.call(key=value, ...)`."""
    [call, *others], end = python_calls(text, start)
    name = call["name"].removesuffix(".call")
    if others or name in ("", call["name"]):
        raise ValueError(f"expected `name.call(...)`, got {shorten(text[start : start + 30])}")
    return {**call, "name": name}, end


# Braces.


def brace_call(quote: str = '<|"|>') -> Reader:
    """Return a reader of `call:NAME{key:value,...}`.

    Args:
        quote: The mark before and behind each string.
    """
    opening = re.compile(r"call:\s*(?P<name>[^\s{}:<>]{1,256})\s*\{")

    def read(text: str, start: int) -> Found:
        first = skip_space(text, start)
        match = opening.match(text, first)
        if not match:
            raise reading_error(text, first, "`call:`, the name of a tool and '{'")
        reader = BraceLiterals(text, quote)
        arguments, end = reader.whole(lambda: reader.object(match.end()))
        return {"name": match["name"], "arguments": arguments}, end

    return read
