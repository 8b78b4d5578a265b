"""Tools: functions that the model may call, and their JSON schemas.

A tool is a plain function or method with type hints and a Google-style docstring. `@tool` (mark.py) marks the methods
of a `ToolEnv`; a plain function needs no mark.
"""

from __future__ import annotations

import difflib
import inspect
import re
import weakref
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, NotRequired, Required, get_type_hints

import docstring_parser
import pydantic_core
from pydantic import ConfigDict, Field, TypeAdapter, with_config
from pydantic.errors import PydanticUserError
from typing_extensions import TypedDict

from ..core import ConfigurationError, ToolSchema
from .mark import Replay, mark_of


@dataclass(kw_only=True, slots=True, frozen=True)
class Tool:
    """A function that the model may call."""

    name: str
    description: str
    parameters: Mapping[str, Any]  # JSON schema of the arguments
    function: Callable[..., Any]
    final: bool = False
    timeout: float | None = None
    parallel: bool = False
    replay: Replay = "history"
    validator: TypeAdapter[Any]
    returns: Mapping[str, Any] | None = None  # JSON schema of the result, if the function has a hint of it
    row_schema: ToolSchema | None = None  # a row's schema, which the model sees in place of the tool's own

    @classmethod
    def of(cls, function: Callable[..., Any] | Tool) -> Tool:
        """Return the tool that a function or method describes by its signature, type hints and docstring.

        Raises:
            TypeError: a parameter has no type hint, or a type that no JSON schema can describe.
            ValueError: the docstring or its entry for a parameter is missing, or model servers refuse the name.
        """
        if isinstance(function, Tool):
            return function
        if not callable(function) or not hasattr(function, "__name__"):
            raise TypeError(f"a tool is a function, got {type(function).__name__}: {function!r}; write a `def`")
        plain = getattr(function, "__func__", function)  # of a bound method
        key = inspect.ismethod(function)
        known = _descriptions.setdefault(plain, {})
        if key not in known:
            known[key] = _describe(function)
        return cls(function=function, **known[key])

    @property
    def code(self) -> Callable[..., Any]:
        """The function itself, without the environment that it is bound to."""
        return getattr(self.function, "__func__", self.function)

    @property
    def schema(self) -> ToolSchema:
        """The tool as chat templates and model servers take it."""
        if self.row_schema is not None:
            return self.row_schema
        function = {"name": self.name, "description": self.description, "parameters": dict(self.parameters)}
        return {"type": "function", "function": function}


def collect_tools(functions: Iterable[Callable[..., Any] | Tool], owner: str) -> dict[str, Tool]:
    """Return tools by name, in order; a ConfigurationError if two of them have the same name."""
    tools: dict[str, Tool] = {}
    for function in functions:
        candidate = Tool.of(function)
        if candidate.name in tools:
            raise ConfigurationError(
                f"{owner} has two tools named {candidate.name!r}: rename one with @tool(name=...), or those of a "
                f"server with MCPTools(..., prefix=...); known so far: {sorted(tools)}"
            )
        tools[candidate.name] = candidate
    return tools


def unknown_tool(name: str, known: Collection[str]) -> str:
    """Return the error about a name that no tool has."""
    near = difflib.get_close_matches(name, known, n=3)
    hint = f"Did you mean {' or '.join(map(repr, near))}? " if near else ""
    return f"there is no tool {name!r}. {hint}The tools are: {', '.join(known) or 'none'}."


# By function, and whether it is a bound method. A description is costly and an environment is made for each episode;
# keys are weak, so that functions made for one episode go with it.
_descriptions: weakref.WeakKeyDictionary[Callable[..., Any], dict[bool, dict[str, Any]]] = weakref.WeakKeyDictionary()


