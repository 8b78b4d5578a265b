"""The messages, tool calls, results and exact tokens of turns, as other formats have them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any, NamedTuple

from ...envs.core import Message
from ...envs.episode import Episode, ToolCallRecord, Turn
from ...envs.images import Image, images_of, parts_of
from ...envs.runtime.message_text import named_text
from ...records.files.episodes import EpisodeRow

Played = Sequence[tuple[EpisodeRow, Episode]]
"""Episodes with their rows, at least one."""


def origin_of(row: EpisodeRow) -> str:
    """Return what names the round of an episode, its step, or its evaluation, the step and the title."""
    return f"{row.step}" if row.evaluation is None else f"{row.step}:{row.evaluation}"


def content_of(message: Message, shown: Callable[[Image], dict[str, Any]]) -> str | list[dict[str, Any]]:
    """Return the text of a message; if it shows pictures, its parts, with those that `shown` makes of the pictures."""
    if not images_of([message]):
        return named_text(message)
    return [
        shown(part["image"])
        if isinstance(part.get("image"), Image)
        else {"type": "text", "text": named_text({"content": [part]})}
        for part in parts_of(message)
    ]


def calls_of(message: Message, number: int) -> list[tuple[str, str, dict[str, Any]]]:
    """Return the id, name and arguments of each tool call of turn `number`; calls without an id get one."""
    return [
        (call.get("id") or f"turn_{number}_call_{place}", function["name"], _arguments(function["arguments"]))
        for place, call in enumerate(message.get("tool_calls") or [])
        for function in [call["function"]]
    ]


def results_of(turn: Turn, number: int) -> Iterator[tuple[str | None, Message, ToolCallRecord | None]]:
    """Yield the result messages of a turn's tools with the ids and records of their calls; results come in call order.

    A result without a call tells the model of a malformed call.
    """
    ids = iter(calls_of(turn.message, number))
    records = iter(turn.tool_calls)
    for message in turn.observation:
        if message["role"] == "tool":
            call = next(ids, None)
            yield None if call is None else call[0], message, next(records, None)


def others_of(turn: Turn) -> list[Message]:
    """Return the messages of the environment after a turn that are not results of tools."""
    return [message for message in turn.observation if message["role"] != "tool"]


def _arguments(arguments: dict[str, Any] | str) -> dict[str, Any]:
    if not isinstance(arguments, str):
        return dict(arguments)
    try:
        decoded = json.loads(arguments or "{}")
    except ValueError:
        decoded = None
    return decoded if isinstance(decoded, dict) else {"arguments": arguments}  # as the model wrote them


class TurnTokens(NamedTuple):
    """The model's input and answer in one turn."""

    prompt_ids: list[int]
    completion_ids: list[int]
    logprobs: list[float]


def turn_tokens(episode: Episode) -> list[TurnTokens | None]:
    """Return the tokens of each turn; None for turns without tokens, such as those of a server's model."""
    found: list[TurnTokens | None] = []
    sampled = [iter([place for place, mask in enumerate(trace.mask) if mask]) for trace in episode.traces]
    for turn in episode.turns:
        if not episode.traces or not turn.num_tokens:
            found.append(None)
            continue
        trace = episode.traces[turn.sample]
        places = list(islice(sampled[turn.sample], turn.num_tokens))
        found.append(
            TurnTokens(
                trace.prompt_ids + trace.completion_ids[: places[0]],
                [trace.completion_ids[place] for place in places],
                [trace.logprobs[place] for place in places],
            )
        )
    return found
