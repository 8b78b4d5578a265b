"""Policies: the models that play.

- `Policy`, `Conversation`, `Act`: the contract. A policy begins one conversation for each episode.
- `continued`: an answer whose first words the environment gave.
- `ScriptedPolicy`: answers from a script, for tests, examples and benchmarks. It loads no model.
"""

from __future__ import annotations

import asyncio
import inspect
import itertools
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Never, Protocol

from .core import ConfigurationError, Message, StopReason, ToolSchema, text_of
from .episode import EpisodeSpec
from .tokens import TokenTrace


@dataclass(kw_only=True, slots=True, frozen=True)
class Act:
    """The policy's answer in one turn."""

    message: Message
    num_tokens: int = 0  # tokens that were sampled
    num_prompt_tokens: int = 0  # tokens that the model was shown
    num_cached_tokens: int = 0  # of these, tokens that the engine still had in its cache
    weight_version: int | None = None  # number of optimiser steps behind the weights
    waiting_seconds: float = 0.0  # before the engine began with the answer, as far as it tells
    stop: StopReason | None = None  # the limit that cut the answer; None if the answer is complete


class Conversation(Protocol):
    """One line of an episode: `act` and `observe` alternate, beginning with `act`."""

    @property
    def trace(self) -> TokenTrace | None:
        """The exact tokens so far; None for a policy without tokens."""
        ...

    async def act(self, *, max_tokens: int | None = None, stop: tuple[str, ...] = ()) -> Act:
        """Return the next answer.

        Args:
            max_tokens: The most tokens of the answer, beside the policy's own limits.
            stop: Texts that end the answer. Its message has the text before the first of them.
        """
        ...

    async def observe(self, messages: Sequence[Message], *, last: bool, whole: bool = False) -> None:
        """Add the new messages.

        Args:
            messages: They follow the last answer.
            last: The episode is over, so the messages are cut to fit and no answer follows.
            whole: The next answer must have room for as many tokens as one answer may have.

        Raises:
            LimitReachedError: no answer can follow, and nothing was added. It is an `OverlongPromptError` if the
                context is full.
        """
        ...

    def fitted(self, messages: Sequence[Message]) -> Sequence[Message]:
        """Return new messages as `observe` would show them to the model, cut to the length that they may have."""
        ...

    def further(self, messages: Sequence[Message], tools: Sequence[ToolSchema]) -> Conversation:
        """Return the conversation of a further line of the same episode; whatever counts over an episode goes on.

        Raises:
            LimitReachedError: no answer can follow.
        """
        ...


class Policy(Protocol):
    """Begins conversations."""

    def begin(self, spec: EpisodeSpec, messages: Sequence[Message], tools: Sequence[ToolSchema]) -> Conversation:
        """Return the conversation of an episode's first line, which starts from these messages, with these tools.

        If the last message is the assistant's, the model goes on with its words: the message of the first `Act` is
        the whole answer, these words included.

        Raises:
            OverlongPromptError: the prompt leaves no room for an answer; the episode is dropped, not failed.
        """
        ...


def continued(words: Message, answer: Message) -> Message:
    """Return the whole answer, from its first words, which the environment gave, and the rest."""
    given: Any = {key: value for key, value in words.items() if value is not None}  # tables fill absent keys with None
    whole: Any = {**given, **answer, "content": text_of(words) + text_of(answer)}
    thought = given.get("reasoning_content", "") + answer.get("reasoning_content", "")
    return whole | {"reasoning_content": thought} if thought else whole


def text_before(text: str, stop: Sequence[str], start: int = 0) -> str:
    """Return the text before the first of these texts that is found at `start` or behind it."""
    return text[: min((place for end in stop if (place := text.find(end, start)) >= 0), default=len(text))]


def tool_call(name: str, /, *unnamed: Never, **arguments: Any) -> Message:
    """Return an assistant message that calls one tool: `tool_call("add", a=1, b=2)`.

    Raises:
        TypeError: an argument has no name.
    """
    if unnamed:
        raise TypeError(f"tool_call({name!r}, ...) takes arguments by name, such as a=1, or **dict, got {unnamed[0]!r}")
    return tool_calls((name, arguments))


def tool_calls(*calls: tuple[str, dict[str, Any]]) -> Message:
    """Return an assistant message that calls several tools: `tool_calls(("add", {"a": 1, "b": 2}), ...)`."""
    return {
        "role": "assistant",
        "content": "",
        "tool_calls": [
            {"id": f"call_{index}", "type": "function", "function": {"name": name, "arguments": arguments}}
            for index, (name, arguments) in enumerate(calls)
        ],
    }


