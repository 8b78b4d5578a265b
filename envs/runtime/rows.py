"""Rows of a data set, as episodes get them."""

from __future__ import annotations

import copy
from typing import Any


class MissingColumnError(KeyError):
    """A column was looked up in a row that does not have it."""

    __str__ = Exception.__str__  # KeyError shows the message in quotes


class Row(dict[str, Any]):
    """A row of which every column is looked up by its name."""

    def __missing__(self, column: str) -> Any:
        raise MissingColumnError(f"the row has no column {column!r}; it has {sorted(map(str, self))}")

    def __getattr__(self, name: str) -> Any:
        hint = f": write row[{name!r}]" if name in self else ""
        raise AttributeError(f"a row is a dict, which has no attribute {name!r}{hint}")


def own_copy(value: Any) -> Any:
    """Return a row with dicts and lists of its own: an episode that changes them changes no other episode's.

    Other values, such as images, are shared.
    """
    if isinstance(value, dict):
        copied = copy.copy(value)  # which keeps the class
        for key in value:
            copied[key] = own_copy(value[key])
        return copied
    if isinstance(value, list):
        return [own_copy(item) for item in value]
    if type(value) is tuple:
        return tuple(own_copy(item) for item in value)
    return value
