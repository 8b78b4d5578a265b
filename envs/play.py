"""Play one episode: the only place where an environment and a policy meet."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import gymnasium

from .core import ConfigurationError, Environment, Message, StepResult, StopReason
from .episode import Episode, EpisodeSpec, Failure, Stage, Turn
from .policy import Conversation, Policy
from .threads import run_in_thread

Result = TypeVar("Result")

CLOSE_SECONDS = 30.0  # an environment that takes longer to close is left to itself


@dataclass(kw_only=True, slots=True, frozen=True)
class EpisodeLimits:
    """What an episode may use; None means no limit. Token budgets belong to the policy."""

    max_turns: int | None = None  # answers of the model
    max_tool_calls: int | None = None  # calls that are run; a final call is never refused
    episode_timeout: float | None = None  # seconds; then the episode is truncated
    step_timeout: float | None = None  # seconds for one reset or step; then the episode has failed

    def __post_init__(self) -> None:
        for name in ("max_turns", "max_tool_calls", "episode_timeout", "step_timeout"):
            value = getattr(self, name)
            if value is not None and value <= 0:
                raise ValueError(f"{name} must be positive or None, got {value}")


class _Broken(Exception):
    """Carries what broke the episode to the place that records it."""

    def __init__(self, stage: Stage, error: BaseException) -> None:
        super().__init__(stage)
        self.stage = stage
        self.error = error


async def play_episode(
    spec: EpisodeSpec, create: Callable[[EpisodeSpec], gymnasium.Env[Any, Any]], policy: Policy, limits: EpisodeLimits
) -> Episode:
    """Play one episode to its end and return its record.

    Whatever the environment or the policy raises becomes a failed episode; the environment is closed exactly once,
    on cancellation too.

    Raises:
        ConfigurationError: a mistake that every other episode would meet again.
    """
    episode = Episode(spec=spec)
    started = time.perf_counter()
    environment: gymnasium.Env[Any, Any] | None = None
    try:
        async with asyncio.timeout(limits.episode_timeout):
            environment = await _guard("create", run_in_thread(create, spec))
            await _Player(episode, environment, policy, limits).play()
    except TimeoutError:
        episode.stop = StopReason.TIMEOUT
    except _Broken as broken:
        if isinstance(broken.error, ConfigurationError):
            raise broken.error from None
        episode.stop = StopReason.FAILED
        episode.failure = Failure.of(broken.stage, broken.error)
    finally:
        if environment is not None:
            episode.close_failure = await _finish(_close(environment))
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
        self.policy = policy
        self.limits = limits
        self.calls_left = limits.max_tool_calls

    async def play(self) -> None:
        spec, episode = self.episode.spec, self.episode
        options = {"task": spec.task.row}
        reset = self._call("reset", seed=spec.task.seed, options=options)
        episode.prompt, _ = await self._timed("reset", reset)
        episode.tools = self.core.tool_schemas() if isinstance(self.core, Environment) else []
        conversation = await _guard("policy", _begin(self.policy, spec, episode))
        episode.trace = conversation.trace
        stop: StopReason | None = None
        while stop is None:
            stop = await self._turn(conversation)
        episode.stop = stop

    async def _turn(self, conversation: Conversation) -> StopReason | None:
        started = time.perf_counter()
        act = await _guard("policy", conversation.act())
        turn = Turn(message=act.message, num_tokens=act.num_tokens)
        turn.generation_seconds = time.perf_counter() - started
        self.episode.turns.append(turn)
        if act.stop is not None and not self._has_final_call(act.message):
            return act.stop

        action, refused = self._within_limit(act.message)
        started = time.perf_counter()
        try:
            result = StepResult(*await self._timed("step", self._call("step", action)))
        finally:
            turn.environment_seconds = time.perf_counter() - started
        turn.reward = float(result.reward)
        turn.tool_calls = list(result.info.get("tool_calls", ()))
        self.episode.metrics |= result.info.get("metrics", {})
        turn.observation = [*result.messages, *refused]
        if self.calls_left is not None:
            self.calls_left -= len(turn.tool_calls)

        stop = self._ending(result) or self._limit() or act.stop
        budget = await _guard("policy", _observe(conversation, turn.observation, last=stop is not None))
        return stop or budget

    def _ending(self, result: StepResult) -> StopReason | None:
        """What the environment says."""
        if not (result.terminated or result.truncated):
            return None
        default = StopReason.ENV_TERMINATED if result.terminated else StopReason.ENV_TRUNCATED
        return StopReason(result.info.get("stop_reason", default))

    def _limit(self) -> StopReason | None:
        if self.calls_left is not None and self.calls_left <= 0:
            return StopReason.MAX_TOOL_CALLS
        if self.limits.max_turns is not None and len(self.episode.turns) >= self.limits.max_turns:
            return StopReason.MAX_TURNS
        return None

    def _has_final_call(self, message: Message) -> bool:
        core = self.core
        return isinstance(core, Environment) and any(core.is_final(call) for call in message.get("tool_calls") or [])

    def _within_limit(self, message: Message) -> tuple[Message, list[Message]]:
        """The message with only the calls that may still run, and refusals for the others."""
        calls = message.get("tool_calls") or []
        if self.calls_left is None or len(calls) <= self.calls_left:
            return message, []
        left, allowed, refused = self.calls_left, [], []
        for call in calls:
            if self._has_final_call({"role": "assistant", "tool_calls": [call]}) or left > 0:
                allowed.append(call)
                left -= 1
            else:
                text = f"Error: not run, the limit of {self.limits.max_tool_calls} tool calls is reached."
                refusal: Message = {"role": "tool", "name": call["function"]["name"], "content": text}
                if "id" in call:
                    refusal["tool_call_id"] = call["id"]
                refused.append(refusal)
        return {**message, "tool_calls": allowed}, refused

    def _call(self, method: str, *args: Any, **kwargs: Any) -> Coroutine[Any, Any, Any]:
        """`reset` or `step`, in the asynchronous form where the environment has one (wrappers have not)."""
        if isinstance(self.environment, Environment):
            return getattr(self.environment, f"a{method}")(*args, **kwargs)
        return run_in_thread(getattr(self.environment, method), *args, **kwargs)

    async def _timed(self, stage: Stage, call: Coroutine[Any, Any, Result]) -> Result:
        try:
            async with asyncio.timeout(self.limits.step_timeout) as deadline:
                return await _guard(stage, call)
        except TimeoutError as error:
            if not deadline.expired():
                raise
            limit = f"{stage} did not finish within step_timeout={self.limits.step_timeout:g} s"
            raise _Broken(stage, TimeoutError(limit)) from error


async def _begin(policy: Policy, spec: EpisodeSpec, episode: Episode) -> Conversation:
    return policy.begin(spec, episode.prompt, episode.tools)


async def _observe(conversation: Conversation, messages: Sequence[Message], *, last: bool) -> StopReason | None:
    return conversation.observe(messages, last=last)


async def _guard(stage: Stage, call: Awaitable[Result]) -> Result:
    """Await, and turn whatever is raised into `_Broken`; only a cancellation of ours passes."""
    try:
        return await call
    except BaseException as error:  # SystemExit of an environment must not end training
        task = asyncio.current_task()
        if isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling() > 0:
            raise
        raise _Broken(stage, error) from error


async def _close(environment: gymnasium.Env[Any, Any]) -> Failure | None:
    closing = environment.aclose() if isinstance(environment, Environment) else run_in_thread(environment.close)
    try:
        async with asyncio.timeout(CLOSE_SECONDS):
            await closing
    except BaseException as error:
        if isinstance(error, asyncio.CancelledError):
            raise
        return Failure.of("close", error)
    return None


async def _finish(call: Coroutine[Any, Any, Result]) -> Result:
    """Await to the end even while this task is being cancelled; the cancellation goes on afterwards."""
    task = asyncio.ensure_future(call)
    cancellation: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError as error:
            if task.cancelled():
                raise
            cancellation = error
    if cancellation is not None:
        raise cancellation
    return task.result()
