"""Compaction: a user's function rewrites the history that the model sees."""

from __future__ import annotations

import copy
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from ...envs.core import ConfigurationError, Message, ToolSchema
from ...envs.engine.failures import at_stage
from ...envs.runtime.user_calls import call_function
from ...envs.spaces import check_messages
from ...envs.tokens import TokenTrace
from ..chat.chat_format import ChatFormat
from ..tool_calls.assistant_message import THINK
from .budgets import TokenBudgets

Rewrite = Callable[[list[Message]], Sequence[Message] | Awaitable[Sequence[Message]]]
"""Messages of an episode -> the history that the model sees next; a plain function runs in a thread."""


@dataclass(frozen=True)
class EveryTurn:
    """For `compact=`: a function that is called after every turn, not only when the context is full.

    It gets all messages of the episode, as they were played. If it returns the history that the model has seen, and the
    new messages after it, then the sample goes on. Any other history begins a sample.
    """

    rewrite: Rewrite


Compact = Rewrite | EveryTurn


def strip_thoughts(messages: Sequence[Message]) -> list[Message]:
    """The messages without the thoughts of answers before the last message of the user.

    The chat templates of many reasoning models, such as Qwen3's, drop the same thoughts. So a model that is trained
    with `compact=EveryTurn(strip_thoughts)` sees the histories that it sees when it is used.
    """
    last = max((index for index, each in enumerate(messages) if each["role"] == "user"), default=0)
    return [*map(_without_thought, messages[:last]), *messages[last:]]


def _without_thought(message: Message) -> Message:
    if message["role"] != "assistant":
        return message
    kept: Message = {**message}
    kept.pop("reasoning_content", None)
    content = kept.get("content")
    if isinstance(content, str) and THINK[1] in content:  # an answer that stays as it was written
        kept["content"] = content.rpartition(THINK[1])[2].lstrip("\n")
    return kept


def check_compact(compact: Compact | None, budgets: TokenBudgets) -> None:
    """Check the options of `compact`: `max_turn_tokens` decides when the history is rewritten.

    Raises:
        TypeError: `compact` is not a function.
        ConfigurationError: `max_turn_tokens` is not set, or is not less than the context.
    """
    if compact is None:
        return
    rewrite = compact.rewrite if isinstance(compact, EveryTurn) else compact
    if not callable(rewrite):
        raise TypeError(f"compact must be a function from messages to messages, got {rewrite!r}")
    longest, context = budgets.max_turn_tokens, budgets.max_model_len
    if not isinstance(compact, EveryTurn) and (longest is None or longest >= context):
        raise ConfigurationError(
            f"compact= rewrites the history when the context has less room than one answer may take, so "
            f"max_turn_tokens must be set, to less than the context of {context} tokens; got {longest}. "
            f"compact=EveryTurn(f) is called after every turn instead"
        )


async def rewritten(rewrite: Rewrite, messages: Sequence[Message]) -> list[Message]:
    """The history that the user's function makes of these messages.

    The episode fails at the stage `compact` if the function raises an exception, or returns no list of messages.
    """
    with at_stage("compact"):
        history = await call_function(rewrite, copy.deepcopy(list(messages)))
        check_messages(history, "compact()")
        if history and history[-1]["role"] == "assistant" and history[-1] not in messages[-1:]:
            raise ValueError(
                "compact() gave a history that ends with a message of the assistant that is not the model's last "
                "answer; only the messages of reset() may end with the words that the model goes on with"
            )
        return list(history)


def new_trace(
    chat: ChatFormat, history: Sequence[Message], tools: Sequence[ToolSchema], *, length: int | None = None
) -> TokenTrace:
    """A trace that begins with a rewritten history.

    The episode fails at the stage `compact` if the history cannot be rendered, or has at least `length` tokens.
    """
    with at_stage("compact"):
        try:
            prompt = chat.prompt_tokens(history, tools)
        except ConfigurationError as error:  # of this episode only: it must not stop the run
            raise ValueError(f"the messages of compact() cannot be rendered: {error}") from error
        if length is not None and len(prompt) >= length:
            raise ValueError(
                f"compact() gave a history of {len(prompt)} tokens in place of one of {length}; it must be shorter"
            )
        return TokenTrace.of(prompt)
