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


def refused_calls(
    calls: Sequence[ToolCall],
    tools: Sequence[ToolSchema],
    is_final: Callable[[ToolCall], bool],
    *,
    limit: int | None,
    ran: int,
) -> Refused:
    """Return the calls of a turn that are over the limit, after so many that ran. A final call is never refused."""
    refused: dict[int, tuple[Message, ToolCallRecord]] = {}
    if limit is None or ran + len(calls) <= limit:
        return refused
    names = {schema["function"]["name"] for schema in tools}
    for place, call in enumerate(calls):
        if ran < limit or is_final(call):
            ran += 1
        else:
            reason = f"the limit of {limit} tool calls is reached"
            refused[place] = refuse(call, reason, known=call["function"]["name"] in names)
    return refused


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
