"""TokenPolicy: a chat format and a generator make a policy that keeps the exact tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from itertools import zip_longest
from typing import Any

from ...envs.core import (
    ConfigurationError,
    LimitReachedError,
    Message,
    OverlongPromptError,
    StopReason,
    ToolSchema,
)
from ...envs.engine.histories import same_message
from ...envs.episode import EpisodeSpec
from ...envs.policy import Act
from ...envs.registry import ENVIRONMENT_COLUMN
from ...envs.runtime.seeds import stable_seed
from ...envs.tokens import Tokens, TokenTrace
from ..chat.chat_format import ChatFormat
from ..generation.contract import GenerationRequest, Generator, StopTexts
from ..generation.sampling import Sampling
from .compaction import check_room, without_thought
from .settings import OverlongPrompts, TokenBudgets


class LongPromptError(ValueError):
    """The prompt leaves no room for an answer; its episode fails."""


OVERLONG_PROMPT_ERRORS: dict[OverlongPrompts, type[Exception]] = {
    "fail": LongPromptError,
    "drop": OverlongPromptError,
    "raise": ConfigurationError,
}


class TokenDriftError(RuntimeError):
    """The engine's record of its input differs from its request; the episode fails, and `tokens/drift` counts."""


@dataclass(eq=False)
class TokenPolicy:
    """Answers with a model, and records every token."""

    chat: ChatFormat
    generator: Generator
    _: KW_ONLY
    sampling: Sampling
    budgets: TokenBudgets
    overlong_prompts: OverlongPrompts = "fail"
    chats: Mapping[str, ChatFormat] = field(default_factory=dict)  # of several environments by name, in place of `chat`

    def at(self, sampling: Sampling) -> TokenPolicy:
        """Return the same policy with another distribution."""
        return replace(self, sampling=sampling)

    def begin(self, spec: EpisodeSpec, messages: Sequence[Message], tools: Sequence[ToolSchema]) -> TokenConversation:
        """Return a conversation that starts from these messages; raises the errors of `begin_trace`."""
        chat = self.chats[spec.task.row[ENVIRONMENT_COLUMN]] if self.chats else self.chat
        trace, begun = begin_trace(chat, self.budgets, self.overlong_prompts, spec, messages, tools)
        return TokenConversation(self, chat, spec, list(tools), trace, begun, _Spent())


