"""Values as models write them into text: JSON, Python literals, and what other literals share with them.

A reader begins at a place of the text and returns the value and where it ends. A hostile text may hold ten thousand
openings, and readings that begin at different openings may run into the same value. A reading therefore first looks for
the end without making values, remembers what it learns about each place (`_remembered_ends`), and looks up the ends of
strings in an index. All attempts together take time in proportion to the text.
"""

from __future__ import annotations

import json
import math
import re
from bisect import bisect_left
from collections.abc import Callable
from functools import cache, lru_cache
from typing import Any, NoReturn

Found = tuple[Any, int]
"""A value, and where it ends."""


def skip_space(text: str, start: int) -> int:
    """The first place at or after `start` without white space."""
    return _SPACE.match(text, start).end()  # type: ignore[union-attr]


def next_end(text: str, pattern: re.Pattern[str], start: int) -> int | None:
    """Where the pattern's next match at or after `start` ends; all matches of a text are found once."""
    ends = _all_ends(pattern, text)
    index = bisect_left(ends, start)
    return ends[index] if index < len(ends) else None


def refuse_halves(text: str, start: int, end: int) -> None:
    """Raise a ValueError if there is half of a surrogate pair, which no UTF-8 text can hold."""
    found = next_end(text, _HALF, start + 1)
    if found is not None and found <= end:
        raise ValueError(f"half of a surrogate pair at place {found - 1}")


@lru_cache(maxsize=64)
def _all_ends(pattern: re.Pattern[str], text: str) -> list[int]:
    return [match.end() for match in pattern.finditer(text)]


_SPACE = re.compile(r"\s*")
_HALF = re.compile("[\ud800-\udfff]")
_WORD = re.compile(r"[A-Za-z_]\w{0,20}")
_NUMBER = re.compile(r"[+-]?(?:(?:0|[1-9][0-9]*)(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?(?![\w.])")
_WORDS = {"True": True, "true": True, "False": False, "false": False, "None": None, "null": None}


# JSON.


def read_json_at(text: str, start: int) -> Found:
    """The JSON value that begins at `start`, after white space.

    Raises:
        ValueError: there is none, or it holds a number that is not finite or half of a surrogate pair.
    """
    try:
        value, end = _decode(text, skip_space(text, start))
        json.dumps(value, ensure_ascii=False).encode()  # refuses half surrogate pairs
    except (ValueError, RecursionError, MemoryError) as error:
        raise ValueError(f"not valid JSON ({error})") from None
    return value, end


def _decode(text: str, start: int) -> Found:
    """Decode from windows that grow: an error counts the lines before it, and there may be ten thousand errors."""
    size = _WINDOW
    while True:
        window = text[start : start + size]
        whole = start + size >= len(text)
        try:
            value, length = _DECODER.raw_decode(window)
            if whole or length < len(window):  # else a number that the window cut, perhaps
                return value, start + length
        except json.JSONDecodeError as error:
            cut = error.msg.startswith("Unterminated string") or error.pos > len(window) - _LONGEST_TOKEN
            if whole or not cut:
                raise
        size *= 4


def _refuse_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is not a JSON number")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{shorten(text)} is too large a number")
    return value


def shorten(value: Any) -> str:
    """A value's `repr`, cut to about 60 characters."""
    text = repr(value[:80] if isinstance(value, str) else value)
    return text if len(text) <= 60 else text[:57] + "..."


_WINDOW = 4096
_LONGEST_TOKEN = 16  # characters, of what may fail because its end is missing: `-Infinity`, `\\ud83d\\ude00`
_DECODER = json.JSONDecoder(parse_constant=_refuse_constant, parse_float=_finite)


# What Python literals and braces have in common.


@lru_cache(maxsize=16)
def _remembered_ends(grammar: type, text: str) -> dict[tuple[int, str], int | str]:
    """For a place in a container and its kind: the end of that container, or why its rest cannot be read.

    Invariant: an entry depends on the text behind its place only, never on where a reading began. So a second reading
    that comes to a remembered place may jump to the end or fail at once, and all readings of a text together visit each
    place once for each kind. Only readings that look for the end use the memory; a reading that makes values (`whole`)
    runs once, over a stretch that is known to be complete.
    """
    return {}


class Literals:
    """Reads containers, numbers and words; the subclasses know strings and keys."""

    def __init__(self, text: str) -> None:
        self.text = text
        self._remembered = _remembered_ends(type(self), text)
        self._making = False  # whether values are wanted, not only the end

    def whole(self, read: Callable[[], Found]) -> Found:
        """What `read` returns; it is called once to see whether there is an end, and once to make the values.

        Raises:
            ValueError: there is no complete value.
        """
        try:
            read()
            self._making = True
            return read()
        except (RecursionError, MemoryError):
            raise ValueError("nested too deeply") from None
        finally:
            self._making = False

    def items(self, start: int, kind: str, read: Callable[[int], Found]) -> tuple[list[Any], int]:
        """What stands between `start` and the closing mark, which is the kind's last character; separated by commas.

        Args:
            start: The place behind the opening mark.
            kind: Names what is read; two ways to read the same place need two kinds.
            read: Reads one item.
        """
        found, passed = [], []
        try:
            position = skip_space(self.text, start)
            while not self.text.startswith(kind[-1], position):
                key = (position, kind)
                remembered = None if self._making else self._remembered.get(key)
                if isinstance(remembered, str):
                    raise ValueError(remembered)
                if remembered is not None:
                    position = remembered - 1
                    break
                passed.append(key)
                item, position = read(position)
                found.append(item)
                position = self._after_item(position, kind[-1])
        except (ValueError, RecursionError) as error:
            self._remembered.update(dict.fromkeys(passed, str(error)))
            raise
        self._remembered.update(dict.fromkeys(passed, position + 1))
        return found, position + 1

    def _after_item(self, position: int, close: str) -> int:
        position = skip_space(self.text, position)
        if self.text.startswith(",", position):
            return skip_space(self.text, position + 1)
        if self.text.startswith(close, position):
            return position
        raise self.error(position, f"',' or {close!r}")

    def error(self, position: int, expected: str) -> ValueError:
        if position >= len(self.text):
            return ValueError(f"cut off: expected {expected}, got the end of the text")
        return ValueError(f"expected {expected}, got {shorten(self.text[position : position + 30])}")

    def plain(self, start: int) -> Found:
        """A number, or a word such as `true`."""
        if number := _NUMBER.match(self.text, start):
            written = number[0]
            return (_finite(written) if set(written) & set(".eE") else int(written)), number.end()
        if (word := _WORD.match(self.text, start)) and word[0] in _WORDS:
            return _WORDS[word[0]], word.end()
        raise self.error(start, "a value")


