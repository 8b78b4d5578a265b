"""Methods that are documented as tools are, in an environment that has no tool: `@tool` was forgotten."""

from __future__ import annotations

import contextlib
import inspect

import gymnasium

from ..tools.tool import Tool
from .tool_env import ToolEnv


def forgotten_tools(environment: gymnasium.Env) -> list[str]:  # type: ignore[type-arg]
    """Return the names of public methods that could be tools, one of which has parameters that are described.

    It is empty if the environment has a tool, or a reply or grade of its own: it may be one of a single turn.
    """
    if not isinstance(environment, ToolEnv) or environment.tools or environment._tool_methods or environment._sources:
        return []
    kind = type(environment)
    if any(getattr(kind, name) is not getattr(ToolEnv, name) for name in ("reply", "astep", "agrade")):
        return []
    described: list[Tool] = []
    for name in sorted(set(dir(kind)) - set(dir(ToolEnv))):
        if not name.startswith("_") and inspect.isfunction(inspect.getattr_static(kind, name)):
            with contextlib.suppress(TypeError, ValueError):
                described.append(Tool.of(getattr(environment, name)))
    return [tool.name for tool in described] if any(tool.parameters["properties"] for tool in described) else []
