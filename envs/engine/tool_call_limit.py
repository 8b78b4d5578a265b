"""The limit of tool calls in an episode: calls over it are refused, and the model reads so in their place."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import takewhile
from typing import TypeVar

from ..core import Message, ToolCall, ToolSchema
from ..episode import ToolCallRecord, Turn
from ..tools.execution import refuse

Item = TypeVar("Item")

Refused = Mapping[int, tuple[Message, ToolCallRecord]]
"""The results of refused calls, by the places of these calls in their turn."""


class ToolCallLimit:
    """Counts the calls that run; without a limit (None) none is refused."""

    def __init__(self, limit: int | None) -> None:
        self._limit = limit
        self._left = limit

    @property
    def is_reached(self) -> bool:
        """Whether no further call may run."""
        return self._left is not None and self._left <= 0

    def refused(
        self, calls: Sequence[ToolCall], tools: Sequence[ToolSchema], is_final: Callable[[ToolCall], bool]
    ) -> Refused:
        """Return the calls of a turn that are over the limit. A final call is never refused."""
        if self._left is None or len(calls) <= self._left:
            return {}
        left, refused = self._left, dict[int, tuple[Message, ToolCallRecord]]()
        names = {schema["function"]["name"] for schema in tools}
        for place, call in enumerate(calls):
            if left > 0 or is_final(call):
                left -= 1
            else:
                reason = f"the limit of {self._limit} tool calls is reached"
                refused[place] = refuse(call, reason, known=call["function"]["name"] in names)
        return refused

    def count(self, calls: int) -> None:
        """Count calls that ran."""
        if self._left is not None:
            self._left -= calls


def insert_refused(refused: Refused, calls: int, turn: Turn) -> None:
    """Insert the results of a turn's refused calls among the environment's results of its other calls."""
    results = list(takewhile(lambda message: message["role"] == "tool", turn.observation))
    others = turn.observation[len(results) :]
    messages = {place: message for place, (message, _) in refused.items()}
    records = {place: record for place, (_, record) in refused.items()}
    turn.observation = _in_call_order(calls, messages, results) + others
    turn.tool_calls = _in_call_order(calls, records, turn.tool_calls)


def _in_call_order(count: int, refused: Mapping[int, Item], given: Sequence[Item]) -> list[Item]:
    """Merge the items of refused calls, at the places of their calls, with the items of the other calls."""
    rest = list(given)
    merged = [refused[place] if place in refused else rest.pop(0) for place in range(count) if place in refused or rest]
    return merged + rest
