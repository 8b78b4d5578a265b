"""RecordedCall: one line of a cassette, and the keys by which a replay finds it."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Hashable, Mapping
from dataclasses import asdict, dataclass, field, fields
from functools import cached_property
from typing import Any, Self, get_args

import pydantic_core

from ..tools.runner import Kind


@dataclass(kw_only=True, frozen=True)
class RecordedCall:
    """A call of a tool, or of the hooks `reply` and `grade`, and its result."""

    environment: str  # name of the class
    task: str  # digest of the row
    seed: int | None  # of the environment
    after: str  # digest of the episode before the call: see `Tape`
    kind: Kind
    name: str
    arguments: Any  # JSON
    outcome: str = "ok"
    content: Any = None  # JSON
    traceback: str | None = None
    effects: Mapping[str, Any] = field(default_factory=dict)  # what it changed in the environment: see `Tape`
    code: str | None = None  # digest of the code that gave the result; None: not known

    @cached_property
    def text(self) -> str:
        """The arguments as text."""
        return canonical(self.arguments)

    @cached_property
    def key(self) -> Hashable:
        """The key by which a replay finds the call; the digest `after` has environment, task and seed."""
        return self.kind, self.name, self.after, self.text

    def __str__(self) -> str:
        return f"{self.name}({_shown(self.text)})"

    def to_line(self) -> str:
        """Return the call as a line of a cassette."""
        return json.dumps(asdict(self))

    @classmethod
    def of_line(cls, line: bytes) -> Self:
        """Read a line that `to_line` wrote.

        Raises:
            TypeError, ValueError: it is something else.
        """
        values = json.loads(line)
        call = cls(**{column.name: values[column.name] for column in fields(cls) if column.name in values})
        if call.kind not in get_args(Kind):
            raise ValueError(f"kind must be one of {get_args(Kind)}, got {call.kind!r}")
        return call


def _plain(value: Any) -> Any:
    return value.tolist() if hasattr(value, "tolist") else repr(value)


def jsonable(value: Any, fallback: Callable[[Any], Any] = _plain) -> Any:
    """Return the value as JSON: bytes as base64, sets sorted, other objects as lists of numbers or as their `repr`."""
    try:
        return pydantic_core.to_jsonable_python(
            _with_sorted_sets(value),
            bytes_mode="base64",
            inf_nan_mode="strings",
            fallback=fallback,
            serialize_unknown=False,
        )
    except (ValueError, RecursionError):  # circular references
        return repr(value)


def _with_sorted_sets(value: Any) -> Any:
    """Return the value with lists for sets, whose order changes from process to process."""
    if isinstance(value, set | frozenset):
        return sorted(map(_with_sorted_sets, value), key=canonical)
    if isinstance(value, dict):
        return {key: _with_sorted_sets(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return list(map(_with_sorted_sets, value))
    return value


def address_in(value: Any) -> str | None:
    """Return the `repr` of an object inside the value, if it holds an address, which each process has its own of."""
    found: list[str] = []

    def plain(other: Any) -> Any:
        text = _plain(other)
        if isinstance(text, str) and re.search(r"\bat 0x[0-9a-f]+", text, re.IGNORECASE):
            found.append(text)
        return text

    jsonable(value, plain)
    return found[0] if found else None


def canonical(value: Any) -> str:
    """Return JSON in one form only: equal values have equal texts, whatever the order of their keys."""
    return json.dumps(jsonable(value), sort_keys=True)


def digest(*values: Any) -> str:
    """Return a short name for values, made of their canonical JSON."""
    return hashlib.blake2b(canonical(values).encode(), digest_size=12).hexdigest()


def _shown(text: str) -> str:
    return text if len(text) <= 200 else f"{text[:200]}..."
