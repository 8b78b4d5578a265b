"""Readers of calls whose arguments are text between tags, which escape nothing."""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from .payload_readers import Reader, Reading, reading_error
from .value_readers import next_end, read_json_at, refuse_halves, skip_space


@dataclass(kw_only=True, slots=True, frozen=True)
class _Marks:
    """How a format writes a call whose arguments are text.

    `argument` has the group `key`, and perhaps `json`, which matches where the value is JSON rather than text.
    """

    opening: re.Pattern[str]  # group `name`
    argument: re.Pattern[str]  # group `key`; the value begins behind it
    value_end: re.Pattern[str]  # the mark behind a value, where it can be nothing else
    value_close: str
    lost_end: re.Pattern[str]  # empty, where a value ends whose mark is missing
    strict: bool  # a call without such a mark is malformed
    call_end: re.Pattern[str]
    call_close: str
    newlines: bool  # one newline at either end of a value belongs to the format

    def read(self, text: str, start: int) -> Reading:
        first = skip_space(text, start)
        opening = self.opening.match(text, first)
        name = _unquoted(opening["name"]) if opening else ""
        if not opening or not name:
            raise reading_error(text, first, "the name of a tool")
        refuse_halves(text, first, opening.end())
        values, end = self._values(text, opening.end())
        # The text is copied only here: failed readings would copy the same text again and again.
        arguments = {key: self._value(text[begin:stop], is_json) for key, begin, stop, is_json in values}
        return Reading(payload={"name": name, "arguments": arguments}, end=end)

    def _values(self, text: str, start: int) -> tuple[list[tuple[str, int, int, bool]], int]:
        """The keys, each with the place of its value and whether that is JSON; and where the call ends."""
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
                stop = next_end(text, self.value_end, argument.end() + len(self.value_close))
                lost = next_end(text, self.lost_end, argument.end())
                is_lost = lost is not None and (stop is None or lost < stop)
                end_of_value = lost if is_lost else None if stop is None else stop - len(self.value_close)
                if end_of_value is None or (is_lost and not self._takes_lost(text, argument.end(), end_of_value)):
                    raise ValueError(f"the call is cut off: {argument['key']!r} has no {self.value_close}")
                stop = end_of_value if is_lost else end_of_value + len(self.value_close)
                refuse_halves(text, position, stop)
                is_json = argument.groupdict().get("json") is not None
                values.append((_unquoted(argument["key"]), argument.end(), end_of_value, is_json))
                position = skip_space(text, stop)
        except ValueError as error:
            dead.update(dict.fromkeys(passed, str(error)))
            raise
        return values, end.end()

    def _takes_lost(self, text: str, start: int, end: int) -> bool:
        """Whether a value may lack its mark: a mark within it would mean that the syntax behind that is broken."""
        mark = next_end(text, re.compile(re.escape(self.value_close[:-1])), start)  # a broken one, too
        return not self.strict and (mark is None or mark > end)

    def _value(self, text: str, is_json: bool) -> Any:
        if is_json:
            with suppress(ValueError):  # it stays text, which the tool's schema may tell how to read
                value, end = read_json_at(text, 0)
                return value if skip_space(text, end) == len(text) else text
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
    outer_open: str = r"<tool_call>\s*<function=",
    newlines: bool = False,
) -> Reader:
    """A reader of tags around the call and around each argument, whose value is text.

    A closing tag within a value ends it only where another argument or the call's end follows. It may be missing where
    the next argument stands on a line of its own, and where nothing follows the call but another one.

    Args:
        opening: A regular expression with the group `name`; quotes around the name are taken off.
        parameter: A regular expression with the group `key`, and perhaps `json` for values that are JSON.
        parameter_close: Ends a value.
        call_close: Ends the call; it may be missing right before `outer_close`.
        outer_close: What the format writes behind the call.
        outer_open: A regular expression of what it writes before the next one.
        newlines: Whether the format writes a newline before and behind each value.
    """
    call_end = f"{re.escape(call_close)}|(?={re.escape(outer_close)})"
    outer = rf"(?:{re.escape(outer_close)}\s*+)"
    behind = rf"(?:{re.escape(call_close)}\s*+{outer}?|{outer})(?:\Z|{outer_open})"
    next_line = rf"(?<!>)\n[ \t]*{parameter}"
    marks = _Marks(
        opening=re.compile(opening),
        argument=re.compile(parameter),
        lost_end=re.compile(rf"(?={next_line}|\n?{behind})"),
        strict=False,
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
        lost_end=re.compile(rf"(?=(?<!>)\n[ \t]*{argument})"),
        strict=True,  # the format has no other mark that tells a whole call from one that was cut
        value_end=re.compile(rf"</{value}>(?=\s*(?:<{key}>|{re.escape(outer_close)}|\Z))"),
        value_close=f"</{value}>",
        call_end=re.compile(f"(?={re.escape(outer_close)})"),
        call_close=outer_close,
        newlines=False,
    )
    return marks.read


xml_parameters = xml_call(r"<function=(?P<name>[^<>\n]{1,256})>", r"<parameter=(?P<key>[^<>\n]{1,256})>", newlines=True)
argument_pairs = argument_pairs_call("arg_key", "arg_value")
