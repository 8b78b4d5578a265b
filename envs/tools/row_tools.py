"""A row's column `tools`: it narrows the tools of its episode, by their names or by JSON schemas."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

from .tool import Tool, unknown_tool


def tools_of_row(column: Any, tools: Mapping[str, Tool], owner: str) -> dict[str, Tool]:
    """The tools that a row's column `tools` chooses: a list of names or of JSON schemas, or such a list as JSON text.

    The model sees a row's schema in place of the tool's own.

    Raises:
        ValueError: it is something else, there is no tool of such a name, or a schema does not fit its tool.
    """
    entries = _decoded(column)
    if not isinstance(entries, list | tuple) or not all(map(_is_choice, entries)):
        raise ValueError(
            f"the row's 'tools' must be a list of names of tools of {owner}, or of their JSON schemas, "
            f"{{'type': 'function', 'function': {{'name': ...}}}}; or such a list as JSON text; got {column!r}"
        )
    chosen: dict[str, Tool] = {}
    for entry in entries:
        name = entry if isinstance(entry, str) else entry["function"]["name"]
        if name not in tools:
            raise ValueError(f"the row's 'tools' names {unknown_tool(name, tools)} of {owner}")
        chosen[name] = tools[name] if isinstance(entry, str) else _with_schema(tools[name], _without_none(entry))
    return chosen


def _decoded(column: Any) -> Any:
    if not isinstance(column, str):
        return column
    try:
        return json.loads(column)
    except ValueError:
        return column


def _is_choice(entry: Any) -> bool:
    if isinstance(entry, str):
        return True
    function = entry.get("function") if isinstance(entry, Mapping) else None
    return isinstance(function, Mapping) and isinstance(function.get("name"), str)


def _without_none(value: Any) -> Any:
    """The schema without entries that are None: a table of Arrow gives each row the keys of all others."""
    if isinstance(value, Mapping):
        return {key: _without_none(each) for key, each in value.items() if each is not None}
    return [_without_none(each) for each in value] if isinstance(value, list | tuple) else value


def _with_schema(tool: Tool, schema: dict[str, Any]) -> Tool:
    """The tool with a row's schema. A call that the schema allows must not be refused by the tool's own signature."""
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