def begin_trace(
    chat: ChatFormat,
    budgets: TokenBudgets,
    overlong_prompts: OverlongPrompts,
    spec: EpisodeSpec,
    messages: Sequence[Message],
    tools: Sequence[ToolSchema],
) -> tuple[TokenTrace, list[int]]:
    """Return the trace of an episode with this beginning, and the last tokens of its prompt, which begin the answer.

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


@dataclass(slots=True, eq=False)
class _Spent:
    """What the lines of one episode have in common."""

    traces: list[TokenTrace] = field(default_factory=list)
    turns: int = 0
    calls: int = 0
    written: list[tuple[Message, Message]] = field(default_factory=list)
    """Answers that the template does not render as they were read, and their form in a prompt."""

    def as_written(self, message: Message) -> Message:
        """Return the form of a message in a prompt; an answer whose thought was stripped has none there, either."""
        for answer, shown in self.written:
            if same_message(answer, message):
                return shown
            if same_message(without_thought(answer), message):
                return without_thought(shown)
        return message


@dataclass(slots=True, weakref_slot=True, eq=False)  # generators remember the session of a request weakly
class TokenConversation:
    """The exact tokens of one line of an episode."""

    _policy: TokenPolicy
    _chat: ChatFormat
    _spec: EpisodeSpec
    _tools: list[ToolSchema]
    trace: TokenTrace
    _begun: list[int]  # tokens of the next answer that its prompt ends with
    _spent: _Spent

    def __post_init__(self) -> None:
        self._spent.traces.append(self.trace)

    def further(self, messages: Sequence[Message], tools: Sequence[ToolSchema]) -> TokenConversation:
        chat, spent = self._chat, self._spent
        chat.check_tools(tools)
        before, begun = chat.begin([*map(spent.as_written, messages)], tools)
        trace = TokenTrace.of(before + Tokens(begun))
        self._check_room(trace)
        return TokenConversation(self._policy, chat, self._spec, list(tools), trace, begun, spent)

    async def act(self, *, max_tokens: int | None = None, stop: tuple[str, ...] = ()) -> Act:
        policy, trace, spent = self._policy, self.trace, self._spent
        self._check_room(trace)  # another line may have spent the rest
        room, reason = self._room(trace)
        for limit in (policy.budgets.max_turn_tokens, max_tokens):
            if limit is not None and limit < room:
                room, reason = limit, StopReason.TURN_TRUNCATED
        prompt = trace.tokens
        request = GenerationRequest(
            prompt=prompt,
            max_tokens=room,
            stop_ids=self._chat.end_ids,
            seed=stable_seed(self._spec.seed, spent.turns),
            sampling=policy.sampling,
            stop_texts=StopTexts(stop, self._chat.template.decode) if stop else None,
            session=self,
        )
        spent.turns += 1
        generation = await policy.generator.generate(request)
        self._check_prompt(generation.prompt_ids, prompt.ids)
        token_ids, finish = generation.token_ids, generation.finish
        if request.stop_texts is not None and (cut := request.stop_texts.cut(token_ids)) is not None:
            token_ids, finish = cut, "stop"  # a generator may have gone on
        trace.append_sampled(token_ids, generation.logprobs[: len(token_ids)])
        before, answer = prompt[: len(prompt) - len(self._begun)], [*self._begun, *token_ids]
        given, self._begun = len(self._begun), []
        message = self._chat.parse(before, answer, self._tools, calls_before=spent.calls, stop=stop, given=given)
        spent.calls += len(message.get("tool_calls", []))
        shown = self._chat.as_history(message, answer, stop=stop, given=given)
        if shown is not message:
            spent.written.append((message, shown))
        return Act(
            message=message,
            num_tokens=len(token_ids),
            num_prompt_tokens=len(prompt),
            num_cached_tokens=generation.num_cached,
            weight_version=generation.weight_version,
            waiting_seconds=generation.waiting_seconds,
            stop=reason if finish == "length" else None,
        )

    async def observe(self, messages: Sequence[Message], *, last: bool, whole: bool = False) -> None:
        trace, room = self.trace, self._room(self.trace)[0]
        if last:
            if messages and room > 0:
                trace.append_observation(self._observed(messages, room)[0].up_to(room))
            return
        if whole:
            check_room(self._policy.budgets)
        tokens, _ = self._observed(messages)
        self._check_room(trace, len(tokens), whole=whole)
        trace.append_observation(tokens)

    def fitted(self, messages: Sequence[Message]) -> Sequence[Message]:
        return messages if self._policy.budgets.max_observation_tokens is None else self._observed(messages)[1]

    def _observed(self, messages: Sequence[Message], room: int | None = None) -> tuple[Tokens, Sequence[Message]]:
        """Return the tokens of new messages, and the messages, cut to what they may have; to `room` the last ones."""
        final = self.trace.completion_ids[-1:]
        ended_by = final[0] if final and final[0] in self._chat.end_ids else None
        options: dict[str, Any] = {"tools": self._tools, "ended_by": ended_by, "last": room is not None}
        allowed = [limit for limit in (self._policy.budgets.max_observation_tokens, room) if limit is not None]
        if allowed:
            return self._chat.fit_observation(messages, max_tokens=min(allowed), **options)
        return self._chat.observation_tokens(messages, **options), messages

    def _check_prompt(self, seen: list[int], sent: list[int]) -> None:
        if seen != sent:
            drift = sum(own != other for own, other in zip_longest(seen, sent))
            self.trace.drift += drift
            raise TokenDriftError(
                f"the engine saw another prompt than it was sent: {drift} of {len(sent)} tokens differ, so its answer "
                f"cannot be learned from"
            )

    def _check_room(self, trace: TokenTrace, new: int = 0, *, whole: bool = False) -> None:
        """Raise a LimitReachedError unless an answer can follow so many new tokens; `whole` is as in `observe`."""
        budgets, length = self._policy.budgets, len(trace) + new
        room, reason = self._room(trace)
        if whole and length + (budgets.max_turn_tokens or 0) > budgets.max_model_len:
            room, reason = 0, StopReason.CONTEXT_OVERFLOW
        if new < room:
            return
        if reason is StopReason.CONTEXT_OVERFLOW:
            raise OverlongPromptError(
                f"{length} tokens leave no room for an answer in max_model_len={budgets.max_model_len}", length=length
            )
        raise LimitReachedError(f"max_completion_length={budgets.max_completion_length} is spent", stop=reason)

    def _room(self, trace: TokenTrace) -> tuple[int, StopReason]:
        """Tokens that may still follow this trace, and the stop reason of the budget that limits them."""
        budgets = self._policy.budgets
        episode = budgets.max_completion_length - sum(len(trace.completion_ids) for trace in self._spent.traces)
        context = budgets.max_model_len - len(trace)
        return (context, StopReason.CONTEXT_OVERFLOW) if context < episode else (episode, StopReason.MAX_TOKENS)
