"""The options of a `ToolEnv` that a subclass may also set as class attributes."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Literal, TypedDict, get_args

from ...sandbox.keywords import named_parameters, unknown_names
from ...sandbox.limits import check_positive

ADVICE = {
    "system_prompt": "a system message is the first of those that reset_task returns, or that a row has as its prompt",
    "reward_funcs": "an argument of the trainer",
}
"""Names that people expect among the options, and where they are."""

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
    if unknown := options.keys() - ToolEnvOptions.__annotations__.keys():
        known = dict.fromkeys([*named_parameters(type(environment)), *ToolEnvOptions.__annotations__])
        raise unknown_names(type(environment).__name__, unknown, known, ADVICE)
    if "stop_tool_names" in options:
        if "final_tools" in options:
            raise ValueError("final_tools and stop_tool_names are two names of one option: give one of them")
        options["final_tools"] = options.pop("stop_tool_names")
    for option, value in options.items():
        setattr(environment, option, value)
    check_positive(environment.tool_timeout, "tool_timeout", "seconds")
    if environment.on_malformed not in get_args(OnMalformed):
        raise ValueError(f"on_malformed must be one of {get_args(OnMalformed)}, got {environment.on_malformed!r}")
    for option in ("max_malformed", "max_result_chars"):
        check_positive(getattr(environment, option), option)
