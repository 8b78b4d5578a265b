"""What a task expects, and what an episode gave: read from the task's row and from the model's last answer."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from .message_text import Message, named_text, written_arguments

EXPECTED = ("expected", "expected_answer", "answer", "solution", "target", "ground_truth", "label", "reference")
"""Columns of a row that hold its right answer; the first of them that a row has counts."""


def expected_of(row: Mapping[str, Any]) -> str | None:
    """Return the right answer of a row; None if no column of `EXPECTED` has it."""
    column = _column_of(row)
    return None if column is None else _as_text(row[column])


def untold(row: Mapping[str, Any], prompt: Sequence[Message]) -> dict[str, Any]:
    """Return the other columns of a row, without texts that the prompt shows."""
    shown = "\n".join(named_text(message) for message in prompt)
    return {
        name: value
        for name, value in row.items()
        if name != _column_of(row) and not (isinstance(value, str) and value in shown)
    }


def given_by(answer: Message, records: Sequence[Any]) -> str:
    """Return the answer in a last message, whose calls have these records.

    It is the arguments of the final call, which may be one that the code of another call made, or else the text.
    """
    final = next((place for place, record in enumerate(records) if record.ends_episode), None)
    if final is None:
        return named_text(answer)
    from_code = next((record for record in records[final].inside if record.ends_episode), None)
    if from_code is None:
        function = answer["tool_calls"][final]["function"]
        name, arguments = function["name"], function["arguments"]
    else:
        name, arguments = from_code.name, from_code.arguments
    if isinstance(arguments, dict) and len(arguments) == 1:
        return _as_text(*arguments.values())
    return written_arguments(arguments) or f"{name}()"


def _column_of(row: Mapping[str, Any]) -> str | None:
    return next((name for name in EXPECTED if row.get(name) is not None), None)


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=repr)
