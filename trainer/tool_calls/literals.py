"""Literals that are not JSON: Python's, and Gemma's objects in braces."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache, lru_cache
from typing import Any

from .value_readers import Found, finite, next_end, read_json_at, reading_error, shorten, skip_space


@lru_cache(maxsize=16)
def _remembered_ends(grammar: tuple[type, str], text: str) -> dict[tuple[int, str], int | str]:
    """Return for a place in a container and its kind: the end of that container, or why its rest cannot be read.

    Invariant: an entry depends on the text behind its place only, never on where a reading began. So a second reading
    that comes to a remembered place may jump to the end or fail at once, and all readings of a text together visit each
    place once for each kind. Only readings that look for the end use the memory; a reading that makes values (`whole`)
    runs once, over a stretch that is known to be complete.
    """
    return {}


class Literals(ABC):
    """A reader of containers, numbers and words; the subclasses know strings and keys.

    `quote` is the mark around strings, if the subclass leaves it open.
    """

    escapes = False  # whether a backslash escapes within strings

    def __init__(self, text: str, quote: str = "") -> None:
        self.text = text
        self.quote = quote
        self._remembered = _remembered_ends((type(self), quote), text)
        self._making = False  # whether values are wanted, not only the end

    def whole(self, read: Callable[[], Found]) -> Found:
        """Call `read` once to see whether there is an end, or raise a ValueError, and once to make the values."""
        try:
            read()
            self._making = True
            return read()
        except (RecursionError, MemoryError):
            raise ValueError("nested too deeply") from None
        finally:
            self._making = False

    def items(self, start: int, kind: str, read: Callable[[int], Found]) -> tuple[list[Any], int]:
        """Read the items behind the opening mark, separated by commas, up to the closing one.

        `read` reads one item. `kind` names this way of reading, since a place may be read in two; its last character is
        the closing mark.
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
        raise reading_error(self.text, position, f"',' or {close!r}")

    def value(self, start: int) -> Found:
        """Read a list, an object, a number or a word; the subclasses add strings."""
        opening = self.text[start : start + 1]
        if opening == "[":
            return self.items(start + 1, "list]", self.value)
        return self.object(start + 1) if opening == "{" else self.plain(start)

    def object(self, start: int) -> Found:
        """Read an object whose opening brace stands before `start`."""
        found, end = self.items(start, "object}", self._member)
        return dict(found), end

    def _member(self, start: int) -> Found:
        key, position = self.key(start)
        colon = skip_space(self.text, position)
        value, end = self.value(skip_space(self.text, colon + 1))
        return (key, value), end

    @abstractmethod
    def key(self, start: int) -> Found:
        """Read a key that a colon follows."""

    def string(self, start: int, quotes: Sequence[str], follow: str) -> Found:
        """Read a string that ends at its quote where `follow` follows, so a quote within the text ends nothing.

        Args:
            start: Where the opening quote stands.
            quotes: The quotes that are possible; the first one that has an end is taken.
            follow: A regular expression.
        """
        for quote in quotes:
            end = next_end(self.text, _string_end(quote, follow, self.escapes), start + 2 * len(quote))
            if end is not None:
                text = self.text[start + len(quote) : end - len(quote)] if self._making else ""
                return (unescape(text) if self.escapes else text), end
        raise ValueError(f"the text that begins with {shorten(self.text[start : start + 30])} does not end")

    def plain(self, start: int) -> Found:
        """Read a number, or a word such as `true`."""
        if number := _NUMBER.match(self.text, start):
            written = number[0]
            return (finite(written) if set(written) & set(".eE") else int(written)), number.end()
        if (word := _WORD.match(self.text, start)) and word[0] in _WORDS:
            return _WORDS[word[0]], word.end()
        raise reading_error(self.text, start, "a value")


