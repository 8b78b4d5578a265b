"""The methods of a `ToolEnv` class that are tools."""

from __future__ import annotations

import ast
import inspect
import logging
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from ..user_calls import source_of
from .tool import is_tool

logger = logging.getLogger("gymnast.envs")


def tool_methods(cls: type) -> tuple[str, ...]:
    """Names of the methods that `@tool` marks, base classes first, in the order of definition."""
    names = {name: None for base in reversed(cls.__mro__) for name in vars(base)}
    return tuple(name for name in names if is_tool(getattr(cls, name, None)))


def check_tool_methods(cls: type) -> None:
    """Check the names of the methods that a class writes.

    Raises:
        TypeError: a tool has a name that the environment uses itself, or a method hides a tool of a base class.
    """
    for name in vars(cls):
        method = getattr(cls, name)
        if is_tool(method):
            if _is_reserved(cls, name):
                raise TypeError(
                    f"{cls.__name__}.{name}: a tool's method cannot have this name, which the environment itself uses; "
                    f"rename the method, and tell the model the name with @tool(name={name!r})"
                )
        elif method is not None and any(is_tool(getattr(base, name, None)) for base in cls.__mro__[1:]):
            raise TypeError(
                f"{cls.__name__}.{name} overrides a tool but is not marked with @tool; mark it, or take the tool "
                f"away with `{name} = None`"
            )


def _is_reserved(cls: type, name: str) -> bool:
    """Whether a base class of this package or of Gymnasium uses the name for something else than a tool."""
    bases = [base for base in cls.__mro__[1:] if base.__module__.partition(".")[0] in ("gymnast", "gymnasium")]
    known = {name for base in bases for name in (*vars(base), *inspect.get_annotations(base))}
    return name in known and not any(is_tool(vars(base).get(name)) for base in bases)


@lru_cache(maxsize=128)  # so that each function is looked at, and warned of, once
def warn_of_forgotten_return(reply: Callable[..., Any]) -> None:
    """Warn if a `reply`, which has returned None, makes a message and has no `return` with a value."""
    try:
        nodes = [*ast.walk(ast.parse(source_of(reply)))]
    except SyntaxError:  # a lambda in the middle of a line
        return
    keys = [
        key.value for node in nodes if isinstance(node, ast.Dict) for key in node.keys if isinstance(key, ast.Constant)
    ]
    if "role" in keys and not any(isinstance(node, ast.Return) and node.value is not None for node in nodes):
        logger.warning(
            "%s makes a message but returns None, which ends the episode: is a `return` missing? This is logged once.",
            reply.__qualname__,
        )
