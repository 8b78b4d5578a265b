"""RolloutEngine: play many episodes at once, each at its own pace."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from .collector import episode_in_flight
from .core import Task, stable_seed
from .episode import Episode, EpisodeSpec
from .play import EpisodeLimits, play_episode
from .policy import Policy
from .registry import EnvironmentLike, EnvironmentSource
from .threads import run_in_loop


@dataclass(slots=True, frozen=True)
class OnFailure:
    """What becomes of a failed episode.

    - `drop`: it leaves its group, and is counted.
    - `retry(n)`: it is played again up to n times, then dropped.
    - `zero`: its reward is zero.
    - `raise`: it stops the run.
    """

    action: Literal["drop", "retry", "zero", "raise"]
    retries: int = 0

    @classmethod
    def parse(cls, text: str) -> OnFailure:
        """Read `drop`, `retry(2)`, `zero` or `raise`.

        Raises:
            ValueError: it is none of these.
        """
        match = re.fullmatch(r"(drop|zero|raise)|(retry)\((\d+)\)", text.replace(" ", ""))
        if match is None or match[3] == "0":
            raise ValueError(f"on_failure must be 'drop', 'retry(n)' with n >= 1, 'zero' or 'raise', got {text!r}")
        return cls(match[1] or match[2], int(match[3] or 0))  # type: ignore[arg-type]


class EpisodeFailedError(RuntimeError):
    """An episode failed and `on_failure="raise"`; the message ends with the episode's own traceback."""

    def __init__(self, episode: Episode) -> None:
        assert episode.failure is not None
        super().__init__(
            f"episode {episode.spec.group}[{episode.spec.member}] failed: {episode.failure}\n\n"
            f"{episode.failure.traceback}"
        )
        self.episode = episode


class RolloutEngine:
    """Plays episodes of an environment with a policy: one asyncio task each, a bounded number in flight.

    No episode waits for another: a slow tool delays its own episode only, and a failure stays its own.

    Args:
        environment: An environment, class, factory, Gymnasium id, or a dict of these (see `EnvironmentSource`).
        policy: Who answers.
        limits: What each episode may use.
        max_concurrency: Episodes in flight.
        on_failure: `drop`, `retry(n)`, `zero` or `raise`.

    Raises:
        TypeError: the environment is none of these things.
        ValueError: an option is out of its range.
    """

    def __init__(
        self,
        environment: EnvironmentLike,
        policy: Policy,
        *,
        limits: EpisodeLimits | None = None,
        max_concurrency: int = 256,
        on_failure: str = "drop",
    ) -> None:
        if max_concurrency < 1:
            raise ValueError(f"max_concurrency must be at least 1, got {max_concurrency}")
        if limits is not None and not isinstance(limits, EpisodeLimits):
            raise TypeError(f"limits must be EpisodeLimits(...), got {type(limits).__name__}: {limits!r}")
        self.source = EnvironmentSource.of(environment)
        self.policy = policy
        self.limits = limits or EpisodeLimits()
        self.max_concurrency = max_concurrency
        self.on_failure = OnFailure.parse(on_failure)

    async def run(
        self, specs: Iterable[EpisodeSpec], on_episode: Callable[[Episode], None] | None = None
    ) -> list[Episode]:
        """Play these episodes and return their records in the order of the specs.

        Args:
            specs: What to play; taken one by one as places become free.
            on_episode: Called with each episode as soon as it is over.

        Raises:
            ConfigurationError: a mistake that every episode would meet.
            EpisodeFailedError: an episode failed and `on_failure` is `raise`.
        """
        places = asyncio.Semaphore(self.max_concurrency)
        tasks: list[asyncio.Task[Episode]] = []

        try:
            async with asyncio.TaskGroup() as group:
                for spec in specs:
                    await places.acquire()
                    tasks.append(group.create_task(self._play(spec, places, on_episode)))
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from None  # the first one cancelled the others
        return [task.result() for task in tasks]

    async def _play(
        self, spec: EpisodeSpec, places: asyncio.Semaphore, on_episode: Callable[[Episode], None] | None
    ) -> Episode:
        """Play one episode, again where it failed and another attempt is left, and free its place."""
        attempts = 0
        try:
            with episode_in_flight:
                while True:
                    attempts += 1
                    episode = await play_episode(spec, self.source.create, self.policy, self.limits)
                    episode.attempts = attempts
                    if episode.failure is None or attempts > self.on_failure.retries:
                        break
        finally:
            places.release()
        if episode.failure is not None:
            if self.on_failure.action == "raise":
                raise EpisodeFailedError(episode)
            if self.on_failure.action == "zero":
                episode.reward = 0.0
        if on_episode is not None:
            on_episode(episode)
        return episode

    def play(self, rows: Sequence[Mapping[str, Any]], *, group_size: int = 1, seed: int = 0) -> list[Episode]:
        """Play `group_size` episodes of each row, for callers that are not asynchronous.

        All calls share one event loop, so environments may share clients and pools over many of them.

        Returns:
            The episodes of the first row, then those of the second, and so on.

        Raises:
            TypeError: `rows` is a single row.
        """
        if isinstance(rows, Mapping):
            raise TypeError(f"play() takes a list of rows, got one row: {rows!r}; write play([row])")
        return run_in_loop(self.run(episode_specs(rows, group_size=group_size, seed=seed)))


def episode_specs(
    rows: Sequence[Mapping[str, Any]], *, group_size: int, seed: int, prefix: str = "task", visit: int = 0
) -> list[EpisodeSpec]:
    """Specs of `group_size` episodes for each row; all members of a group share task and environment seed.

    Seeds depend on (seed, prefix, row's place, visit, member) alone, never on what else is in the batch.
    """
    specs = []
    for index, row in enumerate(rows):
        specs += group_specs(f"{prefix}-{index}", row, group_size=group_size, seed=seed, visit=visit)
    return specs


def group_specs(
    task_id: str, row: Mapping[str, Any], *, group_size: int, seed: int, visit: int = 0
) -> list[EpisodeSpec]:
    """Specs of one group: the visit-th time that this task is played."""
    task = Task(id=task_id, row=row, seed=stable_seed(seed, "environment", task_id, visit))
    return [
        EpisodeSpec(
            task=task,
            group=f"{task_id}@{visit}",
            member=member,
            seed=stable_seed(seed, "sampling", task_id, visit, member),
        )
        for member in range(group_size)
    ]
