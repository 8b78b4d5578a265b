"""Plays one episode: the only place where an environment and a policy meet."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import gymnasium

from ...sandbox.cancellation import finish
from ..core import ConfigurationError, Environment, Message, OverlongPromptError, StopReason, ToolCall
from ..episode import Episode, EpisodeSpec, Failure, Stage, ToolCallRecord, Turn
from ..policy import Act, Conversation, Policy
from ..runtime.rows import own_copy
from ..runtime.threads import run_in_thread, thread_calls
from ..runtime.user_calls import TimeLimit, watch_blocking
from ..runtime.whereabouts import current_place
from ..spaces import message_error
from ..tools.execution import refuse
from .checked_results import checked_grade, checked_reset, checked_step, ending, split_first_words
from .opening_and_closing import Broken, at_stage, close_environment, open_environment, wait_for_threads
from .refused_calls import insert_refused

Item = TypeVar("Item")


@dataclass(kw_only=True, slots=True, frozen=True)
class EpisodeLimits:
    """The limits of an episode; None means no limit. Token budgets belong to the policy."""

    max_turns: int | None = None  # answers of the model
    max_tool_calls: int | None = None  # calls that run; a final call is never refused
    episode_timeout: float | None = None  # seconds; then the episode ends with TIMEOUT, see `StopReason`
    step_timeout: float | None = 600.0  # seconds to make the environment, and for each reset, step or grade

    def __post_init__(self) -> None:
        for name in ("max_turns", "max_tool_calls", "episode_timeout", "step_timeout"):
            value = getattr(self, name)
            if value is not None and value <= 0:
                raise ValueError(f"{name} must be positive or None, got {value}")


async def play_episode(
    spec: EpisodeSpec, create: Callable[[EpisodeSpec], gymnasium.Env[Any, Any]], policy: Policy, limits: EpisodeLimits
) -> Episode:
    """Play one episode to its end and return its record.

    If the environment or the policy raises an exception, the episode has failed. Any other episode is graded once. The
    environment is closed exactly once, on cancellation too. If the prompt is too long to be answered, the policy
    decides: the episode fails, or it ends with CONTEXT_OVERFLOW and has no reward (in training with
    `overlong_prompts="drop"`), or a ConfigurationError is raised.

    Raises:
        ConfigurationError: a mistake that every other episode would meet again.
    """
    episode = Episode(spec=spec, began=time.time())
    loop = _EpisodeLoop(episode, policy, limits)
    try:
        stop = await loop.run(create)
        if episode.turns:
            await loop.grade(stop)
        episode.stop = stop
    except Broken as broken:
        if isinstance(broken.error, ConfigurationError):
            raise broken.error from None
        episode.failure = Failure.of(broken.stage, broken.error)
    finally:
        loop.enter("close")
        if loop.environment is not None:
            episode.close_failure = await finish(close_environment(loop.environment))
        loop.step_limit.close()
        episode.seconds = time.perf_counter() - loop.started
    if not episode.stop.is_failure and not episode.is_overlong:
        episode.reward = episode.environment_reward if loop.gives_rewards else None
        episode.reward_parts["environment"] = episode.reward
    return episode


class _EpisodeLoop:
    """The turns of one episode."""

    environment: gymnasium.Env[Any, Any] | None = None  # until it is made
    core: gymnasium.Env[Any, Any]  # the environment without its wrappers
    name: str  # the name of its class
    gives_rewards: bool = True
    stage: Stage
    stop: StopReason | None = None  # once it is known

    def __init__(self, episode: Episode, policy: Policy, limits: EpisodeLimits) -> None:
        self.episode = episode
        self.started = time.perf_counter()
        self.policy = policy
        self.limits = limits
        self.step_limit = TimeLimit(limits.step_timeout or math.inf)
        self.calls_left = limits.max_tool_calls
        self.place = current_place.get()
        self.enter("create")
        self.step_threads: list[asyncio.Future[Any]] = []  # the present step's calls in threads

    async def run(self, create: Callable[[EpisodeSpec], gymnasium.Env[Any, Any]]) -> StopReason:
        """Make the environment and play turns until the episode ends; returns the reason."""
        try:
            async with asyncio.timeout(self.limits.episode_timeout):
                with at_stage("create"):
                    opening = open_environment(create, self.episode.spec)
                    self.environment = environment = await self._timed("the environment was not made", opening)
                    self.core = environment.unwrapped
                    self.name = type(self.core).__name__
                    if isinstance(self.core, Environment):
                        self.gives_rewards = self.core.gives_rewards
                self.enter("reset")
                conversation = await self.begin()
                while (stop := await self.turn(conversation)) is None:
                    pass
                return stop
        except TimeoutError:
            if self.stop is not None:  # the episode had ended, and only the policy was still told so
                return self.stop
            over = f"episode_timeout={self.limits.episode_timeout:g} s was over"
            if not self.episode.turns:  # the model has not answered, so there is nothing to grade
                raise Broken(self.stage, TimeoutError(f"{over} before the first answer")) from None
            if self.stage == "step" and any(map(self._is_final, _calls(self.episode.turns[-1].message))):
                # The model was in time, but its reward is not known.
                raise Broken("step", TimeoutError(f"{over} while the final call was answered")) from None
            return StopReason.TIMEOUT
        except Broken as broken:
            if isinstance(broken.error, OverlongPromptError) and broken.stage == "policy" and not self.episode.turns:
                return StopReason.CONTEXT_OVERFLOW
            raise

    def enter(self, stage: Stage) -> None:
        """Go to this stage."""
        self.stage = stage
        if self.place is not None:
            self.place.enter(stage)

    async def grade(self, stop: StopReason) -> None:
        """Ask the environment for the grade, around any wrappers, and add it to the last turn's reward.

        If `episode_timeout` came during a step that runs in a thread, the step is awaited first: the environment must
        not change while it is graded.
        """
        if not isinstance(self.core, Environment):
            return
        episode, turn = self.episode, self.episode.turns[-1]
        started = time.perf_counter()
        if self.step_threads:
            with at_stage("step"):
                await wait_for_threads(self.step_threads, self.name)
        self.enter("grade")
        with at_stage("grade"):
            # Wrappers call the synchronous form only, so in a wrapped environment `grade` runs in a thread as well.
            wrapped = self.environment is not self.core
            grading = run_in_thread(self.core.grade, stop) if wrapped else watch_blocking(self.core.agrade, stop)
            grade = await self._timed(f"{self.name}.grade() did not finish", grading)
            reward, metrics, report = checked_grade(grade, self.core)
            self._check_gives_rewards("grade", reward)
        turn.environment_seconds += time.perf_counter() - started
        turn.reward += reward
        episode.metrics |= metrics
        episode.report = report

    async def begin(self) -> Conversation:
        spec, episode = self.episode.spec, self.episode
        with at_stage("reset"):
            self._check_step_timeout()
            reset = self._call("reset", seed=spec.task.seed, options={"task": own_copy(spec.task.row)})
            messages, episode.metrics = checked_reset(await reset, self.name)
            episode.prompt, episode.first_words = split_first_words(messages, self.name)
            episode.tools = self.core.tool_schemas() if isinstance(self.core, Environment) else []
        with at_stage("policy"):
            conversation = self.policy.begin(spec, messages, episode.tools)
            episode.traces = conversation.traces
        return conversation

    async def turn(self, conversation: Conversation) -> StopReason | None:
        """Play one turn: the answer and the environment's reply. Returns a reason if the episode ends with it."""
        started = time.perf_counter()
        self.enter("policy")
        with at_stage("policy"):
            act = _checked_act(await conversation.act())
        turn = Turn(
            message=act.message,
            num_tokens=act.num_tokens,
            num_prompt_tokens=act.num_prompt_tokens,
            num_cached_tokens=act.num_cached_tokens,
            weight_version=act.weight_version,
            waiting_seconds=act.waiting_seconds,
            began=started - self.started,
        )
        turn.generation_seconds = time.perf_counter() - started
        self.episode.turns.append(turn)
        with at_stage("step"):
            if act.stop is not None and not any(map(self._is_final, _calls(act.message))):
                return act.stop
            self.stop = await self._step(turn) or self._limit() or act.stop
        self.enter("policy")
        with at_stage("policy"):
            observing = conversation.observe(turn.observation, last=self.stop is not None)
            budget = await self._timed("observe() of the policy, or compact(), did not finish", observing)
        return self.stop or budget

    async def _step(self, turn: Turn) -> StopReason | None:
        """Let the environment reply to the turn. Returns a reason if it ends the episode."""
        calls = _calls(turn.message)
        refused = self._refused(calls)
        action = turn.message
        if refused:
            allowed = [call for index, call in enumerate(calls) if index not in refused]
            action = {**action, "tool_calls": allowed}
        started = time.perf_counter()
        self.enter("step")
        thread_calls.set(self.step_threads)
        try:
            result = checked_step(await self._call("step", action), self.name)
        finally:
            thread_calls.set(None)
            turn.environment_seconds = time.perf_counter() - started
        self.step_threads.clear()
        self._check_gives_rewards("step", result.reward)
        stop = ending(result, self.name)
        turn.reward = result.reward
        self.episode.metrics |= result.info.get("metrics", {})
        turn.observation, turn.tool_calls = list(result.messages), list(result.info.get("tool_calls", ()))
        if isinstance(self.core, Environment):
            turn.html = self.core.render_html()
        if refused:
            insert_refused(refused, len(calls), turn)
        if self.calls_left is not None:
            self.calls_left -= len(calls) - len(refused)
        return stop

    def _check_gives_rewards(self, method: str, reward: float) -> None:
        if reward and not self.gives_rewards:
            raise ValueError(f"{self.name}.gives_rewards is False, but its {method} gave {reward}; set it to True")

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
                f"step_timeout={limit:g} s must be longer than the {least:g} s that one turn in {self.name} may take "
                f"(its min_step_seconds; in a CodeEnv that is six times code_timeout). Otherwise slow code would fail "
                f"the episode instead of being interrupted"
            )

    def _is_final(self, call: ToolCall) -> bool:
        return isinstance(self.core, Environment) and self.core.is_final(call)

    def _refused(self, calls: Sequence[ToolCall]) -> dict[int, tuple[Message, ToolCallRecord]]:
        """The calls over the limit, by their place in the turn. A final call is never refused."""
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
        """Call `reset` or `step`: the asynchronous form, or the synchronous one in a thread for wrappers."""
        assert self.environment is not None
        if isinstance(self.environment, Environment):
            call = watch_blocking(getattr(self.environment, f"a{method}"), *args, **kwargs)
        else:
            call = run_in_thread(getattr(self.environment, method), *args, **kwargs)
        return self._timed(f"{self.name}.{method}() did not finish", call)

    def _timed(self, message: str, call: Awaitable[Item]) -> Coroutine[Any, Any, Item]:
        late = TimeoutError(f"{message} within step_timeout={self.step_limit.seconds:g} s")
        return self.step_limit.run(late, call)


def _calls(message: Message) -> list[ToolCall]:
    return message.get("tool_calls") or []


def _checked_act(act: Act) -> Act:
    clause = message_error(act.message)
    if clause is not None:
        raise ValueError(f"the policy gave a wrong message: {clause}")
    return act
