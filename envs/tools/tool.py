"""Tools: functions that the model may call, their JSON schemas, and the checking of arguments.

A tool is a plain function or method with type hints and a Google-style docstring. `@tool` marks the methods of a
`ToolEnv`; a plain function needs no mark.
"""

from __future__ import annotations

import difflib
import functools
import inspect
import operator
import re
import sys
import types
import weakref
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NotRequired, Required, TypeVar, get_args, get_type_hints, overload

import docstring_parser
import pydantic_core
from pydantic import ConfigDict, Field, TypeAdapter, with_config
from pydantic.errors import PydanticUserError
from typing_extensions import TypedDict

from ..core import ConfigurationError, ToolSchema
from .arguments import checked_arguments

Function = TypeVar("Function", bound=Callable[..., Any])

Replay = Literal["history", "arguments", "run"]
"""How a replay finds the result of a tool's call; see `tool`."""

_MARK = "__gymnast_tool__"  # the attribute of a marked function that keeps the options given to `@tool(...)`
_KEPT: Any = object()  # an option that is not given: an earlier mark's, or else the default


@overload
def tool(function: Function, /) -> Function: ...
@overload
def tool(
    *,
    name: str | None = None,
    final: bool = False,
    timeout: float | None = None,
    parallel: bool = False,
    replay: Replay = "history",
) -> Callable[[Function], Function]: ...
def tool(
    function: Function | None = None,
    /,
    *,
    name: str | None = _KEPT,
    final: bool = _KEPT,
    timeout: float | None = _KEPT,
    parallel: bool = _KEPT,
    replay: Replay = _KEPT,
) -> Function | Callable[[Function], Function]:
    """Mark a method of a `ToolEnv`, or a plain function, as a tool.

    The mark is on the function that is returned, a copy: `tool(final=True)(f)` is another tool than `f`, and leaves `f`
    as it is. If `f` is marked already, the copy keeps its options except those that are given.

    Args:
        function: The function, when the decorator is used without parentheses.
        name: The name that the model sees; the function's own name by default.
        final: A successful call ends the episode with `StopReason.FINAL_ANSWER`.
        timeout: Seconds that a call may take; the environment's `tool_timeout` by default, `math.inf` for a tool that
            keeps a time limit itself.
        parallel: Neighbouring calls of parallel tools in one turn run at the same time, for instance to wait for
            several searches at once. By default the calls of a turn run one after the other.
        replay: How a replayed cassette finds the result of a call: "history", by everything that happened in the
            episode before; "arguments", by the task and the arguments alone, for a tool that changes nothing; "run",
            not at all, for a tool that touches nothing but the environment's attributes and so is run again.

    Raises:
        TypeError: it is not a function.
        ValueError: the timeout is not positive, `replay` is unknown, or the tool is both final and parallel.
    """
    given = {"name": name, "final": final, "timeout": timeout, "parallel": parallel, "replay": replay}
    options = {key: value for key, value in given.items() if value is not _KEPT}
    _check_options(options)

    def mark(function: Function) -> Function:
        return _marked(function, options)

    return mark if function is None else mark(function)


def _check_options(options: Mapping[str, Any]) -> None:
    timeout, replay = options.get("timeout"), options.get("replay", "history")
    if timeout is not None and timeout <= 0:
        raise ValueError(f"a tool's timeout must be positive, got {timeout}")
    if options.get("final") and options.get("parallel"):
        raise ValueError("a tool cannot be both final and parallel: no other call runs beside a final one")
    if replay not in get_args(Replay):
        raise ValueError(f"a tool's replay must be one of {get_args(Replay)}, got {replay!r}")


def _marked(function: Any, options: Mapping[str, Any]) -> Any:
    """A copy of the function with this mark. Other environments may use the function itself."""
    if isinstance(function, staticmethod | classmethod):
        return type(function)(_marked(function.__func__, options))
    if inspect.ismethod(function):
        return types.MethodType(_marked(function.__func__, options), function.__self__)
    copied = _copied(function)
    options = {**getattr(function, _MARK, {}), **options}
    _check_options(options)
    setattr(copied, _MARK, options)
    return copied