Script = Sequence[Message | str] | Callable[..., Message | str | Awaitable[Message | str]]
"""Answers in order, or a function of the messages so far, or of the messages and the tools (synchronous or not)."""


class ScriptedPolicy:
    """Answers from a script: the same answers in every episode, or a function of the conversation.

    If the environment gives the first words of the first answer, the script's first answer is the rest of it. The lines
    of an episode share the answers. A script has no tokens, so no limit of tokens cuts its answers.

    Args:
        script: Messages (or plain texts) in order, or a function that answers. It is given all messages so far and,
            if it has a second parameter without a default, the schemas of the episode's tools.
        delay: Seconds that each answer takes, as a model's would.

    Raises:
        TypeError: the script is a single answer, or an answer is neither text nor a message.
    """

    def __init__(self, script: Script, *, delay: float = 0.0) -> None:
        if isinstance(script, str | Mapping):
            raise TypeError(f"a script is a list of answers or a function, got one answer: {script!r}; write [answer]")
        if isinstance(script, type):
            raise TypeError(f"a script is a list of answers or a function, got the class {script.__name__}")
        for place, answer in enumerate(() if callable(script) else script):
            if not isinstance(answer, str) and (not isinstance(answer, Mapping) or "role" not in answer):
                raise TypeError(
                    f"an answer of a script is text or a message such as tool_call('look'), got {answer!r} at place "
                    f"{place}"
                )
        self.script = script
        self.delay = delay
        self.sees_tools = callable(script) and _takes_two(script)

    def begin(
        self, spec: EpisodeSpec, messages: Sequence[Message], tools: Sequence[ToolSchema]
    ) -> _ScriptedConversation:
        return _ScriptedConversation(self, messages, tools, itertools.count())


def _takes_two(function: Callable[..., Any]) -> bool:
    """Return whether a function has a second parameter without a default, for the tools."""
    parameters = inspect.signature(function).parameters.values()
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return sum(taken.kind in positional and taken.default is taken.empty for taken in parameters) == 2


class TokenlessConversation:
    """The part of a `Conversation` that is the same for all policies without tokens."""

    trace = None

    def check_room(self, *, whole: bool) -> None:
        """Raise a ConfigurationError if the next answer must have the `whole` room of one: that room is not known."""
        if whole:
            raise ConfigurationError(
                "compact= needs a policy that knows how full the model's context is, and neither a script nor a server "
                "tells: give compact=EveryTurn(f), which is called after every turn"
            )

    def fitted(self, messages: Sequence[Message]) -> Sequence[Message]:
        return messages


class _ScriptedConversation(TokenlessConversation):
    def __init__(
        self, policy: ScriptedPolicy, messages: Sequence[Message], tools: Sequence[ToolSchema], turns: Iterator[int]
    ) -> None:
        self._policy = policy
        self._messages = list(messages)
        self._tools = list(tools)
        self._goes_on = bool(messages) and messages[-1]["role"] == "assistant"
        self._turns = turns  # numbers of the answers that are still to come

    async def act(self, *, max_tokens: int | None = None, stop: tuple[str, ...] = ()) -> Act:
        if self._policy.delay:
            await asyncio.sleep(self._policy.delay)
        answer = await self._next()
        message: Message = {"role": "assistant", "content": answer} if isinstance(answer, str) else answer
        if stop:
            message = {**message, "content": text_before(text_of(message), stop)}
        if self._goes_on:
            message, self._goes_on = continued(self._messages.pop(), message), False
        self._messages.append(message)
        return Act(message=message)

    async def _next(self) -> Message | str:
        script = self._policy.script
        if callable(script):
            answer = script(self._messages, self._tools) if self._policy.sees_tools else script(self._messages)
            return await answer if isinstance(answer, Awaitable) else answer
        turn = next(self._turns)
        if turn >= len(script):
            raise IndexError(
                f"the script has {len(script)} answers, and the environment asked for one more after "
                f"{self._messages[-1]!r}"
            )
        return script[turn]

    async def observe(self, messages: Sequence[Message], *, last: bool, whole: bool = False) -> None:
        self.check_room(whole=whole)
        self._messages.extend(messages)

    def further(self, messages: Sequence[Message], tools: Sequence[ToolSchema]) -> _ScriptedConversation:
        return _ScriptedConversation(self._policy, messages, tools, self._turns)
