"""Compaction: a user's function makes the history shorter before it fills the model's context."""

from __future__ import annotations

import copy
from collections.abc import Awaitable, Callable, Sequence

from ...envs.core import ConfigurationError, Message, ToolSchema
from ...envs.engine.opening_and_closing import at_stage
from ...envs.episode import TokenTrace
from ...envs.spaces import check_messages
from ...envs.user_calls import call_function
from ..chat.chat_format import ChatFormat
from .budgets import TokenBudgets

Compact = Callable[[list[Message]], Sequence[Message] | Awaitable[Sequence[Message]]]
"""All messages of an episode so far -> fewer or shorter ones; a plain function runs in a thread."""


def check_compact(compact: Compact | None, budgets: TokenBudgets) -> None:
    """Check the options of `compact`: `max_turn_tokens` decides when the history is rewritten.

    Raises:
        TypeError: `compact` is not a function.
        ConfigurationError: `max_turn_tokens` is not set, or is not less than the context.
    """
    if compact is None:
        return
    if not callable(compact):
        raise TypeError(f"compact must be a function from messages to messages, got {compact!r}")
    longest, context = budgets.max_turn_tokens, budgets.max_model_len
    if longest is None or longest >= context:
        raise ConfigurationError(
            f"compact= rewrites the history when the context has less room than one answer may take, so "
            f"max_turn_tokens must be set, to less than the context of {context} tokens; got {longest}"
        )


async def compacted(
    compact: Compact, chat: ChatFormat, messages: Sequence[Message], tools: Sequence[ToolSchema], *, length: int
) -> tuple[list[Message], TokenTrace]:
    """The messages that the user's function makes of a history of `length` tokens, and a trace that begins with them.

    The episode fails at the stage `compact` if the function raises an exception, or if its result is not a list of
    messages, cannot be rendered, or is not shorter.
    """
    with at_stage("compact"):
        shorter = await call_function(compact, copy.deepcopy(list(messages)))
        check_messages(shorter, "compact()")
        try:
            ids = chat.prompt_ids(shorter, tools)
        except ConfigurationError as error:  # of this episode only: it must not stop the run
            raise ValueError(f"the messages of compact() cannot be rendered: {error}") from error
        if len(ids) >= length:
            raise ValueError(
                f"compact() gave a history of {len(ids)} tokens in place of one of {length}; it must be shorter"
            )
        return list(shorter), TokenTrace(prompt_ids=ids)
