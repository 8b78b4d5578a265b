"""The options of a `ToolEnv` that a subclass may also set as class attributes."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Literal, TypedDict, get_args

OnMalformed = Literal["feedback", "end", "text"]


class ToolEnvOptions(TypedDict, total=False):
    """The options that the constructor was given; for the others the class attributes hold."""

    tool_timeout: float | None
    max_result_chars: int | None
    on_malformed: OnMalformed
    max_malformed: int
    final_tools: Collection[str]
    stop_tool_names: Collection[str]  # another name of `final_tools`


def set_options(environment: Any, given: ToolEnvOptions) -> None:
    """Set the options of an environment that were given, and check that each option is known and in its range."""
    options: dict[str, Any] = dict(given)
    name = type(environment).__name__
    if unknown := options.keys() - ToolEnvOptions.__annotations__.keys():
        raise TypeError(
            f"{name} has no option {min(unknown)!r}; those of every ToolEnv are {list(ToolEnvOptions.__annotations__)}"
        )
    if "stop_tool_names" in options:
        if "final_tools" in options:
            raise ValueError("final_tools and stop_tool_names are two names of one option: give one of them")
        options["final_tools"] = options.pop("stop_tool_names")
    for option, value in options.items():
        setattr(environment, option, value)
    if environment.tool_timeout is not None and environment.tool_timeout <= 0:
        raise ValueError(f"tool_timeout must be positive or None, got {environment.tool_timeout}")
    if environment.on_malformed not in get_args(OnMalformed):
        raise ValueError(f"on_malformed must be one of {get_args(OnMalformed)}, got {environment.on_malformed!r}")
    for option in ("max_malformed", "max_result_chars"):
        value = getattr(environment, option)
        if value is not None and value < 1:
            raise ValueError(f"{option} must be at least 1, got {value}")
