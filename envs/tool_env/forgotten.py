"""Methods that are documented as tools are, in an environment that has no tool: `@tool` was forgotten."""

from __future__ import annotations

import inspect

import gymnasium

from ..tools.tool import Tool
from .tool_env import ToolEnv


def forgotten_tools(environment: gymnasium.Env) -> list[str]:  # type: ignore[type-arg]
    """Return the names of public methods that could be tools.

    It is empty if the environment has a tool, or a reply or grade of its own.

    An environment that replies or grades may be one of a single turn. Helpers may be documented, too. So there must be
    a method whose parameters are described, as for a model.
    """
    if not isinstance(environment, ToolEnv) or environment.tools or environment._tool_methods or environment._sources:
        return []
    kind = type(environment)
    if any(getattr(kind, name) is not getattr(ToolEnv, name) for name in ("reply", "astep", "agrade")):
        return []
    known = set(dir(ToolEnv))
    public = [name for name in dir(kind) if not name.startswith("_") and name not in known]
    described = [Tool.of(getattr(environment, name)) for name in public if _could_be_tool(environment, name)]
    return [tool.name for tool in described] if any(tool.parameters["properties"] for tool in described) else []


def _could_be_tool(environment: ToolEnv, name: str) -> bool:
    if not inspect.isfunction(inspect.getattr_static(type(environment), name)):
        return False
    try:
        Tool.of(getattr(environment, name))
    except (TypeError, ValueError):
        return False
    return True
