"""Plays one episode: the only place where an environment and a policy meet."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import gymnasium

from ...sandbox.cancellation import finish
from ...sandbox.keywords import checks_keywords
from ...sandbox.limits import check_positive
from ..core import ConfigurationError, LimitReachedError, Message, StopReason
from ..episode import Episode, EpisodeSpec, Failure, Stage, Turn
from ..policy import Policy
from ..runtime.rows import own_copy
from ..runtime.user_calls import being_cancelled
from ..runtime.whereabouts import current_place
from .checked_results import ending, split_first_words
from .compaction import Compact, compacted
from .environment_caller import EnvironmentCaller
from .episode_model import EpisodeModel
from .histories import copied
from .tool_call_limit import insert_refused, refused_calls

SLOW_POLICY = "observe() of the policy, or compact(), did not finish"


@checks_keywords()
@dataclass(kw_only=True, slots=True, frozen=True)
class EpisodeLimits:
    """The limits of an episode; None means no limit. Token budgets belong to the policy."""

    max_turns: int | None = None  # answers of the model
    max_tool_calls: int | None = None  # calls that run; a final call is never refused
    episode_timeout: float | None = None  # seconds; then the episode ends with TIMEOUT, see `StopReason`
    step_timeout: float | None = 600.0  # seconds to make the environment, and for each reset, step or grade

    def __post_init__(self) -> None:
        for name in ("max_turns", "max_tool_calls"):
            check_positive(getattr(self, name), name)
        for name in ("episode_timeout", "step_timeout"):
            check_positive(getattr(self, name), name, "seconds")


async def play_episode(
    spec: EpisodeSpec,
    create: Callable[[EpisodeSpec], gymnasium.Env[Any, Any]],
    policy: Policy,
    limits: EpisodeLimits,
    compact: Compact | None = None,
) -> Episode:
    """Play one episode to its end and return its record.

    If the environment or the policy raises an exception, the episode has failed. Any other episode is graded once. The
    environment is closed exactly once, on cancellation too. If the prompt is too long to be answered, the policy
    decides: the episode fails, or it ends with CONTEXT_OVERFLOW and has no reward (in training with
    `overlong_prompts="drop"`), or a ConfigurationError is raised. `compact` rewrites the history as in `RolloutEngine`.

    Raises:
        ConfigurationError: a mistake that every other episode would meet again.
    """
    episode = Episode(spec=spec, began=time.time())
    environment = EnvironmentCaller(create, spec, limits.step_timeout)
    loop = _EpisodeLoop(environment, EpisodeModel(episode, policy), limits, compact)
    try:
        stop = await loop.run()
        if episode.turns:
            await loop.grade(stop)
        episode.stop = stop
    except (ConfigurationError, GeneratorExit):
        raise
    except BaseException as error:  # SystemExit, too: user code must not end training
        if isinstance(error, asyncio.CancelledError) and being_cancelled():
            raise
        episode.failure = Failure.of(loop.stage, error)
    finally:
        loop.enter("close")
        error = await finish(environment.close())
        episode.close_failure = None if error is None else Failure.of("close", error)
        episode.seconds = time.perf_counter() - loop.started
    if not episode.stop.is_failure and not episode.is_overlong:
        episode.reward = episode.environment_reward if environment.gives_rewards else None
        episode.reward_parts["environment"] = episode.reward
    return episode


class _EpisodeLoop:
    """The turns of one episode."""

    stage: Stage
    stop: StopReason | None = None  # once it is known

    def __init__(
        self, environment: EnvironmentCaller, model: EpisodeModel, limits: EpisodeLimits, compact: Compact | None
    ) -> None:
        self.episode = model.episode
        self.environment = environment
        self.started = time.perf_counter()
        self.model = model
        self.compact = compact
        self.history: list[Message] = []  # the next request; a copy, since environments may change their messages
        self.limits = limits
        self.calls_ran = 0
        self.place = current_place.get()
        self.enter("create")

    async def run(self) -> StopReason:
        """Make the environment and play turns until the episode ends; return the reason."""
        limit = asyncio.timeout(self.limits.episode_timeout)
        try:
            async with limit:
                await self.environment.open()
                self.enter("reset")
                await self.begin()
                while (stop := await self.turn()) is None:
                    pass
                return stop
        except TimeoutError:
            if not limit.expired():
                raise
            if self.stop is not None:  # the episode had ended, and only the policy was still told so
                return self.stop
            over = f"episode_timeout={self.limits.episode_timeout:g} s was over"
            if not self.episode.turns:  # the model has not answered, so there is nothing to grade
                raise TimeoutError(f"{over} before the first answer") from None
            if self.stage == "step" and self._is_last(self.episode.turns[-1].message):
                # The model was in time, but its reward is not known.
                raise TimeoutError(f"{over} while the final call was answered") from None
            return StopReason.TIMEOUT
        except LimitReachedError as error:
            # Before the first answer there is nothing to grade.
            has_answered = bool(self.episode.turns) or error.stop is StopReason.CONTEXT_OVERFLOW
            if self.stage not in ("policy", "compact") or not has_answered:
                raise
            return error.stop

    def enter(self, stage: Stage) -> None:
        """Go to this stage. An error that is raised from now on is one of this stage."""
        self.stage = stage
        if self.place is not None:
            self.place.enter(stage)

    async def grade(self, stop: StopReason) -> None:
        """Ask the environment for the grade, and add it to the last turn's reward."""
        episode, turn = self.episode, self.episode.turns[-1]
        started = time.perf_counter()
        self.enter("step")
        await self.environment.wait_for_step()
        self.enter("grade")
        grade = await self.environment.grade(stop)
        turn.environment_seconds += time.perf_counter() - started
        turn.reward += grade.reward
        episode.metrics |= grade.metrics
        episode.report = grade.report

    async def begin(self) -> None:
        """Reset the environment."""
        spec, episode = self.episode.spec, self.episode
        reset = self.environment.reset(seed=spec.task.seed, options={"task": own_copy(spec.task.row)})
        messages, info = await reset
        episode.metrics = info["metrics"]
        episode.prompt, episode.first_words = split_first_words(messages, self.environment.name)
        episode.tools = self.environment.tool_schemas()
        self.history = copied(messages)

    async def turn(self) -> StopReason | None:
        """Play one turn: the answer and the environment's reply. Return a reason if the episode ends with it."""
        self.enter("policy")
        asking = compacted(self.model, self.compact, self.history, self.episode.tools, self.enter)
        line, history = await self.environment.in_time(SLOW_POLICY, asking)
        self.enter("policy")
        turn = await self.model.answer(line)
        self.enter("step")
        if turn.stop is not None and not self._is_last(turn.message):
            return turn.stop
        self.stop = await self._step(turn) or self._limit() or turn.stop
        self.enter("policy")
        if self.stop is not None:
            await self.environment.in_time(SLOW_POLICY, self.model.end(line, turn.observation))
            return self.stop
        first = len(self.episode.turns) == 1
        before = history[: len(self.episode.prompt)] if first else history  # the answer holds the first words
        new = turn.observation if self.compact is None else line.conversation.fitted(turn.observation)
        self.history = [*before, line.messages[-1], *copied(new)]
        return None

    async def _step(self, turn: Turn) -> StopReason | None:
        """Let the environment reply to the turn. Return a reason if it ends the episode."""
        environment, calls = self.environment, turn.message.get("tool_calls") or []
        action: Message = turn.message
        limit, ran = self.limits.max_tool_calls, self.calls_ran
        refused = refused_calls(calls, self.episode.tools, environment.is_final, limit=limit, ran=ran)
        if refused:
            allowed = [call for place, call in enumerate(calls) if place not in refused]
            action = {**action, "tool_calls": allowed}
        started = time.perf_counter()
        try:
            result = await environment.step(action)
        finally:
            turn.environment_seconds = time.perf_counter() - started
        stop = ending(result, environment.name)
        turn.reward = result.reward
        self.episode.metrics |= result.info["metrics"]
        turn.observation, turn.tool_calls = list(result.messages), list(result.info.get("tool_calls", ()))
        turn.html = environment.render_html()
        if refused:
            insert_refused(refused, turn)
        self.calls_ran += len(calls) - len(refused)
        return stop

    def _limit(self) -> StopReason | None:
        if self.limits.max_tool_calls is not None and self.calls_ran >= self.limits.max_tool_calls:
            return StopReason.MAX_TOOL_CALLS
        if self.limits.max_turns is not None and len(self.episode.turns) >= self.limits.max_turns:
            return StopReason.MAX_TURNS
        return None

    def _is_last(self, message: Message) -> bool:
        """Return whether a message has a final call."""
        return any(map(self.environment.is_final, message.get("tool_calls") or ()))
