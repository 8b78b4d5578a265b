"""Calls of an environment, and their results: what a runner makes, or answers without making it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from ..core import ToolCall, ToolSchema
from ..episode import Outcome, ToolCallRecord
from .tool import Tool

Kind = Literal["tool", "reply", "grade"]


@dataclass(slots=True, frozen=True)
class Call:
    """A call of a tool, or of the hooks `reply` and `grade`."""

    kind: Kind
    name: str
    arguments: Mapping[str, Any]
    function: Callable[..., Any]  # without the environment that it is bound to
    schema: ToolSchema | None = None
    runs_in_replay: bool = False
    within: Mapping[str, Tool] = field(default_factory=dict)  # the tools that the call's code may call


class InsideCall(NamedTuple):
    """A call that the code of another call made."""

    record: ToolCallRecord
    again: ToolCall | None  # the call itself, if it runs again in a replay


class CallResult(NamedTuple):
    """The result of one call, before it is cut to a limit."""

    outcome: Outcome
    content: Any  # as a message has it
    traceback: str | None = None
    is_json: bool = False  # whether `content` is the JSON of a value that is no text
    inside: Sequence[InsideCall] = ()


Make = Callable[[], Awaitable[CallResult]]
"""Makes a call."""

Runner = Callable[[Call, Make], Awaitable[CallResult]]
"""Wraps the calls of one environment. Without a runner each call is made at once."""