# Python.


class PythonLiterals(Literals):
    """Strings with escapes in single or double quotes, lists, tuples and dicts; JSON too."""

    def json_or_value(self, start: int) -> Found:
        """JSON where it is that: its strings have other escapes."""
        if self.text.startswith(("[", "{"), start):
            try:
                return read_json_at(self.text, start)
            except ValueError:
                pass
        return self.value(start)

    def value(self, start: int) -> Found:
        opening = self.text[start : start + 1]
        if opening in ("'", '"'):
            return self.string(start, _AFTER_ITEM)
        if opening == "[":
            return self.items(start + 1, "list]", self.value)
        if opening == "{":
            found, end = self.items(start + 1, "dict}", self._member)
            return dict(found), end
        if opening == "(":
            found, end = self.items(start + 1, "tuple)", self.value)
            one = len(found) == 1 and not self.text[start : end - 1].rstrip().endswith(",")
            return (found[0] if one else found), end
        return self.plain(start)

    def string(self, start: int, follow: str) -> Found:
        """A string that ends at a quote which is not escaped and which `follow` follows.

        So a quote within the text that a model forgot to escape ends nothing.
        """
        quote = self.text[start] * (3 if self.text.startswith(self.text[start] * 3, start) else 1)
        first = start + len(quote)
        end = next_end(self.text, _string_end(quote, follow), first + len(quote))
        if end is None and len(quote) == 3:  # rather two quotes that begin a text
            quote, first = quote[0], start + 1
            end = next_end(self.text, _string_end(quote, follow), first + 1)
        if end is None:
            raise ValueError(f"the text that begins with {shorten(self.text[start : start + 30])} does not end")
        refuse_halves(self.text, first, end)
        return (unescape(self.text[first : end - len(quote)]) if self._making else ""), end

    def _member(self, start: int) -> Found:
        if self.text[start : start + 1] not in ("'", '"'):
            raise self.error(start, "a key in quotes")
        key, position = self.string(start, r"\s*:")
        value, end = self.value(skip_space(self.text, skip_space(self.text, position) + 1))
        return (key, value), end


_AFTER_ITEM = r"\s*(?:[,\])}]|\Z)"


@cache
def _string_end(quote: str, follow: str) -> re.Pattern[str]:
    return re.compile(rf"(?<!\\)(?:\\\\)*+{re.escape(quote)}(?={follow})")


_ESCAPES = re.compile(
    r"\\(?:(?P<one>[\\'\"abfnrtv\n])|x(?P<x>[0-9a-fA-F]{2})|U(?P<U>00(?:0[0-9a-fA-F]|10)[0-9a-fA-F]{4})"
    r"|(?P<pair>u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2})|u(?P<u>(?![dD][89a-fA-F])[0-9a-fA-F]{4})"
    r"|(?P<half>u[dD][89a-fA-F][0-9a-fA-F]{2})|(?P<octal>[0-7]{1,3}))"
)
_ONE = {"\\": "\\", "'": "'", '"': '"', "a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}


def unescape(text: str) -> str:
    r"""The text that Python's escapes mean; one that is no character (`\d`) stays.

    Raises:
        ValueError: one is half of a surrogate pair.
    """
    return _ESCAPES.sub(_character, text) if "\\" in text else text


def _character(match: re.Match[str]) -> str:
    name, written = match.lastgroup, match[match.lastgroup or 0]
    if name == "half":
        raise ValueError(f"half of a surrogate pair, {match[0]}")
    if name == "one":
        return _ONE.get(written, "")  # an escaped end of the line is nothing
    if name == "pair":
        halves = chr(int(written[1:5], 16)) + chr(int(written[7:], 16))
        return halves.encode("utf-16", "surrogatepass").decode("utf-16")
    code = int(written, 8 if name == "octal" else 16)
    return match[0] if 0xD800 <= code < 0xE000 else chr(code)


def read_python(text: str) -> Any:
    """The value of a text that is one Python literal, JSON-like: lists, objects with text keys, finite numbers.

    Raises:
        ValueError: it is not.
    """
    reader = PythonLiterals(text)
    value, end = reader.whole(lambda: reader.value(skip_space(text, 0)))
    if skip_space(text, end) < len(text):
        raise reader.error(skip_space(text, end), "the end of the text")
    return value
