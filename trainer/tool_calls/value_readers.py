"""JSON values as models write them into text, and helpers that every reader of calls shares.

A reader begins at a place of the text and returns the value and where it ends. A hostile text may hold ten thousand
openings, and readings that begin at different openings may run into the same value. So all attempts together must take
time in proportion to the text: the ends of strings are looked up in an index (`next_end`), and `literals.py` remembers
what an earlier attempt learned about a place.
"""

from __future__ import annotations

import json
import math
import re
from bisect import bisect_left
from functools import lru_cache
from typing import Any, NoReturn

Found = tuple[Any, int]
"""A value, and where it ends."""


def skip_space(text: str, start: int) -> int:
    """Return the first place at or after `start` without white space."""
    return _SPACE.match(text, start).end()  # type: ignore[union-attr]


def next_end(text: str, pattern: re.Pattern[str], start: int) -> int | None:
    """Return the end of the pattern's first match that ends at or after `start`; a text is searched once."""
    ends = _all_ends(pattern, text)
    index = bisect_left(ends, start)
    return ends[index] if index < len(ends) else None


@lru_cache(maxsize=64)
def _all_ends(pattern: re.Pattern[str], text: str) -> list[int]:
    return [match.end() for match in pattern.finditer(text)]


_SPACE = re.compile(r"\s*")


def shorten(value: Any) -> str:
    """Return a value's `repr`, cut to about 60 characters."""
    try:
        text = repr(value[:80] if isinstance(value, str) else value)
    except RecursionError:
        return f"a {type(value).__name__} nested too deeply"
    return text if len(text) <= 60 else text[:57] + "..."


def reading_error(text: str, position: int, expected: str) -> ValueError:
    """Return the error of a reader that found something else at a place."""
    if position >= len(text):
        return ValueError(f"the call is cut off: expected {expected}, got the end of the text")
    return ValueError(f"expected {expected}, got {shorten(text[position : position + 30])}")


def read_json(text: str) -> Any:
    """Return the value of a JSON text; raise a ValueError if it is not JSON, or has a number that is not finite."""
    value, end = read_json_at(text, 0)
    rest = skip_space(text, end)
    if rest < len(text):
        raise ValueError(f"not valid JSON ({shorten(text[rest:])} follows it)")
    return value


def read_json_at(text: str, start: int) -> Found:
    """Return the JSON value that begins at `start`, after white space; raise a ValueError as `read_json` does."""
    first = skip_space(text, start)
    try:
        value, length = _DECODER.raw_decode(text[first:])  # its errors count lines from where the value begins
    except (ValueError, RecursionError, MemoryError) as error:
        raise ValueError(f"not valid JSON ({error})") from None
    return value, first + length


def _refuse_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is not a JSON number")


def finite(text: str) -> float:
    """Return the number of a text; raise a ValueError if a float cannot hold it."""
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{shorten(text)} is too large a number")
    return value


_DECODER = json.JSONDecoder(parse_constant=_refuse_constant, parse_float=finite)
