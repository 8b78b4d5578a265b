"""The limit of tool calls in an episode: calls over it are refused, and the model reads so in their place."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import takewhile

from ..core import Message, ToolCall, ToolSchema
from ..episode import ToolCallRecord, Turn
from ..tools.execution import refuse

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


def insert_refused(refused: Refused, turn: Turn) -> None:
    """Insert the results of a turn's refused calls among the environment's results of its other calls."""
    results = list(takewhile(lambda message: message["role"] == "tool", turn.observation))
    others = turn.observation[len(results) :]
    for place, (message, record) in refused.items():  # in the order of the calls, so that each finds its place
        results.insert(place, message)
        turn.tool_calls.insert(place, record)
    turn.observation = results + others
