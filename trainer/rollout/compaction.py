"""Compaction in a training: what its options need of the budgets, and a function for reasoning models."""

from __future__ import annotations

from collections.abc import Sequence

from ...envs.core import ConfigurationError, Message
from ..tool_calls.assistant_message import THINK
from .settings import TokenBudgets


def strip_thoughts(messages: Sequence[Message]) -> list[Message]:
    """The messages without the thoughts of answers before the last message of the user.

    The chat templates of many reasoning models, such as Qwen3's, drop the same thoughts. So a model that is trained
    with `compact=EveryTurn(strip_thoughts)` sees the histories that it sees when it is used.
    """
    last = max((index for index, message in enumerate(messages) if message["role"] == "user"), default=0)
    return [*map(without_thought, messages[:last]), *messages[last:]]


def without_thought(message: Message) -> Message:
    """Return a message without the thought of an answer."""
    if message["role"] != "assistant":
        return message
    kept: Message = {**message}
    kept.pop("reasoning_content", None)
    content = kept.get("content")
    if isinstance(content, str) and THINK[1] in content:  # an answer that stays as it was written
        kept["content"] = content.rpartition(THINK[1])[2].lstrip("\n")
    return kept


def check_room(budgets: TokenBudgets) -> None:
    """Raise a ConfigurationError unless `max_turn_tokens` is below the context: it decides when `compact=` rewrites."""
    longest, context = budgets.max_turn_tokens, budgets.max_model_len
    if longest is None or longest >= context:
        raise ConfigurationError(
            f"compact= rewrites the history when the context has less room than one answer may take, so "
            f"max_turn_tokens must be set, to less than the context of {context} tokens; got {longest}. "
            f"compact=EveryTurn(f) is called after every turn instead"
        )