def _describe(function: Callable[..., Any]) -> dict[str, Any]:
    """Return all fields of a `Tool` except the function."""
    options = mark_of(function)
    name = _name(function, options.get("name"))
    document = docstring_parser.parse(inspect.getdoc(function) or "")
    description = "\n\n".join(part for part in (document.short_description, document.long_description) if part)
    if not description:
        raise ValueError(f"tool {name!r} has no docstring: its first line describes the tool to the model")
    entries = {entry.arg_name: entry.description or "" for entry in document.params}
    parameters = _parameters(name, function)
    fields = {parameter.name: _field(name, parameter, hint, entries) for parameter, hint in parameters}
    validator = _validator(name, fields)
    schema = _clean(validator.json_schema())
    for parameter, _ in parameters:
        if parameter.default is not parameter.empty and parameter.default is not None:
            schema["properties"][parameter.name]["default"] = pydantic_core.to_jsonable_python(
                parameter.default, fallback=repr
            )
    known = {"name": name, "description": description, "parameters": schema, "validator": validator}
    return {**options, **known, "returns": _returns(function)}


def _name(function: Callable[..., Any], given: str | None) -> str:
    name = given or function.__name__
    if not re.fullmatch(r"[A-Za-z0-9_-]{1,64}", name):
        raise ValueError(
            f"{name!r} is not a name for a tool: model servers take 1 to 64 letters, digits, '_' and '-'; "
            f"give one with @tool(name=...)"
        )
    return name


def _parameters(name: str, function: Callable[..., Any]) -> list[tuple[inspect.Parameter, Any]]:
    try:
        hints = get_type_hints(function, include_extras=True)
    except NameError as error:
        raise TypeError(
            f"tool {name!r}: its type hints cannot be resolved: {error}; import or define it at the top of the file"
        ) from error
    parameters = list(inspect.signature(function).parameters.values())
    for parameter in parameters:
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
            raise TypeError(f"tool {name!r}: parameter '{parameter}' must be an ordinary named parameter")
        if parameter.name not in hints:
            raise TypeError(
                f"tool {name!r}: parameter {parameter.name!r} has no type hint; write e.g. `{parameter.name}: int`"
            )
    return [(parameter, hints[parameter.name]) for parameter in parameters]


def _returns(function: Callable[..., Any]) -> Mapping[str, Any] | None:
    hints = get_type_hints(function)
    try:
        return TypeAdapter(hints["return"]).json_schema(mode="serialization")
    except (KeyError, PydanticUserError):  # no hint, or a type that has no schema
        return None


def _field(name: str, parameter: inspect.Parameter, hint: Any, entries: Mapping[str, str]) -> Any:
    if not entries.get(parameter.name):
        raise ValueError(
            f"tool {name!r}: parameter {parameter.name!r} has no entry in the docstring; add under 'Args:' a line "
            f"`{parameter.name}: what it is.`"
        )
    described = Annotated[hint, Field(description=entries[parameter.name])]
    return Required[described] if parameter.default is parameter.empty else NotRequired[described]


def _validator(name: str, fields: dict[str, Any]) -> TypeAdapter[Any]:
    # A TypedDict rather than a model: any parameter name is allowed, and the result is a plain dict.
    arguments = TypedDict("Arguments", fields)  # type: ignore[misc]
    try:
        return TypeAdapter(with_config(ConfigDict(extra="forbid", coerce_numbers_to_str=True))(arguments))
    except PydanticUserError as error:
        raise TypeError(
            f"tool {name!r}: a parameter's type has no JSON schema: {error.message.partition('. ')[0]}. Take e.g. str, "
            f"int, list[str], Literal['a', 'b'], a dataclass or a TypedDict"
        ) from error


def _clean(schema: Any) -> Any:
    """Return the schema without pydantic's titles and `additionalProperties`, which only cost prompt tokens."""
    if isinstance(schema, list):
        return [_clean(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        key: {name: _clean(value) for name, value in entry.items()} if key in ("properties", "$defs") else _clean(entry)
        for key, entry in schema.items()
        if not (key == "title" and isinstance(entry, str))
        and not (key == "additionalProperties" and isinstance(entry, bool))
    }