class PythonLiterals(Literals):
    """Strings with escapes in single or double quotes, lists, tuples and dicts; JSON too."""

    escapes = True

    def json_or_value(self, start: int) -> Found:
        """Read a value, as JSON if it is JSON: its strings have other escapes."""
        if self.text.startswith(("[", "{"), start):
            with suppress(ValueError):
                return read_json_at(self.text, start)
        return self.value(start)

    def value(self, start: int) -> Found:
        opening = self.text[start : start + 1]
        if opening in _QUOTES:
            return self.quoted(start, _AFTER_ITEM)
        if opening == "(":
            found, end = self.items(start + 1, "tuple)", self.value)
            one = len(found) == 1 and not self.text[start : end - 1].rstrip().endswith(",")
            return (found[0] if one else found), end
        return super().value(start)

    def quoted(self, start: int, follow: str) -> Found:
        """Read a string in one or three quotes. Three that are never closed are one quote, and two of the text."""
        one = self.text[start]
        return self.string(start, (one * 3, one) if self.text.startswith(one * 3, start) else one, follow)

    def key(self, start: int) -> Found:
        if self.text[start : start + 1] not in _QUOTES:
            raise reading_error(self.text, start, "a key in quotes")
        return self.quoted(start, r"\s*:")


class BraceLiterals(Literals):
    """Gemma's way: `{key:value}` with keys that need no quotes; strings stand between two marks, without escapes."""

    def value(self, start: int) -> Found:
        if self.text.startswith(self.quote, start):
            return self.string(start, (self.quote,), r"\s*[,}\]]")
        if match := _BARE.match(self.text, start):
            return match[0].rstrip(), match.end()
        return super().value(start)

    def key(self, start: int) -> Found:
        if self.text.startswith(self.quote, start):
            return self.string(start, (self.quote,), r"\s*:")
        if match := _KEY.match(self.text, start):
            return match[0].strip(), match.end()
        raise reading_error(self.text, start, "a key and ':'")


@cache
def _string_end(quote: str, follow: str, escapes: bool) -> re.Pattern[str]:
    unescaped = r"(?<!\\)(?:\\\\)*+" if escapes else ""
    return re.compile(rf"{unescaped}{re.escape(quote)}(?={follow})")


_QUOTES = ("'", '"')
_AFTER_ITEM = r"\s*(?:[,\])}]|\Z)"
# A string whose marks are missing. Words for other values (`null`, `NaN`) are not strings.
_BARE = re.compile(r"(?!(?i:true|false|null|none|nan|inf|infinity)\b)[^\W\d_][^:,{}\[\]<>\n]{0,255}+(?=[,}\]])")
_KEY = re.compile(r"[^:,{}\[\]<>\n]{1,256}(?=:)")
_NUMBER = re.compile(r"[+-]?(?:(?:0|[1-9][0-9]*)(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?(?![\w.])")
_WORD = re.compile(r"[A-Za-z_]\w{0,20}")
_WORDS = {"True": True, "true": True, "False": False, "false": False, "None": None, "null": None}
_ESCAPE = re.compile(
    r"\\(?:(?P<one>[\\'\"abfnrtv\n])|x(?P<x>[0-9a-fA-F]{2})|u(?P<u>[0-9a-fA-F]{4})"
    r"|U(?P<U>00(?:0[0-9a-fA-F]|10)[0-9a-fA-F]{4})|(?P<octal>[0-7]{1,3}))"
)
_ONE = {"\\": "\\", "'": "'", '"': '"', "a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}


def unescape(text: str) -> str:
    r"""Return the text that Python's escapes mean; an escape that is not a character (`\d`) stays."""
    if "\\" not in text:
        return text
    # Models escape a character as a surrogate pair, too, as JSON does.
    return _ESCAPE.sub(_character, text).encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")


def _character(match: re.Match[str]) -> str:
    name, written = match.lastgroup, match[match.lastgroup or 0]
    if name == "one":
        return _ONE.get(written, "")  # an escaped end of the line is nothing
    return chr(int(written, 8 if name == "octal" else 16))


def read_python(text: str) -> Any:
    """Return the value of a text that is one Python literal, or raise a ValueError.

    It is JSON-like: lists, objects with text keys, finite numbers.
    """
    reader = PythonLiterals(text)
    value, end = reader.whole(lambda: reader.value(skip_space(text, 0)))
    if skip_space(text, end) < len(text):
        raise reading_error(text, skip_space(text, end), "the end of the text")
    return value
