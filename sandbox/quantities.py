"""Quantities as users write them: sizes, whole numbers and amounts, with one message for each kind of mistake."""

from __future__ import annotations

import math
import operator
import re
from numbers import Real
from typing import Any

_UNITS = {"": 1, "b": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}


def size_of(size: int | str, name: str = "size") -> int:
    """Bytes: `size_of("64m") == 64 * 1024**2`; a whole number is returned as it is.

    Raises:
        TypeError: `size` is neither text nor a whole number.
        ValueError: `size` is text, and no number with an optional unit of b, k, m or g.
    """
    if not isinstance(size, str):
        return _whole(size, f"{name}: a size is a whole number of bytes, or text such as '512m'")
    match = re.fullmatch(r"(\d+)([bkmg]?)", size.strip().lower())
    if match is None:
        raise ValueError(f"{name}: a size is a number of bytes, or text such as '512m' (b, k, m, g), got {size!r}")
    return int(match[1]) * _UNITS[match[2]]


def count_of(count: int, name: str) -> int:
    """A whole number, as int.

    Raises:
        TypeError: `count` is none.
    """
    return _whole(count, f"{name} must be a whole number")


def amount_of(amount: float, name: str, unit: str) -> float:
    """A number of seconds, cores or the like, as float; infinite where no float is as large.

    Raises:
        TypeError: `amount` is no real number.
    """
    if not isinstance(amount, Real) or isinstance(amount, bool):
        raise TypeError(f"{name} must be a number of {unit}, got {type(amount).__name__}: {amount!r}")
    try:
        return float(amount)
    except OverflowError:
        return math.inf


def _whole(number: Any, expected: str) -> int:
    if not isinstance(number, bool):
        try:
            return operator.index(number)
        except TypeError:
            pass
    raise TypeError(f"{expected}, got {type(number).__name__}: {number!r}")
