"""The methods of a `ToolEnv` class that are tools."""

from __future__ import annotations

import inspect

from ..tools.mark import is_tool

HOOKS = {"reset_task": "task", "reply": "message", "grade": "stop", "agrade": "stop"}
"""The methods that the environment calls, and the name of their argument."""

ATTRIBUTES = {
    "reward": "self.reward is the number that a tool, reply or grade sets: give such a method another name",
    "tools": "self.tools is a property: pass functions to the constructor, ToolEnv([...]), or assign in reset_task",
}
"""Attributes that a class may not write, with advice."""


def tool_methods(cls: type) -> tuple[str, ...]:
    """Return the names of the methods that `@tool` marks, base classes first, in the order of definition."""
    names = {name: None for base in reversed(cls.__mro__) for name in vars(base)}
    return tuple(name for name in names if is_tool(getattr(cls, name, None)))


def check_tool_methods(cls: type) -> None:
    """Raise a TypeError if a tool has a name that the environment uses itself, or a method hides a tool."""
    for name in vars(cls):
        method = getattr(cls, name)
        if is_tool(method):
            if _is_reserved(cls, name):
                raise TypeError(
                    f"{cls.__name__}.{name}: a tool's method cannot have this name, which the environment itself uses; "
                    f"rename the method, and tell the model the name with @tool(name={name!r})"
                )
            if inspect.isfunction(method) and not isinstance(vars(cls)[name], staticmethod):
                first = next(iter(inspect.signature(method).parameters), None)
                if first != "self":
                    raise TypeError(f"{cls.__name__}.{name} is a method, whose first parameter is self, got {first}")
        elif method is not None and any(is_tool(getattr(base, name, None)) for base in cls.__mro__[1:]):
            raise TypeError(
                f"{cls.__name__}.{name} overrides a tool but is not marked with @tool; mark it, or take the tool "
                f"away with `{name} = None`"
            )


def check_hooks(cls: type) -> None:
    """Check that the hooks that a class writes can be called, and that no attribute hides what the environment needs.

    Raises:
        TypeError: one of them cannot.
    """
    for name, argument in HOOKS.items():
        hook = vars(cls).get(name)
        if inspect.isfunction(hook):
            try:
                inspect.signature(hook).bind(None, None)
            except TypeError:
                raise TypeError(
                    f"{cls.__name__}.{name} takes {inspect.signature(hook)}; write `def {name}(self, {argument})`"
                ) from None
    for name, advice in ATTRIBUTES.items():
        if name in vars(cls) and not isinstance(vars(cls)[name], property):
            raise TypeError(f"{cls.__name__}.{name} is {vars(cls)[name]!r}, but {advice}")


def _is_reserved(cls: type, name: str) -> bool:
    """Return whether a base class of this package or of Gymnasium uses the name for something else than a tool."""
    bases = [base for base in cls.__mro__[1:] if base.__module__.partition(".")[0] in ("gymnast", "gymnasium")]
    known = {name for base in bases for name in (*vars(base), *inspect.get_annotations(base))}
    return name in known and not any(is_tool(vars(base).get(name)) for base in bases)
