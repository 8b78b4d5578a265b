"""Errors for keyword arguments that do not exist: they name the argument that was probably meant."""

from __future__ import annotations

import difflib
import functools
import inspect
from collections.abc import Callable, Collection, Iterable, Mapping
from types import MappingProxyType
from typing import Any, TypeVar

Class = TypeVar("Class", bound=type)

MOST_LISTED = 16  # names; a longer list hides the rest of the message


def named_parameters(function: Callable[..., Any]) -> list[str]:
    """Return the names by which arguments may be given."""
    parameters = inspect.signature(function).parameters.values()
    by_name = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return [taken.name for taken in parameters if taken.kind in by_name and taken.name != "self"]


def unknown_names(
    owner: str, given: Iterable[str], known: Collection[str], advice: Mapping[str, str] = MappingProxyType({})
) -> TypeError:
    """Return the error for names that do not exist: each with its advice, or else with the nearest known name."""
    hints = []
    for name in sorted(given):
        near = difflib.get_close_matches(name, known, n=1)
        hint = advice.get(name) or (f"did you mean {near[0]!r}?" if near else "")
        hints.append(f"{name!r}" + (f" ({hint})" if hint else ""))
    listed = f"; it has {', '.join(known)}" if len(known) <= MOST_LISTED else ""
    return TypeError(f"{owner} has no {', '.join(hints)}{listed}")


def checks_keywords(**parts: type) -> Callable[[Class], Class]:
    """Return the decorator of a class whose constructor explains unknown keyword arguments.

    `@checks_keywords(limits=Limits)` also explains the arguments of `Limits`: they belong into `limits=Limits(...)`.
    """
    advice = {
        name: f"give {part}={kind.__name__}({name}=...)"
        for part, kind in parts.items()
        for name in named_parameters(kind)
    }

    def decorate(cls: Class) -> Class:
        construct: Callable[..., None] = cls.__init__
        known = named_parameters(construct)
        kinds = [taken.kind for taken in inspect.signature(construct).parameters.values()]
        most = kinds.count(inspect.Parameter.POSITIONAL_OR_KEYWORD) - 1  # without self

        @functools.wraps(construct)
        def checked(self: Any, *arguments: Any, **options: Any) -> None:
            if unknown := options.keys() - known:
                raise unknown_names(type(self).__name__, unknown, known, advice)
            if len(arguments) > most:
                raise TypeError(
                    f"{type(self).__name__} takes {most} positional arguments, got {len(arguments)}: name "
                    f"the others, such as {known[most]}=...; it has {', '.join(known)}"
                )
            construct(self, *arguments, **options)

        setattr(cls, "__init__", checked)  # noqa: B010  (a type checker refuses the assignment)
        return cls

    return decorate
