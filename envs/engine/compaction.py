"""Compaction: a user's function rewrites the history that the model sees. The rewritten history begins a line."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ..core import Message, OverlongPromptError, ToolSchema
from ..episode import Stage
from ..images import Image, images_of, with_parts
from ..runtime.user_calls import call_function
from ..spaces import check_messages
from .episode_model import EpisodeModel, Line
from .histories import copied

Rewrite = Callable[[list[Message]], Sequence[Message] | Awaitable[Sequence[Message]]]
"""Messages of an episode -> the history that the model sees next; a plain function runs in a thread."""


@dataclass(frozen=True)
class EveryTurn:
    """For `compact=`: a function that is called after every turn, not only when the context is full.

    It gets all messages of the episode, as they were played. If it returns a history that the model has seen, and new
    messages after it, then the sample goes on. Any other history begins a sample.
    """

    rewrite: Rewrite


Compact = Rewrite | EveryTurn


EARLIER_IMAGE = "[an earlier image]"


def last_images(count: int) -> Rewrite:
    """Return a function for `compact=` that keeps the latest `count` pictures; `EARLIER_IMAGE` stands for older ones.

    `compact=EveryTurn(last_images(3))` shows three at most, as agents that use a computer do; each further picture
    begins a sample. `compact=last_images(3)` drops the older ones only when the context is full.

    Raises:
        ValueError: `count` is less than 0.
    """
    if count < 0:
        raise ValueError(f"last_images takes a number of pictures, at least 0, got {count}")

    def rewrite(messages: list[Message]) -> list[Message]:
        older = len(images_of(messages)) - count

        def shown(part: dict[str, Any]) -> dict[str, Any]:
            nonlocal older
            if older <= 0 or not isinstance(part.get("image"), Image):
                return part
            older -= 1
            return {"type": "text", "text": EARLIER_IMAGE}

        return [with_parts(message, shown) for message in messages]

    return rewrite


def check_compact(compact: Compact | None) -> None:
    """Raise a TypeError if this is no function."""
    rewrite = compact.rewrite if isinstance(compact, EveryTurn) else compact
    if rewrite is not None and not callable(rewrite):
        raise TypeError(f"compact must be a function from messages to messages, got {rewrite!r}")


async def compacted(
    model: EpisodeModel,
    compact: Compact | None,
    history: list[Message],
    tools: Sequence[ToolSchema],
    enter: Callable[[Stage], None],
) -> tuple[Line, list[Message]]:
    """Return the line of a history with new messages, and the history, which is another one if it was rewritten.

    The episode fails at the stage `compact`, which is entered by `enter`, if the function raises an exception, or
    returns no list of messages, or if its history cannot be rendered, or is not shorter than the one that did not fit.
    """
    if compact is None or not model.episode.turns:
        return await model.line(history, tools), history
    if isinstance(compact, EveryTurn):
        enter("compact")
        shown = await _rewritten(compact.rewrite, history)
        if shown == history:
            enter("policy")
        return await model.line(shown, tools), history
    try:
        return await model.line(history, tools, whole=True), history
    except OverlongPromptError as error:
        full = error
    enter("compact")
    history = await _rewritten(compact, history)
    try:
        line = await model.line(history, tools)
    except OverlongPromptError as error:
        _check_shorter(error.length, full.length)
        raise
    _check_shorter(line.length, full.length)
    return line, history


async def _rewritten(rewrite: Rewrite, messages: Sequence[Message]) -> list[Message]:
    history = await call_function(rewrite, copied(messages))
    check_messages(history, "compact()")
    if history and history[-1]["role"] == "assistant" and list(history) != messages:
        raise ValueError(
            "compact() gave a history that ends with a message of the assistant; only the messages of reset() may "
            "end with the words that the model goes on with"
        )
    return list(history)


def _check_shorter(length: int | None, full: int | None) -> None:
    if length is not None and full is not None and length >= full:
        raise ValueError(f"compact() gave a history of {length} tokens in place of one of {full}; it must be shorter")
