"""The results of refused tool calls, among those of the calls that ran."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import takewhile
from typing import TypeVar

from ..core import Message
from ..episode import ToolCallRecord, Turn

Item = TypeVar("Item")


def insert_refused(refused: Mapping[int, tuple[Message, ToolCallRecord]], calls: int, turn: Turn) -> None:
    """Insert the results of a turn's refused calls among the environment's results of its other calls."""
    results = list(takewhile(lambda message: message["role"] == "tool", turn.observation))
    others = turn.observation[len(results) :]
    messages = {index: message for index, (message, _) in refused.items()}
    records = {index: record for index, (_, record) in refused.items()}
    turn.observation = _in_call_order(calls, messages, results) + others
    turn.tool_calls = _in_call_order(calls, records, turn.tool_calls)


def _in_call_order(count: int, refused: Mapping[int, Item], given: Sequence[Item]) -> list[Item]:
    """Merge the items of refused calls, at the places of their calls, with the items of the other calls."""
    rest = list(given)
    merged = [refused[each] if each in refused else rest.pop(0) for each in range(count) if each in refused or rest]
    return merged + rest
