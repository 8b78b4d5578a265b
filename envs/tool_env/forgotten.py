"""Warnings about an environment whose author forgot the mark `@tool`, or the `return` of `reply`."""

from __future__ import annotations

import contextlib
import inspect
import warnings
from functools import cache
from typing import Any

from ..runtime.user_calls import source_of
from ..tools.tool import Tool


def warn_of_forgotten_tools(environment: Any, base: type) -> None:
    """Warn if public methods of an environment without tools are documented as tools are."""
    if names := forgotten_tools(type(environment), base):
        warnings.warn(
            f"{type(environment).__name__} has no tools, but {', '.join(names)} could be: mark each tool with @tool, "
            f"and let the names of other methods begin with '_'",
            stacklevel=2,
        )


@cache  # an environment is reset for each episode
def forgotten_tools(kind: type, base: type) -> list[str]:
    """Return the public methods of a class of `base`, which is `ToolEnv`, that could be tools.

    An environment that replies or grades may be one of a single turn. Helpers may be documented, too. So there must be
    a method whose parameters are described, as for a model.
    """
    if any(getattr(kind, name) is not getattr(base, name) for name in ("reply", "astep", "agrade")):
        return []
    described: dict[str, Tool] = {}
    for name in sorted(set(dir(kind)) - set(dir(base))):
        method = inspect.getattr_static(kind, name)
        if not name.startswith("_") and inspect.isfunction(method):
            with contextlib.suppress(TypeError, ValueError):
                described[name] = Tool.of(method.__get__(base))  # bound to anything: `self` is no argument
    return [*described] if any(tool.parameters["properties"] for tool in described.values()) else []


def warn_of_forgotten_return(environment: Any) -> None:
    """Warn if `reply` returned None, has no `return`, and is not the judge of a single answer.

    Such a judge sets the reward and has no other ending. One that sets `terminated` has.
    """
    source = source_of(type(environment).reply)
    if not source or "return" in source or "-> None" in source or environment.terminated or environment.truncated:
        return
    if "terminated" in source or "reward" not in source:
        name = type(environment).__name__
        warnings.warn(
            f"{name}.reply() returned None, which ends the episode, and its code has no `return`: return the messages "
            f"with which the episode goes on, or write `return None` where it ends",
            stacklevel=2,
        )
