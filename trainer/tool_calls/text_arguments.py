"""Readers of calls whose arguments are text between tags, which escape nothing."""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from .payload_readers import Reader
from .spans import Spans, tagged
from .value_readers import Found, next_end, read_json, reading_error, skip_space


@dataclass(kw_only=True, slots=True, frozen=True)
class _Marks:
    """How a format writes a call whose arguments are text."""

    opening: re.Pattern[str]  # group `name`
    argument: re.Pattern[str]  # group `key`, and perhaps `json`, see `xml_call`; the value begins behind it
    value_end: re.Pattern[str]  # the mark behind a value, where it cannot be text of the value
    value_close: str
    lost_end: re.Pattern[str]  # matches the empty text at the end of a value whose mark is missing
    strict: bool  # a call without such a mark is malformed
    call_end: re.Pattern[str]
    call_close: str
    newlines: bool  # one newline at either end of a value belongs to the format

    def read(self, text: str, start: int) -> Found:
        first = skip_space(text, start)
        opening = self.opening.match(text, first)
        name = _unquoted(opening["name"]) if opening else ""
        if not opening or not name:
            raise reading_error(text, first, "the name of a tool")
        values, end = self._values(text, opening.end())
        # The text is copied only here: failed readings would copy the same text again and again.
        arguments = {key: self._value(text[begin:stop], is_json) for key, begin, stop, is_json in values}
        return {"name": name, "arguments": arguments}, end

    def _values(self, text: str, start: int) -> tuple[list[tuple[str, int, int, bool]], int]:
        """Return each argument's key, the place of its value and whether that is JSON; and where the call ends."""
        dead, values, passed = _dead_ends(self, text), [], []
        position = skip_space(text, start)
        try:
            while not (end := self.call_end.match(text, position)):
                if position in dead:
                    raise ValueError(dead[position])
                passed.append(position)
                argument = self.argument.match(text, position)
                if not argument:
                    raise reading_error(text, position, f"an argument or {self.call_close}")
                found = self._value_end(text, argument.end())
                if found is None:
                    raise ValueError(f"the call is cut off: {argument['key']!r} has no {self.value_close}")
                is_json = argument.groupdict().get("json") is not None
                values.append((_unquoted(argument["key"]), argument.end(), found[0], is_json))
                position = skip_space(text, found[1])
        except ValueError as error:
            dead.update(dict.fromkeys(passed, str(error)))
            raise
        return values, end.end()

    def _value_end(self, text: str, start: int) -> tuple[int, int] | None:
        """Return the end of a value, and of its mark, which may be missing. None if the call was cut."""
        closed = next_end(text, self.value_end, start + len(self.value_close))
        lost = next_end(text, self.lost_end, start)
        if lost is None or (closed is not None and closed <= lost):
            return None if closed is None else (closed - len(self.value_close), closed)
        # A mark within the value, even a broken one, would mean that the syntax behind that mark is broken.
        mark = next_end(text, re.compile(re.escape(self.value_close[:-1])), start)
        return None if self.strict or (mark is not None and mark <= lost) else (lost, lost)

    def _value(self, text: str, is_json: bool) -> Any:
        if is_json:
            with suppress(ValueError):  # it stays text, which the tool's schema may tell how to read
                return read_json(text)
        return text.removeprefix("\n").removesuffix("\n") if self.newlines else text


@lru_cache(maxsize=16)
def _dead_ends(marks: _Marks, text: str) -> dict[int, str]:
    """Return the places from which the rest of a call cannot be read, and why."""
    return {}


def _unquoted(name: str) -> str:
    name = name.strip()
    quoted = len(name) > 1 and name[0] == name[-1] and name[0] in "'\""
    return name[1:-1] if quoted else name


def xml_call(
    name: str, argument: str, closings: tuple[str, str, str], *, begins: str, newlines: bool = False
) -> Reader:
    """Return a reader of tags around the call and around each argument, whose value is text.

    A closing tag within a value ends it only where another argument or the call's end follows. It may be missing where
    the next argument stands on a line of its own, and where nothing follows the call but another one.

    Args:
        name: A regular expression of the opening tag with the group `name`; quotes around the name are taken off.
        argument: A regular expression of an argument's opening tag with the group `key`, and perhaps `json`, which
            matches where the value is JSON.
        closings: The marks that end an argument and a call, and the mark that the format writes behind the call; the
            call's own may be missing right before that.
        begins: A regular expression of how the next call begins.
        newlines: Whether the format writes a newline before and behind each value.
    """
    argument_close, call_close, outer_close = closings
    call_end = f"{re.escape(call_close)}|(?={re.escape(outer_close)})"
    outer = rf"(?:{re.escape(outer_close)}\s*+)"
    behind = rf"(?:{re.escape(call_close)}\s*+{outer}?|{outer})(?:\Z|{begins})"
    return _Marks(
        opening=re.compile(name),
        argument=re.compile(argument),
        lost_end=re.compile(rf"(?=(?<!>)\n[ \t]*{argument}|\n?{behind})"),
        strict=False,
        value_end=re.compile(rf"{re.escape(argument_close)}(?=\s*(?:{argument}|{call_end}|\Z))"),
        value_close=argument_close,
        call_end=re.compile(call_end),
        call_close=call_close,
        newlines=newlines,
    ).read


def xml_calls(
    opening: str | re.Pattern[str],
    name: str,
    argument: str,
    closings: tuple[str, str, str],
    *,
    begins: str,
    shared: bool = False,
    newlines: bool = False,
) -> Spans:
    """Cut out calls between an opening mark and the last of `closings`, which all calls may share; see `xml_call`."""
    reader = xml_call(name, argument, closings, begins=begins, newlines=newlines)
    if shared:
        return tagged(opening, "", reader, begins=begins, ends=closings[1])
    return tagged(opening, closings[2], reader, begins=begins)


def argument_pairs_call(key: str, value: str, *, outer_close: str = "</tool_call>") -> Reader:
    """Return a reader of a name, and keys and values between tags of their own; it ends before `outer_close`.

    Args:
        key: The name of the tags around keys.
        value: The name of the tags around values.
        outer_close: The mark behind the call; without it the call was cut.
    """
    argument = rf"<{key}>(?P<key>[^<\n]{{1,256}})</{key}>\s*<{value}>"
    return _Marks(
        opening=re.compile(r"(?P<name>[^<\n]{1,256})"),
        argument=re.compile(argument),
        lost_end=re.compile(rf"(?=(?<!>)\n[ \t]*{argument})"),
        strict=True,  # the format has no other mark that tells a whole call from one that was cut
        value_end=re.compile(rf"</{value}>(?=\s*(?:<{key}>|{re.escape(outer_close)}|\Z))"),
        value_close=f"</{value}>",
        call_end=re.compile(f"(?={re.escape(outer_close)})"),
        call_close=outer_close,
        newlines=False,
    ).read
