"""The fields of a configuration: their help texts, and types that know which values they allow."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from types import NoneType
from typing import Annotated, Any, Literal, NamedTuple, get_args, get_origin

OnNonFinite = Literal["skip", "stop"]
"""An optimiser step whose loss or gradient is not finite: skip it and go on, or stop training."""


class Range(NamedTuple):
    """The numbers that an option allows."""

    text: str
    """Completes the sentence "The option must be ..."."""
    holds: Callable[[Any], bool]


@dataclass(slots=True, frozen=True, eq=False)
class RowOf:
    """The names that an option allows: those of a table, to which users may add rows."""

    table: Mapping[str, Any]


AT_LEAST_1 = Range("at least 1", lambda n: n >= 1)
AT_LEAST_0 = Range("at least 0", lambda n: n >= 0)
POSITIVE = Range("positive", lambda n: 0 < n < math.inf)
WEIGHT = Range("finite and at least 0", lambda n: 0 <= n < math.inf)

Count = Annotated[int, AT_LEAST_1]
Number = Annotated[int, AT_LEAST_0]
Positive = Annotated[float, POSITIVE]
Weight = Annotated[float, WEIGHT]
Seconds = Annotated[float, Range("positive", lambda n: n > 0)]
Finite = Annotated[float, Range("finite", math.isfinite)]
Share = Annotated[float, Range("in [0, 1]", lambda n: 0 <= n <= 1)]
PositiveShare = Annotated[float, Range("in (0, 1]", lambda n: 0 < n <= 1)]
Port = Annotated[int, Range("a port, or 0 for any free one", lambda n: 0 <= n < 1 << 16)]


def option(default: Any, text: str) -> Any:
    """Return a field with a help text, as `transformers.HfArgumentParser` shows it."""
    return field(default=default, metadata={"help": text})


def another_default(config: type[Any], name: str, default: Any) -> Any:
    """Return the field of a base class with another default."""
    return field(default=default, metadata=config.__dataclass_fields__[name].metadata)


@dataclass(kw_only=True, slots=True, frozen=True)
class Allowed:
    """The values that the type of a field allows."""

    type: Any
    """Without None and without a range."""
    optional: bool = False
    """Whether None is allowed."""
    names: Collection[str] = ()
    """The names that are allowed; empty: any value."""
    range: Range | None = None

    @classmethod
    def by(cls, hint: Any) -> Allowed:
        """Read a type hint: `Count | None`, a Literal, or Annotated with a `Range` or a `RowOf`."""
        parts = get_args(hint)
        if parts[1:] == (NoneType,):
            return replace(cls.by(parts[0]), optional=True)
        if get_origin(hint) is Literal:
            return cls(type=hint, names=parts)
        if get_origin(hint) is not Annotated:
            return cls(type=hint)
        kind, values = parts
        return cls(type=kind, range=values) if isinstance(values, Range) else cls(type=kind, names=values.table)

    def within(self, limits: Range) -> Allowed:
        """Return the same with a range."""
        return replace(self, range=limits)
