"""Tools that are chosen by name: those that an environment makes final, and those that a row offers."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import Collection, Mapping
from typing import Any

from ..core import ConfigurationError
from .tool import Tool, unknown_tool


def check_final_tools(names: Any, known: Collection[str] | None, owner: str) -> None:
    """Check the names of tools that end the episode; `known` are all tools, None if they are not known yet."""
    if isinstance(names, str) or not isinstance(names, Collection) or not all(isinstance(name, str) for name in names):
        raise TypeError(f"final_tools must be a list of names of tools, got {type(names).__name__}: {names!r}")
    unknown = [] if known is None else [name for name in names if name not in known]
    if unknown:
        raise ConfigurationError(
            f"final_tools of {owner}: {unknown_tool(unknown[0], known or ())} A tool that reset_task adds is marked "
            f"with tool(final=True)(function)"
        )


def with_final(tools: Mapping[str, Tool], names: Collection[str]) -> dict[str, Tool]:
    """Return the tools, of which those with these names are final."""
    return {
        name: dataclasses.replace(tool, final=True, parallel=False) if name in names and not tool.final else tool
        for name, tool in tools.items()
    }


def tools_of_row(column: Any, tools: Mapping[str, Tool], owner: str) -> dict[str, Tool]:
    """Return the tools that a row's column `tools` chooses by a list of names or JSON schemas, or by its JSON text.

    The model sees a row's schema in place of the tool's own.

    Raises:
        ValueError: it is something else, there is no tool of such a name, or a schema does not fit its tool.
    """
    entries = column
    if isinstance(column, str):
        with contextlib.suppress(ValueError):
            entries = json.loads(column)
    if not isinstance(entries, list | tuple) or not all(map(_is_choice, entries)):
        raise ValueError(
            f"the row's 'tools' must be a list of names of tools of {owner}, or of their JSON schemas, "
            f"{{'type': 'function', 'function': {{'name': ...}}}}; or such a list as JSON text; got {column!r}"
        )
    chosen: dict[str, Tool] = {}
    for entry in entries:
        name = entry if isinstance(entry, str) else entry["function"]["name"]
        if name not in tools:
            raise ValueError(f"the row's 'tools' of {owner}: {unknown_tool(name, tools)}")
        chosen[name] = tools[name] if isinstance(entry, str) else _with_schema(tools[name], _without_none(entry))
    return chosen


def _is_choice(entry: Any) -> bool:
    if isinstance(entry, str):
        return True
    function = entry.get("function") if isinstance(entry, Mapping) else None
    return isinstance(function, Mapping) and isinstance(function.get("name"), str)


def _without_none(value: Any) -> Any:
    """Return the schema without entries that are None: a table of Arrow gives each row the keys of all others."""
    if isinstance(value, Mapping):
        return {key: _without_none(entry) for key, entry in value.items() if entry is not None}
    return list(map(_without_none, value)) if isinstance(value, list | tuple) else value


def _with_schema(tool: Tool, schema: dict[str, Any]) -> Tool:
    """Return the tool with a row's schema. The tool's own signature must not refuse a call that the schema allows."""
    own_words = {"description": tool.description, "parameters": dict(tool.parameters)}
    function = {**schema["function"], **{key: own_words[key] for key in own_words if key not in schema["function"]}}
    parameters = function["parameters"]
    shown = parameters.get("properties", {}) if isinstance(parameters, Mapping) else None
    if not isinstance(shown, Mapping):
        raise ValueError(f"the row's schema of {tool.name!r} has parameters that are not a JSON schema: {parameters!r}")
    own = tool.parameters.get("properties", shown)
    unknown = [name for name in shown if name not in own]
    missing = [name for name in tool.parameters.get("required", ()) if name not in shown]
    if unknown or missing:
        fault = f"has the parameter {unknown[0]!r}" if unknown else f"lacks the parameter {missing[0]!r}"
        raise ValueError(
            f"the row's schema of {tool.name!r} {fault}, so every call by it would be refused: the function takes "
            f"{list(own)}, and needs {list(tool.parameters.get('required', ()))}"
        )
    return dataclasses.replace(tool, row_schema={"type": "function", **schema, "function": function})
