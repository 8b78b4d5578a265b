"""TokenPolicy: a chat format and a generator make a policy that keeps the exact tokens."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from ...envs.core import ConfigurationError, Message, OverlongPromptError, StopReason, ToolSchema
from ...envs.episode import EpisodeSpec
from ...envs.policy import Act
from ...envs.registry import ENVIRONMENT_COLUMN
from ...envs.runtime.seeds import stable_seed
from ...envs.tokens import Tokens, TokenTrace
from ..chat.chat_format import ChatFormat
from ..generation.contract import GenerationRequest, Generator
from ..generation.sampling import Sampling
from .budgets import TokenBudgets
from .compaction import Compact, EveryTurn, check_compact, new_trace, rewritten

OverlongPrompts = Literal["fail", "drop", "raise"]
"""The consequence of a prompt longer than the context: its episode fails or is dropped, or the run stops."""


class LongPromptError(ValueError):
    """The prompt leaves no room for an answer; its episode fails."""


OVERLONG_PROMPT_ERRORS: dict[OverlongPrompts, type[Exception]] = {
    "fail": LongPromptError,
    "drop": OverlongPromptError,
    "raise": ConfigurationError,
}


class TokenDriftError(RuntimeError):
    """The engine's record of its input differs from its request; the episode fails, and `tokens/drift` counts."""


class TokenPolicy:
    """Answers with a model, and records every token.

    Args:
        chat: Translates between messages and tokens.
        generator: Samples the answers.
        sampling: The distribution that answers are sampled from.
        budgets: Token limits.
        overlong_prompts: The consequence of a prompt longer than the context.
        compact: Rewrites the history of an episode when the context has less room than `max_turn_tokens`; or, with
            `EveryTurn`, after every turn.
        chats: Translates in its place, for rows that choose one of several environments: by their names.

    Raises:
        ConfigurationError: `compact` is given, but `max_turn_tokens` is not set, or is not less than the context.
    """

    def __init__(
        self,
        chat: ChatFormat,
        generator: Generator,
        *,
        sampling: Sampling,
        budgets: TokenBudgets,
        overlong_prompts: OverlongPrompts = "fail",
        compact: Compact | None = None,
        chats: Mapping[str, ChatFormat] | None = None,
    ) -> None:
        check_compact(compact, budgets)
        self.chat = chat
        self.generator = generator
        self.sampling = sampling
        self.budgets = budgets
        self.overlong_prompts: OverlongPrompts = overlong_prompts
        self.compact = compact
        self.chats = chats or {}

    def at(self, sampling: Sampling) -> TokenPolicy:
        """The same policy with another distribution."""
        policy = copy.copy(self)
        policy.sampling = sampling
        return policy

    def chat_of(self, spec: EpisodeSpec) -> ChatFormat:
        """The chat format of this episode's environment."""
        return self.chats[spec.task.row[ENVIRONMENT_COLUMN]] if self.chats else self.chat

    def begin(self, spec: EpisodeSpec, messages: Sequence[Message], tools: Sequence[ToolSchema]) -> TokenConversation:
        """A conversation that starts from these messages; raises the errors of `begin_trace`."""
        trace, begun = begin_trace(self.chat_of(spec), self.budgets, self.overlong_prompts, spec, messages, tools)
        history = messages[:-1] if messages and messages[-1]["role"] == "assistant" else messages
        return TokenConversation(self, spec, list(history), list(tools), trace, begun)


def turn_seed(spec: EpisodeSpec, turn: int) -> int:
    """Seeds the sampling of a turn, counted from 0."""
    return stable_seed(spec.seed, turn)


def begin_trace(
    chat: ChatFormat,
    budgets: TokenBudgets,
    overlong_prompts: OverlongPrompts,
    spec: EpisodeSpec,
    messages: Sequence[Message],
    tools: Sequence[ToolSchema],
) -> tuple[TokenTrace, list[int]]:
    """The trace of an episode that starts from these messages, and the last tokens of its prompt that begin the answer.

    Raises:
        ConfigurationError: the model cannot use these tools.
        LongPromptError, OverlongPromptError, ConfigurationError: the prompt is too long and `overlong_prompts` is
            "fail", "drop" or "raise".
    """
    chat.check_tools(tools)
    before, begun = chat.begin(messages, tools)
    prompt = before + Tokens(begun)
    if len(prompt) >= budgets.max_model_len:
        raise OVERLONG_PROMPT_ERRORS[overlong_prompts](
            f"the prompt of task {spec.task.id!r} has {len(prompt)} tokens, which leaves no room for an answer in "
            f"max_model_len={budgets.max_model_len}; shorten it, or set overlong_prompts='drop'"
        )
    return TokenTrace.of(prompt), begun


