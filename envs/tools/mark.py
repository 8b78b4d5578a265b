"""The mark `@tool`, and how marked functions are copied."""

from __future__ import annotations

import functools
import inspect
import operator
import sys
import types
from collections.abc import Callable, Mapping
from typing import Any, Literal, TypedDict, TypeVar, Unpack, get_args, overload

from ...sandbox.keywords import unknown_names
from ...sandbox.limits import check_positive

Function = TypeVar("Function", bound=Callable[..., Any])

Replay = Literal["history", "run"]
"""How a replay finds the result of a tool's call; see `tool`."""

MARK = "__gymnast_tool__"  # the attribute of a marked function that keeps the options given to `@tool(...)`


class ToolOptions(TypedDict, total=False):
    """The options of `@tool(...)`. Options that are not given keep the value of an earlier mark, or the default."""

    name: str | None
    final: bool
    timeout: float | None
    parallel: bool
    replay: Replay


@overload
def tool(function: Function, /) -> Function: ...
@overload
def tool(**options: Unpack[ToolOptions]) -> Callable[[Function], Function]: ...
def tool(
    function: Function | None = None, /, **options: Unpack[ToolOptions]
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
        replay: How a replayed cassette finds the result of a call: "history" (the default), by everything that happened
            in the episode before; "run", not at all, for a tool that touches nothing but the environment's attributes
            and so is run again.

    Raises:
        TypeError: it is not a function, or an option is unknown.
        ValueError: the timeout is not positive, `replay` is unknown, or the tool is both final and parallel.
    """
    _check(options)
    mark = functools.partial(_marked, options=options)
    return mark if function is None else mark(function)


def _check(options: Mapping[str, Any]) -> None:
    if unknown := options.keys() - ToolOptions.__annotations__.keys():
        raise unknown_names("@tool", unknown, ToolOptions.__annotations__)
    timeout, replay = options.get("timeout"), options.get("replay", "history")
    check_positive(timeout, "a tool's timeout", "seconds")
    if options.get("final") and options.get("parallel"):
        raise ValueError("a tool cannot be both final and parallel: no other call runs beside a final one")
    if replay not in get_args(Replay):
        raise ValueError(f"a tool's replay must be one of {get_args(Replay)}, got {replay!r}")


def mark_of(function: Any) -> dict[str, Any]:
    """Return the options of a function's mark; empty if it has none."""
    return dict(getattr(function, MARK, {}))


def _marked(function: Any, options: Mapping[str, Any]) -> Any:
    """Return a copy of the function with this mark. Other environments may use the function itself."""
    if isinstance(function, staticmethod | classmethod):
        return type(function)(_marked(function.__func__, options))
    if inspect.ismethod(function):
        return types.MethodType(_marked(function.__func__, options), function.__self__)
    copied = _copied(function)
    options = {**mark_of(function), **options}
    _check(options)
    setattr(copied, MARK, options)
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
    """Return how to make a marked copy again, as pickle takes it; None for other functions.

    No name finds the copy, so it would be pickled with its code and a copy of its module's globals. It is None, too, if
    no name finds the original.
    """
    original = inspect.unwrap(function, stop=_is_found_by_name)
    is_copy = is_tool(function) and original is not function and _is_found_by_name(original)
    if not is_copy or getattr(original, "__code__", None) is not function.__code__:  # a decorator's wrapper is no copy
        return None
    return _marked, (original, mark_of(function))


def _is_found_by_name(function: Any) -> bool:
    try:
        return operator.attrgetter(function.__qualname__)(sys.modules[function.__module__]) is function
    except (AttributeError, KeyError):
        return False


def is_tool(function: Any) -> bool:
    """Return whether `@tool` marked this function."""
    return callable(function) and hasattr(function, MARK)


@tool(final=True)
def final_answer(answer: str) -> str:
    """Give the final answer, which ends the task.

    Args:
        answer: The final answer.
    """
    return answer
