"""EpisodeModel: the one way from an episode to the model. Here a request becomes a line."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from ..core import ConfigurationError, LimitReachedError, Message, StopReason, ToolSchema
from ..episode import Episode, Turn
from ..policy import Conversation, Policy
from ..spaces import check_messages, message_error
from .histories import copied, extends


@dataclass(slots=True, eq=False)
class Line:
    """One history as the model saw it: one conversation of the policy, with its exact tokens."""

    sample: int  # its number among the episode's lines, and the place of its trace in `Episode.traces`
    conversation: Conversation
    tools: list[ToolSchema]
    messages: list[Message]  # a copy of all that was asked and answered

    @property
    def length(self) -> int | None:
        """The number of its tokens; None for a policy without tokens."""
        trace = self.conversation.trace
        return None if trace is None else len(trace)


class EpisodeModel:
    """The model of one episode. It answers requests, each of which is a whole history.

        model = EpisodeModel(episode, policy)
        answer = await model.ask(messages, tools)
        answer = await model.ask([*messages, answer, *new_messages], tools)

    A request that extends a known line, with the same tools, is an observation on it: only the new messages become
    tokens. Any other request begins a line, which is a further sample of the episode: a history that was rewritten, a
    sub-agent, an answer that was edited. Either way a trace holds what the model saw and sampled. Two equal requests at
    the same time have a line each.

    Each answer becomes a `Turn` of the episode, and each line adds its trace to it. The limits of tokens and turns
    count over all lines. Answers that are sampled at the same time do not know of one another, so their tokens may
    exceed a limit.

    Args:
        episode: The record that gets the turns and the traces.
        policy: Answers.
        max_turns: The limit of turns; None for no limit.
    """

    def __init__(self, episode: Episode, policy: Policy, *, max_turns: int | None = None) -> None:
        self.episode = episode
        self.policy = policy
        self.max_turns = max_turns
        self._began = time.perf_counter()
        self._first: Conversation | None = None
        self._lines = self._in_flight = 0
        self._known: list[Line] = []  # that a request may extend: none of them waits for an answer

    async def ask(
        self,
        messages: Sequence[Message],
        tools: Sequence[ToolSchema] = (),
        *,
        max_tokens: int | None = None,
        stop: Sequence[str] = (),
    ) -> Message:
        """Return the model's answer to these messages.

        Args:
            messages: The whole history. If it ends with a message of the assistant that is new, the model goes on with
                its words, and the answer holds them, too.
            tools: The tools that the model may call.
            max_tokens: The most tokens of the answer, beside the limits of the policy.
            stop: Texts that end the answer. The answer is the text before the first of them.

        Raises:
            LimitReachedError: a limit leaves no answer. `OverlongPromptError`: the messages do not fit the context.
            ValueError: a message is not a chat message, or an argument is out of its range.
        """
        check_messages(messages, "a request")
        if max_tokens is not None and max_tokens < 1:
            raise ValueError(f"max_tokens must be at least 1 or None, got {max_tokens}")
        if isinstance(stop, str) or not all(stop):
            raise ValueError(f"stop must be a list of texts that are not empty, got {stop!r}")
        if self.max_turns is not None and len(self.episode.turns) + self._in_flight >= self.max_turns:
            raise LimitReachedError(f"max_turns={self.max_turns} is reached", stop=StopReason.MAX_TURNS)
        self._in_flight += 1
        try:
            line = await self.line(messages, tools)
            return (await self.answer(line, max_tokens=max_tokens, stop=stop)).message
        finally:
            self._in_flight -= 1

    async def line(self, messages: Sequence[Message], tools: Sequence[ToolSchema], *, whole: bool = False) -> Line:
        """Return the line that this request extends, with the new messages on it, or else a line that it begins.

        If it raises a LimitReachedError, a line that the request extends is as before. `whole` is that of
        `Conversation.observe`.
        """
        tools = list(tools)
        known = [line for line in self._known if line.tools == tools and extends(messages, line.messages)]
        if not known:
            return self._begin(messages, tools)
        line = max(known, key=lambda line: len(line.messages))
        self._known.remove(line)  # before any await: another request may be equal to this one
        observation = copied(messages[len(line.messages) :])
        try:
            await line.conversation.observe(observation, last=False, whole=whole)
        except LimitReachedError:
            self._known.append(line)
            raise
        line.messages += observation
        return line

    def _begin(self, messages: Sequence[Message], tools: list[ToolSchema]) -> Line:
        spec, traces = self.episode.spec, self.episode.traces
        try:
            if self._first is None:
                self._first = conversation = self.policy.begin(spec, messages, tools)
            else:
                conversation = self._first.further(messages, tools)
        except ConfigurationError as error:
            if self._first is None:
                raise
            raise ValueError(f"a further line of the episode cannot begin: {error}") from error  # the run goes on
        trace = conversation.trace
        sample = self._lines if trace is None else len(traces)
        goes_on = bool(messages) and messages[-1]["role"] == "assistant"  # then the answer holds the last message
        line = Line(sample, conversation, tools, copied(messages[:-1] if goes_on else messages))
        if trace is not None:
            traces.append(trace)
        self._lines += 1
        return line

    async def answer(self, line: Line, *, max_tokens: int | None = None, stop: Sequence[str] = ()) -> Turn:
        """Return the turn of the model's answer to a line's messages; the other arguments are as in `ask`."""
        started = time.perf_counter()
        act = await line.conversation.act(max_tokens=max_tokens, stop=tuple(stop))
        clause = message_error(act.message)
        if clause is not None:
            raise ValueError(f"the policy gave a wrong message: {clause}")
        turn = Turn(
            message=act.message,
            sample=line.sample,
            stop=act.stop,
            num_tokens=act.num_tokens,
            num_prompt_tokens=act.num_prompt_tokens,
            num_cached_tokens=act.num_cached_tokens,
            weight_version=act.weight_version,
            waiting_seconds=act.waiting_seconds,
            began=started - self._began,
            generation_seconds=time.perf_counter() - started,
        )
        self.episode.turns.append(turn)
        line.messages += copied([act.message])
        self._known.append(line)
        return turn

    async def end(self, line: Line, observation: Sequence[Message]) -> None:
        """Add the last messages of an episode to a line, cut to the room that is left: no answer follows."""
        if line in self._known:
            self._known.remove(line)
            await line.conversation.observe(list(observation), last=True)
