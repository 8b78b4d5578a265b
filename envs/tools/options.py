"""The options of a `ToolEnv`, which a subclass may also set as class attributes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, get_args

if TYPE_CHECKING:
    from .tool_env import ToolEnv

OnMalformed = Literal["feedback", "end", "text"]

FROM_CLASS: Any = object()
"""The default of options that a subclass may set as class attributes."""


def set_options(environment: ToolEnv, **options: Any) -> None:
    """Set the options that the constructor was given; for the others the class attributes hold."""
    for name, value in options.items():
        if value is not FROM_CLASS:
            setattr(environment, name, value)


def check_options(environment: ToolEnv) -> None:
    """Check that each option is in its range.

    Raises:
        ValueError: it is not.
    """
    if environment.tool_timeout is not None and environment.tool_timeout <= 0:
        raise ValueError(f"tool_timeout must be positive or None, got {environment.tool_timeout}")
    if environment.on_malformed not in get_args(OnMalformed):
        raise ValueError(f"on_malformed must be one of {get_args(OnMalformed)}, got {environment.on_malformed!r}")
    for name in ("max_malformed", "max_result_chars"):
        value = getattr(environment, name)
        if value is not None and value < 1:
            raise ValueError(f"{name} must be at least 1, got {value}")
