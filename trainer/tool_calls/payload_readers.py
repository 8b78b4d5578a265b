"""Readers of what a tool call says: each reads one payload that begins at a place of the text.

A reader skips white space, and raises a ValueError if there is no complete payload. A caller may try it at every
opening of a hostile text; see `literals` for how that stays linear.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from .braces import brace_literals
from .literals import (
    Found,
    PythonLiterals,
    next_end,
    read_json_at,
    refuse_halves,
    shorten,
    skip_space,
)


@dataclass(kw_only=True, slots=True, frozen=True)
class Reading:
    """What a call says, and where it ends in the text."""

    payload: Any  # JSON-like: a dict or a list of dicts
    end: int


Reader = Callable[[str, int], Reading]

_LONGEST_HEADER = 512  # characters; so that a hostile text without the header's end is not searched to its own end
_NAME = r"[\w.\-]{1,256}"


def _error(text: str, position: int, expected: str) -> ValueError:
    if position >= len(text):
        return ValueError(f"the call is cut off: expected {expected}, got the end of the text")
    return ValueError(f"expected {expected}, got {shorten(text[position : position + 30])}")


# JSON.


def json_payload(text: str, start: int) -> Reading:
    """A JSON object or array."""
    payload, end = read_json_at(text, start)
    if not isinstance(payload, dict | list):
        raise ValueError(f"a tool call must be a JSON object or array, got {shorten(payload)}")
    return Reading(payload=payload, end=end)


def named_json(header: str) -> Reader:
    """A reader of a header that names the tool, and the arguments as a JSON object after it.

    Args:
        header: A regular expression with the group `name`, and perhaps `id`.
    """
    pattern = re.compile(header)

    def read(text: str, start: int) -> Reading:
        first = skip_space(text, start)
        match = pattern.match(text, first, first + _LONGEST_HEADER)
        name = match["name"].strip() if match else ""
        if not match or not name:
            raise _error(text, first, "the name of a tool")
        refuse_halves(text, first, match.end())
        arguments, end = read_json_at(text, match.end())
        if not isinstance(arguments, dict | str):  # a text may hold the object, see `read_arguments`
            raise ValueError(f"the arguments of {name!r} must be a JSON object, got {shorten(arguments)}")
        found = match.groupdict()
        identity = {"id": found["id"]} if found.get("id") is not None else {}
        return Reading(payload={"name": name, **identity, "arguments": arguments}, end=end)

    return read


# Arguments that are text between marks.


@dataclass(kw_only=True, slots=True, frozen=True)
class _Marks:
    """How a format writes a call whose arguments are text."""

    opening: re.Pattern[str]  # group `name`
    argument: re.Pattern[str]  # group `key`; the value begins behind it
    value_end: re.Pattern[str]  # the mark behind a value, where it can be nothing else
    value_close: str
    next_line: re.Pattern[str]  # an argument on a line of its own, which no value holds but one that has lost its end
    call_end: re.Pattern[str]
    call_close: str
    newlines: bool  # one newline at either end of a value belongs to the format

    def read(self, text: str, start: int) -> Reading:
        first = skip_space(text, start)
        opening = self.opening.match(text, first)
        name = _unquoted(opening["name"]) if opening else ""
        if not opening or not name:
            raise _error(text, first, "the name of a tool")
        refuse_halves(text, first, opening.end())
        values, end = self._values(text, opening.end())
        # The text is copied only here: failed readings would copy the same text again and again.
        arguments = {key: self._value(text[begin:stop]) for key, begin, stop in values}
        return Reading(payload={"name": name, "arguments": arguments}, end=end)

    def _values(self, text: str, start: int) -> tuple[list[tuple[str, int, int]], int]:
        """The keys, each with the place of its value; and where the call ends."""
        dead, values, passed = _dead_ends(self, text), [], []
        position = skip_space(text, start)
        try:
            while not (end := self.call_end.match(text, position)):
                if position in dead:
                    raise ValueError(dead[position])
                passed.append(position)
                argument = self.argument.match(text, position)
                if not argument:
                    raise _error(text, position, f"an argument or {self.call_close}")
                stop = next_end(text, self.value_end, argument.end() + len(self.value_close))
                inner = next_end(text, self.next_line, argument.end() + 1)
                if stop is None or (inner is not None and inner <= stop):
                    raise ValueError(f"the call is cut off: {argument['key']!r} has no {self.value_close}")
                refuse_halves(text, position, stop)
                values.append((_unquoted(argument["key"]), argument.end(), stop - len(self.value_close)))
                position = skip_space(text, stop)
        except ValueError as error:
            dead.update(dict.fromkeys(passed, str(error)))
            raise
        return values, end.end()

    def _value(self, text: str) -> str:
        return text.removeprefix("\n").removesuffix("\n") if self.newlines else text


@lru_cache(maxsize=16)
def _dead_ends(marks: _Marks, text: str) -> dict[int, str]:
    """Places from which the rest of a call cannot be read, and why."""
    return {}


def _unquoted(name: str) -> str:
    name = name.strip()
    quoted = len(name) > 1 and name[0] == name[-1] and name[0] in "'\""
    return name[1:-1] if quoted else name


def xml_call(
    opening: str,
    parameter: str,
    *,
    parameter_close: str = "</parameter>",
    call_close: str = "</function>",
    outer_close: str = "</tool_call>",
    newlines: bool = False,
) -> Reader:
    """A reader of tags around the call and around each argument, whose value is text.

    A closing tag within a value ends it only where another argument or the call's end follows.

    Args:
        opening: A regular expression with the group `name`; quotes around the name are taken off.
        parameter: A regular expression with the group `key`.
        parameter_close: Ends a value.
        call_close: Ends the call; it may be missing right before `outer_close`.
        outer_close: What the format writes behind the call.
        newlines: Whether the format writes a newline before and behind each value.
    """
    call_end = f"{re.escape(call_close)}|(?={re.escape(outer_close)})"
    marks = _Marks(
        opening=re.compile(opening),
        argument=re.compile(parameter),
        next_line=re.compile(rf"(?<!>)\n[ \t]*{parameter}"),
        value_end=re.compile(rf"{re.escape(parameter_close)}(?=\s*(?:{parameter}|{call_end}|\Z))"),
        value_close=parameter_close,
        call_end=re.compile(call_end),
        call_close=call_close,
        newlines=newlines,
    )
    return marks.read


def argument_pairs_call(key: str, value: str, *, outer_close: str = "</tool_call>") -> Reader:
    """A reader of a name, and keys and values between tags of their own; it ends before `outer_close`.

    Args:
        key: The name of the tags around keys.
        value: The name of the tags around values.
        outer_close: What the format writes behind the call; without it the call was cut.
    """
    argument = rf"<{key}>(?P<key>[^<\n]{{1,256}})</{key}>\s*<{value}>"
    marks = _Marks(
        opening=re.compile(r"(?P<name>[^<\n]{1,256})"),
        argument=re.compile(argument),
        next_line=re.compile(rf"(?<!>)\n[ \t]*{argument}"),
        value_end=re.compile(rf"</{value}>(?=\s*(?:<{key}>|{re.escape(outer_close)}|\Z))"),
        value_close=f"</{value}>",
        call_end=re.compile(f"(?={re.escape(outer_close)})"),
        call_close=outer_close,
        newlines=False,
    )
    return marks.read


xml_parameters = xml_call(r"<function=(?P<name>[^<>\n]{1,256})>", r"<parameter=(?P<key>[^<>\n]{1,256})>", newlines=True)
argument_pairs = argument_pairs_call("arg_key", "arg_value")


# Python calls.


class _Calls(PythonLiterals):
    """`name(key=value)`."""

    def call(self, start: int) -> Found:
        match = _CALL.match(self.text, start)
        if not match:
            raise self.error(start, "a name and '('")
        arguments, end = self.items(match.end(), "arguments)", self._argument)
        return {"name": match["name"], "arguments": dict(arguments)}, end

    def _argument(self, start: int) -> Found:
        match = _ARGUMENT.match(self.text, start)
        if not match:
            raise self.error(start, "a key and '='")
        first = match.end()
        quoted = self.text[first : first + 1] in ("'", '"')
        value, end = self.string(first, _AFTER_ARGUMENT) if quoted else self.json_or_value(first)
        return (match["key"], value), end


_CALL = re.compile(rf"(?P<name>{_NAME})\s*\(")
_ARGUMENT = re.compile(rf"(?P<key>{_NAME})\s*=\s*")
_AFTER_ARGUMENT = rf"\s*(?:,\s*{_NAME}\s*[=(]|,?\s*\)(?![\w'\"]))"


def python_calls(text: str, start: int) -> Reading:
    """`[name(key=value, ...), other()]`, or one call without brackets; the payload is a list."""
    first = skip_space(text, start)
    reader = _Calls(text)
    if not text.startswith("[", first):
        call, end = reader.whole(lambda: reader.call(first))
        return Reading(payload=[call], end=end)
    payload, end = reader.whole(lambda: reader.items(first + 1, "calls]", reader.call))
    if not payload:
        raise ValueError("expected a call, got an empty list")
    return Reading(payload=payload, end=end)


def python_tag_call(text: str, start: int) -> Reading:
    """`name.call(key=value, ...)`."""
    reading = python_calls(text, start)
    call = reading.payload[0]
    if len(reading.payload) != 1 or not call["name"].endswith(".call") or call["name"] == ".call":
        raise ValueError(f"expected `name.call(...)`, got {shorten(text[start : start + 30])}")
    return Reading(payload={**call, "name": call["name"].removesuffix(".call")}, end=reading.end)


# Braces.


def brace_call(quote: str = '<|"|>') -> Reader:
    """A reader of `call:NAME{key:value,...}`.

    Args:
        quote: The mark before and behind each string.
    """
    literals = brace_literals(quote)
    opening = re.compile(r"call:\s*(?P<name>[^\s{}:<>]{1,256})\s*\{")

    def read(text: str, start: int) -> Reading:
        first = skip_space(text, start)
        match = opening.match(text, first)
        if not match:
            raise _error(text, first, "`call:`, the name of a tool and '{'")
        refuse_halves(text, first, match.end())
        reader = literals(text)
        arguments, end = reader.whole(lambda: reader.object(match.end()))
        return Reading(payload={"name": match["name"], "arguments": arguments}, end=end)

    return read
