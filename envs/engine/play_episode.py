"""Play one episode: the only place where an environment and a policy meet."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any, TypeVar

import gymnasium

from ..sandbox.cancellation import finish
from .calling import refuse
from .contract import checked_reset, checked_step, ending
from .core import ConfigurationError, Environment, Message, OverlongPromptError, StopReason, ToolCall
from .episode import Episode, EpisodeSpec, Failure, Stage, ToolCallRecord, Turn
from .lifetime import Broken, at_stage, close_environment, open_environment
from .policy import Act, Conversation, Policy
from .spaces import message_error
from .threads import run_in_thread

Item = TypeVar("Item")


@dataclass(kw_only=True, slots=True, frozen=True)
class EpisodeLimits:
    """What an episode may use; None means no limit. Token budgets belong to the policy."""

    max_turns: int | None = None  # answers of the model
    max_tool_calls: int | None = None  # calls that are run; a final call is never refused
    episode_timeout: float | None = None  # seconds; then the episode is truncated; in its final answer's step it fails
    step_timeout: float | None = None  # seconds for one reset or step; then the episode has failed

    def __post_init__(self) -> None:
        for name in ("max_turns", "max_tool_calls", "episode_timeout", "step_timeout"):
            value = getattr(self, name)
            if value is not None and value <= 0:
                raise ValueError(f"{name} must be positive or None, got {value}")


async def play_episode(
    spec: EpisodeSpec, create: Callable[[EpisodeSpec], gymnasium.Env[Any, Any]], policy: Policy, limits: EpisodeLimits
) -> Episode:
    """Play one episode to its end and return its record.

    Whatever the environment or the policy raises becomes a failed episode; the environment is closed exactly once,
    on cancellation too. A prompt that is too long to be answered ends it with CONTEXT_OVERFLOW and no reward.

    Raises:
        ConfigurationError: a mistake that every other episode would meet again.
    """
    episode = Episode(spec=spec)
    started = time.perf_counter()
    environment: gymnasium.Env[Any, Any] | None = None
    player: _Player | None = None
    preparing: Stage | None = "create"
    try:
        async with asyncio.timeout(limits.episode_timeout):
            with at_stage("create"):
                environment = await open_environment(create, spec)
            preparing = "reset"
            player = _Player(episode, environment, policy, limits)
            conversation = await player.begin()
            preparing = None
            while (stop := await player.turn(conversation)) is None:
                pass
            episode.stop = stop
    except TimeoutError:
        over = f"episode_timeout={limits.episode_timeout:g} s was over"
        if preparing is not None:  # no turn was possible, so a reward of zero would be a lie
            episode.failure = Failure.of(preparing, TimeoutError(f"{over} before the first turn"))
        elif player is not None and player.grading:  # the model was in time, and nobody knows its reward
            episode.failure = Failure.of("step", TimeoutError(f"{over} while the final answer was graded"))
        else:
            episode.stop = StopReason.TIMEOUT
    except Broken as broken:
        if isinstance(broken.error, ConfigurationError):
            raise broken.error from None
        if isinstance(broken.error, OverlongPromptError) and broken.stage == "policy" and not episode.turns:
            episode.stop = StopReason.CONTEXT_OVERFLOW
            return episode  # nothing was played, so there is nothing to reward
        episode.failure = Failure.of(broken.stage, broken.error)
    finally:
        if environment is not None:
            episode.close_failure = await finish(close_environment(environment))
        episode.seconds = time.perf_counter() - started
    if not episode.stop.is_failure:
        episode.reward = episode.environment_reward
        episode.reward_parts["environment"] = episode.reward
    return episode


class _Player:
    """The loop of one episode."""

    def __init__(
        self, episode: Episode, environment: gymnasium.Env[Any, Any], policy: Policy, limits: EpisodeLimits
    ) -> None:
        self.episode = episode
        self.environment = environment
        self.core = environment.unwrapped
        self.name = type(self.core).__name__
        self.policy = policy
        self.limits = limits
        self.calls_left = limits.max_tool_calls
        self.grading = False  # the environment is answering a turn with a final call

    async def begin(self) -> Conversation:
        spec, episode = self.episode.spec, self.episode
        with at_stage("reset"):
            self._check_step_timeout()
            reset = self._call("reset", seed=spec.task.seed, options={"task": spec.task.row})
            episode.prompt, episode.metrics = checked_reset(await reset, self.name)
            episode.tools = self.core.tool_schemas() if isinstance(self.core, Environment) else []
        with at_stage("policy"):
            conversation = self.policy.begin(spec, episode.prompt, episode.tools)
            episode.trace = conversation.trace
        return conversation

    async def turn(self, conversation: Conversation) -> StopReason | None:
        """One answer of the policy and what the environment says to it; why the episode ends then, if it does."""
        started = time.perf_counter()
        with at_stage("policy"):
            act = _checked_act(await conversation.act())
        turn = Turn(
            message=act.message,
            num_tokens=act.num_tokens,
            num_prompt_tokens=act.num_prompt_tokens,
            num_cached_tokens=act.num_cached_tokens,
            weight_version=act.weight_version,
        )
        turn.generation_seconds = time.perf_counter() - started
        self.episode.turns.append(turn)
        with at_stage("step"):
            if act.stop is not None and not any(map(self._is_final, _calls(act.message))):
                return act.stop
            stop = await self._step(turn) or self._limit() or act.stop
        with at_stage("policy"):
            budget = conversation.observe(turn.observation, last=stop is not None)
        return stop or budget

    async def _step(self, turn: Turn) -> StopReason | None:
        """Let the environment answer the turn; why it ends the episode, if it does."""
        calls = _calls(turn.message)
        refused = self._refused(calls)
        action = turn.message
        if refused:
            allowed = [call for index, call in enumerate(calls) if index not in refused]
            action = {**action, "tool_calls": allowed}
        started = time.perf_counter()
        self.grading = any(map(self._is_final, calls))
        try:
            result = checked_step(await self._call("step", action), self.name)
            self.grading = False
        finally:
            turn.environment_seconds = time.perf_counter() - started
        stop = ending(result, self.name)
        turn.reward = result.reward
        self.episode.metrics |= result.info.get("metrics", {})
        turn.observation, turn.tool_calls = list(result.messages), list(result.info.get("tool_calls", ()))
        if refused:
            _insert(refused, len(calls), turn)
        if self.calls_left is not None:
            self.calls_left -= len(calls) - len(refused)
        return stop

    def _limit(self) -> StopReason | None:
        if self.calls_left is not None and self.calls_left <= 0:
            return StopReason.MAX_TOOL_CALLS
        if self.limits.max_turns is not None and len(self.episode.turns) >= self.limits.max_turns:
            return StopReason.MAX_TURNS
        return None

    def _check_step_timeout(self) -> None:
        limit, least = self.limits.step_timeout, None
        if isinstance(self.core, Environment):
            least = self.core.min_step_seconds
        if limit is not None and least is not None and limit <= least:
            raise ConfigurationError(
                f"step_timeout={limit:g} s must be longer than the {least:g} s that one call in {self.name} may take "
                f"(its min_step_seconds; in a CodeEnv that is code_timeout), or slow code of the model's would make "
                f"the episode fail instead of being stopped"
            )

    def _is_final(self, call: ToolCall) -> bool:
        return isinstance(self.core, Environment) and self.core.is_final(call)

    def _refused(self, calls: Sequence[ToolCall]) -> dict[int, tuple[Message, ToolCallRecord]]:
        """The calls that are over the limit, by their place in the turn; a final call never is."""
        if self.calls_left is None or len(calls) <= self.calls_left:
            return {}
        left, refused = self.calls_left, {}
        names = {schema["function"]["name"] for schema in self.episode.tools}
        for index, call in enumerate(calls):
            if left > 0 or self._is_final(call):
                left -= 1
            else:
                reason = f"the limit of {self.limits.max_tool_calls} tool calls is reached"
                refused[index] = refuse(call, reason, known=call["function"]["name"] in names)
        return refused

    def _call(self, method: str, *args: Any, **kwargs: Any) -> Coroutine[Any, Any, Any]:
        """`reset` or `step`, in the asynchronous form where the environment has one (wrappers have not)."""
        if isinstance(self.environment, Environment):
            call = getattr(self.environment, f"a{method}")(*args, **kwargs)
        else:
            call = run_in_thread(getattr(self.environment, method), *args, **kwargs)
        return call if self.limits.step_timeout is None else self._timed(method, call)

    async def _timed(self, what: str, call: Coroutine[Any, Any, Any]) -> Any:
        deadline = asyncio.timeout(self.limits.step_timeout)
        try:
            async with deadline:
                return await call
        except TimeoutError as error:
            if not deadline.expired():
                raise
            limit = f"{self.name}.{what}() did not finish within step_timeout={self.limits.step_timeout:g} s"
            raise TimeoutError(limit) from error


def _calls(message: Message) -> list[ToolCall]:
    return message.get("tool_calls") or []


def _checked_act(act: Act) -> Act:
    clause = message_error(act.message)
    if clause is not None:
        raise ValueError(f"the policy gave a wrong message: {clause}")
    return act


def _insert(refused: Mapping[int, tuple[Message, ToolCallRecord]], calls: int, turn: Turn) -> None:
    """Put what the refused calls of a turn were told among the environment's answers to its other calls."""
    answers = list(takewhile(lambda message: message["role"] == "tool", turn.observation))
    others = turn.observation[len(answers) :]
    messages = {index: message for index, (message, _) in refused.items()}
    records = {index: record for index, (_, record) in refused.items()}
    turn.observation = _in_call_order(calls, messages, answers) + others
    turn.tool_calls = _in_call_order(calls, records, turn.tool_calls)


def _in_call_order(count: int, refused: Mapping[int, Item], given: Sequence[Item]) -> list[Item]:
    """The refusals at their calls' places among what the environment gave for the other calls of a turn."""
    rest = list(given)
    merged = []
    for index in range(count):
        if index in refused:
            merged.append(refused[index])
        elif rest:
            merged.append(rest.pop(0))
    return merged + rest