class TokenConversation:
    """One episode's tokens; a new trace begins when the history is rewritten."""

    def __init__(
        self,
        policy: TokenPolicy,
        spec: EpisodeSpec,
        messages: list[Message],
        tools: list[ToolSchema],
        trace: TokenTrace,
        begun: list[int],
    ) -> None:
        self.traces = [trace]
        self._policy = policy
        self._chat = policy.chat_of(spec)
        self._spec = spec
        self._begun = begun  # tokens of the next answer that its prompt ends with
        self._messages = messages  # all of them
        self._history = list(messages)  # the messages that the model sees
        self._tools = tools
        self._turn = 0
        self._calls = 0

    async def act(self) -> Act:
        policy, trace, budgets = self._policy, self.traces[-1], self._policy.budgets
        room, reason = self._room(trace)
        if budgets.max_turn_tokens is not None and budgets.max_turn_tokens < room:
            room, reason = budgets.max_turn_tokens, StopReason.TURN_TRUNCATED
        prompt = trace.tokens
        request = GenerationRequest(
            prompt=prompt,
            max_tokens=room,
            stop_ids=self._chat.end_ids,
            seed=turn_seed(self._spec, self._turn),
            sampling=policy.sampling,
            session=self,
        )
        generation = await policy.generator.generate(request)
        self._turn += 1
        self._check_prompt(generation.prompt, prompt)
        trace.append_sampled(generation.token_ids, generation.logprobs)
        before, answer = prompt[: len(prompt) - len(self._begun)], [*self._begun, *generation.token_ids]
        self._begun = []
        message = self._chat.parse(before, answer, self._tools, calls_before=self._calls)
        self._calls += len(message.get("tool_calls", []))
        self._add([self._chat.as_history(message, answer)])
        return Act(
            message=message,
            num_tokens=len(generation.token_ids),
            num_prompt_tokens=len(prompt),
            num_cached_tokens=generation.num_cached,
            weight_version=generation.weight_version,
            waiting_seconds=generation.waiting_seconds,
            stop=reason if generation.finish == "length" else None,
        )

    async def observe(self, messages: Sequence[Message], *, last: bool) -> StopReason | None:
        budgets, chat, trace = self._policy.budgets, self._chat, self.traces[-1]
        final = trace.completion_ids[-1] if trace.completion_ids else None
        ended_by = final if final in chat.end_ids else None
        room, reason = self._room(trace)
        if last and (not messages or not room):
            return None
        allowed = [] if budgets.max_observation_tokens is None else [budgets.max_observation_tokens]
        allowed += [room] if last else []  # only the last observation is cut to the room that is left
        options: dict[str, Any] = {"tools": self._tools, "ended_by": ended_by, "last": last}
        if allowed:
            tokens, messages = chat.fit_observation(messages, max_tokens=min(allowed), **options)
        else:
            tokens = chat.observation_tokens(messages, **options)
        if last:
            trace.append_observation(tokens.up_to(room))
            return None
        self._add(messages)
        new = await self._rewritten(len(trace) + len(tokens))
        if new is not None:
            room, reason = self._room(new)
            if room <= 0:
                return reason
            self.traces.append(new)
            return None
        if len(tokens) >= room:
            return reason
        trace.append_observation(tokens)
        return None

    async def _rewritten(self, length: int) -> TokenTrace | None:
        """A trace of the rewritten history; None if the history of `length` tokens stays."""
        compact, budgets, chat = self._policy.compact, self._policy.budgets, self._chat
        if isinstance(compact, EveryTurn):
            history = await rewritten(compact.rewrite, self._messages)
            if history == self._history:
                return None
            self._history = history
            return new_trace(chat, history, self._tools)
        if compact is None or length + (budgets.max_turn_tokens or 0) <= budgets.max_model_len:
            return None
        self._history = await rewritten(compact, self._history)
        return new_trace(chat, self._history, self._tools, length=length)

    def _add(self, messages: Sequence[Message]) -> None:
        self._messages += messages
        self._history += messages

    def _check_prompt(self, seen: Tokens, sent: Tokens) -> None:
        if seen != sent:
            drift = seen.count_differences(sent)
            self.traces[-1].drift += drift
            raise TokenDriftError(
                f"the engine saw another prompt than it was sent: {drift} of {len(sent)} tokens differ, so its answer "
                f"cannot be learned from"
            )

    def _room(self, trace: TokenTrace) -> tuple[int, StopReason]:
        """Tokens that may still follow this trace, and the stop reason of the budget that limits them."""
        budgets = self._policy.budgets
        episode = budgets.max_completion_length - sum(len(each.completion_ids) for each in self.traces)
        context = budgets.max_model_len - len(trace)
        return (context, StopReason.CONTEXT_OVERFLOW) if context < episode else (episode, StopReason.MAX_TOKENS)
