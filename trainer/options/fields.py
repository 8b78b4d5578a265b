"""The fields of a configuration: their help texts, and types that know which values they allow."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, fields, replace
from types import NoneType
from typing import Annotated, Any, Literal, NamedTuple, TypeVar, get_args, get_origin

OnNonFinite = Literal["skip", "stop"]
"""An optimiser step whose loss or gradient is not finite: skip it and go on, or stop training."""


class Range(NamedTuple):
    """The numbers that an option allows."""

    text: str  # completes the sentence "The option must be ..."
    holds: Callable[[Any], bool]


@dataclass(slots=True, frozen=True, eq=False)
class OneOf:
    """The names that an option allows, such as those of a table, to which users may add rows."""

    names: Collection[str]

    @property
    def text(self) -> str:
        return f"one of {', '.join(self.names)}"

    def holds(self, value: Any) -> bool:
        """Return whether this is one of the names."""
        return value in [*self.names]  # a list: the value may have no hash


AT_LEAST_1 = Range("at least 1", lambda n: n >= 1)
AT_LEAST_0 = Range("at least 0", lambda n: n >= 0)
POSITIVE = Range("positive", lambda n: 0 < n < math.inf)
WEIGHT = Range("finite and at least 0", lambda n: 0 <= n < math.inf)

Count = Annotated[int, AT_LEAST_1]
Number = Annotated[int, AT_LEAST_0]
GroupSize = Annotated[
    int, Range("at least 2 (an advantage compares an episode with others of its group)", lambda n: n >= 2)
]
AtLeast0 = Annotated[float, AT_LEAST_0]
BelowOne = Annotated[float, Range("in [0, 1)", lambda n: 0 <= n < 1)]
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


Config = TypeVar("Config", bound=type)


def documented(config: Config) -> Config:
    """Add the options of a configuration, with their defaults and help texts, to its docstring."""
    lines = [
        f"    {option.name}: {option.metadata['help']} [{option.default!r}]"
        for option in fields(config)
        if "help" in option.metadata
    ]
    config.__doc__ = "\n".join([f"{config.__doc__}\n\nArgs:", *lines])
    return config


@dataclass(kw_only=True, slots=True, frozen=True)
class Allowed:
    """The values that the type of a field allows."""

    type: Any  # without None, and without a range or names
    optional: bool = False  # whether None is allowed
    values: Range | OneOf | None = None  # None: all values of the type

    @classmethod
    def by(cls, hint: Any) -> Allowed:
        """Read a type hint: `Count | None`, a Literal, or Annotated with a `Range` or `OneOf`."""
        parts = get_args(hint)
        if parts[1:] == (NoneType,):
            return replace(cls.by(parts[0]), optional=True)
        if get_origin(hint) is Literal:
            return cls(type=hint, values=OneOf(parts))
        return cls(type=parts[0], values=parts[1]) if get_origin(hint) is Annotated else cls(type=hint)
