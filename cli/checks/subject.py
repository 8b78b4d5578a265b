"""The environment that is checked, and episodes of it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeVar

from ...envs.core import Message, ToolSchema
from ...envs.engine.begin_episode import begin_episode
from ...envs.engine.play_episode import EpisodeLimits
from ...envs.engine.rollout_engine import RolloutEngine, episode_specs
from ...envs.episode import Episode, EpisodeSpec
from ...envs.policy import Policy, ScriptedPolicy
from ...envs.registry import EnvironmentLike, EnvironmentSource
from ...envs.runtime.places import at_place
from ...envs.runtime.threads import run_in_loop
from .agents import null_agent, random_agent

Found = TypeVar("Found")


@dataclass(kw_only=True)
class Subject:
    """An environment, some of its tasks, and a player that solves them, if there is one."""

    environment: EnvironmentLike
    rows: Sequence[dict[str, Any]]
    oracle: Policy | None = None
    all_rows: Sequence[dict[str, Any]] = ()  # the whole data set, of which `rows` are played
    max_turns: int = 8  # of a scripted agent
    timeout: float = 30.0  # seconds of a reset or a step
    warnings: list[str] = field(default_factory=list)  # of gymnast.envs while episodes were played

    def play(
        self, policy: Policy, *, tasks: slice = slice(None), members: int = 1, max_turns: int | None = None
    ) -> list[Episode]:
        """Play episodes of these tasks, by default of all; a failure is in its episode."""
        wanted = range(len(self.rows))[tasks]
        specs = episode_specs(self.rows, group_size=members, seed=0)[wanted.start * members : wanted.stop * members]
        limits = EpisodeLimits(max_turns=max_turns or self.max_turns, step_timeout=self.timeout)
        engine = RolloutEngine(self.environment, policy, limits=limits)
        handler = logging.Handler(logging.WARNING)
        handler.emit = lambda record: self.warnings.append(record.getMessage())  # type: ignore[method-assign]
        logger = logging.getLogger("gymnast.envs")
        logger.addHandler(handler)
        try:
            return run_in_loop(engine.run(specs))
        finally:
            logger.removeHandler(handler)

    def call(self, message: Message) -> Episode:
        """Play the first task; the model makes this call, and then says nothing."""
        answers = iter([message])
        [episode] = self.play(ScriptedPolicy(lambda messages: next(answers, "")), tasks=slice(1))
        return episode

    def random(self, seed: int = 0) -> ScriptedPolicy:
        """Return a random agent, whose choices depend on the seed and the conversation only."""
        return ScriptedPolicy(random_agent(seed))

    @cached_property
    def null_episodes(self) -> list[Episode]:
        """One episode of each row with an agent that does nothing."""
        return self.play(ScriptedPolicy(null_agent))

    @cached_property
    def random_episodes(self) -> list[Episode]:
        """One episode of each row with an agent that calls tools at random."""
        return self.play(self.random())

    @cached_property
    def oracle_episodes(self) -> list[Episode]:
        """One episode of each row with the oracle; empty without one."""
        return [] if self.oracle is None else self.play(self.oracle)

    @cached_property
    def tools(self) -> list[ToolSchema]:
        """The tools of the first task."""
        return self.null_episodes[0].tools

    def after_reset(self, look: Callable[[Any], Found], row: dict[str, Any] | None = None) -> Found | None:
        """Return what `look` finds at an environment that is reset with a row, by default the first; None if it fails.

        `look` gets the environment without its wrappers.
        """
        spec, environment = self._make(self.rows[0] if row is None else row)
        limits, found = EpisodeLimits(step_timeout=self.timeout), list[Found]()
        run_in_loop(begin_episode(spec, environment, lambda *_: found.append(look(environment.unwrapped)), limits))
        return found[0] if found else None

    def made(self) -> closing[Any]:
        """Make an environment for the first row, and close it at the end of this context."""
        return closing(self._make(self.rows[0])[1])

    def _make(self, row: Mapping[str, Any]) -> tuple[EpisodeSpec, Any]:
        [spec] = episode_specs([row], group_size=1, seed=0)
        return spec, EnvironmentSource.of(self.environment).create(spec)


def first_failure(episodes: Sequence[Episode]) -> str | None:
    """Return the failure of the first failed episode, with the user's place; None if no episode failed."""
    failures = (episode.failure for episode in episodes if episode.failure is not None)
    return next((f"{failure}{at_place(failure.traceback)}" for failure in failures), None)