def _copied(function: Any) -> Any:
    if not isinstance(function, types.FunctionType | functools._lru_cache_wrapper):
        raise TypeError(f"@tool marks a function, got {type(function).__name__}: {function!r}; write a `def`")
    copied: Any
    if isinstance(function, types.FunctionType):
        code, defaults, closure = function.__code__, function.__defaults__, function.__closure__
        copied = types.FunctionType(code, function.__globals__, function.__name__, defaults, closure)
        copied.__kwdefaults__ = function.__kwdefaults__
    else:
        copied = lambda *args, **kwargs: function(*args, **kwargs)  # noqa: E731  (the attributes are set)
        copied.cache_info, copied.cache_clear = function.cache_info, function.cache_clear
    return functools.update_wrapper(copied, function)


def recipe_of(function: types.FunctionType) -> tuple[Any, ...] | None:
    """How to make a marked copy again, as pickle takes it; None for other functions, and if no name finds the original.

    No name finds the copy, so it would be pickled with its code and a copy of its module's globals.
    """
    original = inspect.unwrap(function, stop=_is_found_by_name)
    is_copy = is_tool(function) and original is not function and _is_found_by_name(original)
    if not is_copy or getattr(original, "__code__", None) is not function.__code__:  # a decorator's wrapper is no copy
        return None
    return _marked, (original, getattr(function, _MARK))


def _is_found_by_name(function: Any) -> bool:
    try:
        return operator.attrgetter(function.__qualname__)(sys.modules[function.__module__]) is function
    except (AttributeError, KeyError):
        return False


def is_tool(function: Any) -> bool:
    """Whether `@tool` marked this function."""
    return callable(function) and hasattr(function, _MARK)


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
    row_schema: ToolSchema | None = None  # a row's schema, which the model sees in place of the tool's own

    @classmethod
    def of(cls, function: Callable[..., Any] | Tool) -> Tool:
        """The tool that a function or method describes by its signature, type hints and docstring.

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

    def check_arguments(self, arguments: Any) -> dict[str, Any]:
        """The arguments checked and converted by the signature; a string that holds JSON is accepted at both levels.

        Raises:
            ArgumentError: they do not fit.
        """
        return checked_arguments(self.name, arguments, self.validator)


def collect_tools(functions: Any, owner: str) -> dict[str, Tool]:
    """Tools by name, in order.

    Raises:
        ConfigurationError: two of them have the same name.
    """
    tools: dict[str, Tool] = {}
    for each in functions:
        candidate = Tool.of(each)
        if candidate.name in tools:
            raise ConfigurationError(
                f"{owner} has two tools named {candidate.name!r}: rename one with @tool(name=...), or those of a "
                f"server with MCPTools(..., prefix=...); known so far: {sorted(tools)}"
            )
        tools[candidate.name] = candidate
    return tools


def unknown_tool(name: str, known: Collection[str]) -> str:
    """The part of an error about a name that no tool has."""
    near = difflib.get_close_matches(name, known, n=3)
    hint = f" (did you mean {' or '.join(map(repr, near))}?)" if near else ""
    return f"{name!r}{hint}, which is not among the tools {list(known)}"


@tool(final=True)
def final_answer(answer: str) -> str:
    """Give the final answer, which ends the task.

    Args:
        answer: The final answer.
    """
    return answer


# By function, and whether it is a bound method. A description is costly and an environment is made for each episode;
# keys are weak, so that functions made for one episode go with it.
_descriptions: weakref.WeakKeyDictionary[Callable[..., Any], dict[bool, dict[str, Any]]] = weakref.WeakKeyDictionary()


def _describe(function: Callable[..., Any]) -> dict[str, Any]:
    """All fields of a `Tool` except the function."""
    options: dict[str, Any] = getattr(function, _MARK, {})
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
    return {**options, "name": name, "description": description, "parameters": schema, "validator": validator}


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
        raise TypeError(f"tool {name!r}: its type hints cannot be resolved: {error}") from error
    parameters = list(inspect.signature(function).parameters.values())
    for parameter in parameters:
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
            raise TypeError(f"tool {name!r}: parameter '{parameter}' must be an ordinary named parameter")
        if parameter.name not in hints:
            raise TypeError(
                f"tool {name!r}: parameter {parameter.name!r} has no type hint; write e.g. `{parameter.name}: int`"
            )
    return [(parameter, hints[parameter.name]) for parameter in parameters]


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
        raise TypeError(f"tool {name!r}: a parameter's type has no JSON schema: {error.message}") from error


def _clean(schema: Any) -> Any:
    """A schema without pydantic's titles and `additionalProperties`, which only cost prompt tokens."""
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
