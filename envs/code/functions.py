"""Tools as Python functions: the signatures and docstrings that the model reads, and the source of a module."""

from __future__ import annotations

import builtins
import json
import keyword
import re
from collections.abc import Collection, Iterable, Mapping
from textwrap import indent
from typing import Any

from ...sandbox.guest import tools_module
from ..core import ConfigurationError
from ..tools.tool import Tool

_TYPES = {
    "string": "str", "integer": "int", "number": "float", "boolean": "bool", "null": "None", "array": "list",
    "object": "dict",
}  # fmt: skip
_DEEPEST = 4  # levels of a type that are written out
_TAKEN = frozenset({*dir(builtins), *dir(tools_module)})  # names that the module itself uses


def declaration(tool: Tool) -> str:
    """Return a tool's signature and docstring as Python source."""
    function = tool.schema["function"]
    parameters: Mapping[str, Any] = function.get("parameters") or {}
    required = parameters.get("required", ())
    properties = sorted(parameters.get("properties", {}).items(), key=lambda entry: entry[0] not in required)
    definitions = parameters.get("$defs", {})
    written, lines = [], []
    for name, schema in properties:
        kind = _type(schema, definitions)
        text = f"{_identifier(name)}: {kind}"
        written.append(text if name in required else f"{text} = {_default(schema, kind)}")
        lines.append(f"    {_identifier(name)}: {schema.get('description', '')}".rstrip())
    document = "\n".join([function.get("description", ""), *(["", "Args:", *lines] if lines else [])])
    document = document.replace("\\", "\\\\").replace('"""', '\\"\\"\\"')
    closing = "\n" if "\n" in document or document.endswith('"') else ""
    body = indent(f'"""{document}{closing}"""', "    ", lambda line: bool(line.strip()))
    returns = "" if tool.returns is None else f" -> {_type(tool.returns, tool.returns.get('$defs', {}))}"
    return f"def {name_in_python(tool)}({', '.join(written)}){returns}:\n{body}\n"


def source(tools: Iterable[Tool]) -> str:
    """Return the source of functions that call these tools; see `Executor.offer`.

    Raises:
        ConfigurationError: two tools, or two parameters of one, have the same name in Python; or a schema has something
            that Python cannot express.
    """
    functions: dict[str, str] = {}
    for tool in tools:
        name = name_in_python(tool)
        if name in functions:
            raise ConfigurationError(f"two tools have the name {name!r} in Python: rename one with @tool(name=...)")
        parameters = (tool.schema["function"].get("parameters") or {}).get("properties", {})
        names = {_identifier(parameter): parameter for parameter in parameters}
        if len(names) < len(parameters):
            raise ConfigurationError(f"two parameters of {tool.name!r} have the same name in Python: {[*parameters]}")
        functions[name] = f"@_tool({tool.name!r}, {names!r})\n{declaration(tool)}"
        try:
            compile(functions[name], tool.name, "exec")
        except (SyntaxError, ValueError) as error:
            raise ConfigurationError(f"the schema of {tool.name!r} cannot be a function in Python: {error}") from None
    return "\n\n".join(functions.values())


def name_in_python(tool: Tool) -> str:
    """Return the name of the function that calls a tool."""
    return _identifier(tool.name, taken=_TAKEN)


def _identifier(name: str, taken: Collection[str] = ()) -> str:
    name = re.sub(r"\W|^(?=\d)", "_", name, flags=re.ASCII)
    return f"{name}_" if keyword.iskeyword(name) or name in taken else name


def _default(schema: Mapping[str, Any], kind: str) -> str:
    """Return what stands for the value of a parameter that is left out; the tool itself has the value."""
    can_be_none = not {"None", "Any"}.isdisjoint(kind.split(" | "))
    default = schema.get("default", None if can_be_none else ...)
    try:
        json.dumps(default, allow_nan=False)
    except (TypeError, ValueError):  # it is not known, or infinite, which Python has no literal for
        return "..."
    return repr(default)


def _type(schema: Any, definitions: Mapping[str, Any], depth: int = 0) -> str:
    if not isinstance(schema, Mapping) or depth > _DEEPEST:
        return "Any"
    if "$ref" in schema:
        return _type(definitions.get(str(schema["$ref"]).rpartition("/")[2]), definitions, depth + 1)
    if "const" in schema or "enum" in schema:
        values = schema.get("enum", [schema.get("const")])
        return f"Literal[{', '.join(map(repr, values))}]" if _are_plain(values) else "Any"
    choices = schema.get("anyOf") or schema.get("oneOf")
    if choices is None:
        kinds = schema.get("type")
        choices = [{**schema, "type": kind} for kind in kinds] if isinstance(kinds, list) else None
    if choices is not None:
        return " | ".join(dict.fromkeys(_type(choice, definitions, depth + 1) for choice in choices))
    kind = _TYPES.get(str(schema.get("type")), "Any")
    return f"list[{_type(schema['items'], definitions, depth + 1)}]" if kind == "list" and "items" in schema else kind


def _are_plain(values: Any) -> bool:
    return bool(values) and all(isinstance(value, str | int | None) for value in values) and bool(json.dumps(values))
