"""RolloutEngine: plays many episodes at once, each at its own pace."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ...sandbox.keywords import checks_keywords
from ...sandbox.limits import count_of
from ..episode import Episode, EpisodeSpec, Task
from ..policy import Policy
from ..registry import EnvironmentLike, EnvironmentSource
from ..rewards import Rewards
from ..runtime.rows import Row
from ..runtime.seeds import stable_seed
from ..runtime.threads import run_in_loop
from ..runtime.whereabouts import Progress, Whereabouts
from .compaction import Compact, check_compact
from .failures import EpisodeFailedError, OnFailure
from .garbage import rare_collections
from .play_episode import EpisodeLimits, play_episode


@checks_keywords(limits=EpisodeLimits)
class RolloutEngine:
    """Plays episodes of an environment with a policy: one asyncio task each, a bounded number in flight.

    A slow tool delays its own episode only, and a failure affects its own episode only. An episode is in flight until
    its reward is known. A reward function that needs a group is called when the group's last episode is over.

    Args:
        environment: An environment, class, factory, Gymnasium id, or a dict of these (see `EnvironmentSource`).
        policy: Answers the environment.
        rewards: Reward functions beside the environment's own reward.
        limits: The limits of each episode.
        max_concurrency: Episodes in flight at most.
        on_failure: `drop`, `retry(n)`, `zero` or `raise`; see `OnFailure`.
        compact: Rewrites the history of an episode when the context has less room than one answer may take
            (`max_turn_tokens` of a `TokenPolicy`); or, with `EveryTurn`, after every turn.

    Raises:
        TypeError: the environment is of another kind, or another argument has the wrong type.
        ValueError: an option is out of its range.
    """

    def __init__(
        self,
        environment: EnvironmentLike,
        policy: Policy,
        *,
        rewards: Rewards | None = None,
        limits: EpisodeLimits | None = None,
        max_concurrency: int = 256,
        on_failure: str = "drop",
        compact: Compact | None = None,
    ) -> None:
        if count_of(max_concurrency, "max_concurrency") < 1:
            raise ValueError(f"max_concurrency must be at least 1, got {max_concurrency}")
        if limits is not None and not isinstance(limits, EpisodeLimits):
            raise TypeError(f"limits must be EpisodeLimits(...), got {type(limits).__name__}: {limits!r}")
        if rewards is not None and not isinstance(rewards, Rewards):
            raise TypeError(f"rewards must be Rewards([function, ...]), got {type(rewards).__name__}: {rewards!r}")
        if isinstance(policy, type) or not callable(getattr(policy, "begin", None)):
            raise TypeError(
                f"policy must be a Policy, an object with begin(spec, messages, tools), got {type(policy).__name__}: "
                f"{policy!r}"
            )
        check_compact(compact)
        self.source = EnvironmentSource.of(environment)
        self.policy = policy
        self.rewards = rewards or Rewards()
        self.limits = limits or EpisodeLimits()
        self.max_concurrency = max_concurrency
        self.on_failure = OnFailure.parse(on_failure)
        self.compact = compact
        self.whereabouts = Whereabouts()

    async def run(
        self,
        specs: Iterable[EpisodeSpec],
        on_episode: Callable[[Episode], None] | None = None,
        on_played: Callable[[EpisodeSpec], None] | None = None,
    ) -> list[Episode]:
        """Play these episodes and return their records in the order of the specs.

        Args:
            specs: The episodes to play; they start in this order.
            on_episode: Called with each episode as soon as its reward is known.
            on_played: Called with the spec of each episode that is over, perhaps before the rewards of its group.

        Raises:
            ConfigurationError: a mistake that every episode would meet.
            EpisodeFailedError: an episode failed and `on_failure` is `raise`.
        """
        specs = list(specs)
        await self.source.prepare({spec.group: spec.task.row for spec in specs}.values())
        in_flight = min(len(specs), self.max_concurrency)
        tasks: list[asyncio.Task[Episode]] = []
        try:
            with rare_collections(in_flight), self.whereabouts.progress(len(specs)) as progress:
                sizes = Counter(spec.group for spec in specs)
                many = _Many(self, asyncio.Semaphore(in_flight), progress, sizes, on_episode, on_played)
                async with asyncio.TaskGroup() as group:
                    for place, spec in enumerate(specs):
                        await many.places.acquire()
                        tasks.append(group.create_task(many.episode(place, spec)))
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from None  # the first one cancelled the others
        return [task.result() for task in tasks]

    async def prepare(self, specs: Iterable[EpisodeSpec]) -> None:
        """Let the environment begin to get ready for these episodes, such as to build images; do not wait for it."""
        await self.source.prepare({spec.group: spec.task.row for spec in specs}.values())

    def play(self, rows: Sequence[Mapping[str, Any]], *, group_size: int = 1, seed: int = 0) -> list[Episode]:
        """Run `group_size` episodes of each row, for callers that are not asynchronous.

        All calls share one event loop, so environments may share clients and pools over many calls.

        Returns:
            The episodes of the first row, then those of the second, and so on.
        """
        if isinstance(rows, Sequence) and rows and isinstance(rows[0], Mapping):  # `episode_specs` refuses others
            self.rewards.check_columns([*rows[0]])
        return run_in_loop(self.run(episode_specs(rows, group_size=group_size, seed=seed)))


@dataclass(slots=True, eq=False)
class _Many:
    """The state of one call of `RolloutEngine.run`."""

    engine: RolloutEngine
    places: asyncio.Semaphore  # the free ones
    progress: Progress
    group_sizes: Counter[str]
    on_episode: Callable[[Episode], None] | None
    on_played: Callable[[EpisodeSpec], None] | None
    over: dict[str, dict[int, Episode]] = field(default_factory=dict)  # group -> place of the spec -> episode

    async def episode(self, place: int, spec: EpisodeSpec) -> Episode:
        """Play an episode and find its reward, then free its place."""
        try:
            with self.engine.whereabouts.episode() as where:
                episode = await self._attempts(spec)
                where.enter("reward")
                for rewarded in await self._rewarded(place, episode):
                    self._conclude(rewarded)
                if self.on_played is not None:
                    self.on_played(spec)
                return episode
        finally:
            self.progress.over += 1
            self.places.release()

    async def _rewarded(self, place: int, episode: Episode) -> list[Episode]:
        """Reward the episode. Return the episodes whose reward is now final: itself, its whole group, or none yet."""
        rewards, on_failure = self.engine.rewards, self.engine.on_failure
        await rewards.add(rewards.for_episodes, [episode], retries=on_failure.retries)
        known = [episode]
        if rewards.for_groups and not (episode.failure and on_failure.action == "raise"):
            known = self._group_of(place, episode)
            await rewards.add(rewards.for_groups, known, retries=on_failure.retries)
        return known

    def _group_of(self, place: int, episode: Episode) -> list[Episode]:
        """Return the whole group, in the order of the specs, if this is its last episode; else an empty list."""
        members = self.over.setdefault(episode.spec.group, {})
        members[place] = episode
        if len(members) < self.group_sizes[episode.spec.group]:
            return []
        return [members[place] for place in sorted(members)]

    async def _attempts(self, spec: EpisodeSpec) -> Episode:
        """Play an episode, and again while it fails and an attempt is left."""
        engine, retried = self.engine, []
        while True:
            attempt = len(retried) + 1
            # The environment's seed stays the same: the members of a group begin alike.
            seed = spec.seed if attempt == 1 else stable_seed(spec.seed, "attempt", attempt)
            how = engine.policy, engine.limits, engine.compact
            episode = await engine.source.play(play_episode, replace(spec, seed=seed), *how)
            episode.attempts, episode.retried = attempt, retried
            if episode.failure is None or attempt > engine.on_failure.retries:
                return episode
            retried = [*retried, episode.failure]

    def _conclude(self, episode: Episode) -> None:
        """Apply `on_failure` to an episode whose reward is known, and report it."""
        if episode.failure is not None:
            if self.engine.on_failure.action == "raise":
                raise EpisodeFailedError(episode)
            if self.engine.on_failure.action == "zero":
                episode.reward = 0.0
        if self.on_episode is not None:
            self.on_episode(episode)


def episode_specs(rows: Sequence[Mapping[str, Any]], *, group_size: int, seed: int) -> list[EpisodeSpec]:
    """Return specs of `group_size` episodes for each row; all members of a group share task and environment seed.

    Seeds depend on (seed, row's place, member) alone, never on the other rows.

    Raises:
        TypeError: `rows` is a single row, or a row is not a mapping.
    """
    if isinstance(rows, Mapping | str):  # whose columns or characters would be taken for rows
        kind = "one row" if isinstance(rows, Mapping) else "a str"
        raise TypeError(f"expected a list of rows, got {kind}: {rows!r}; write [row] for a single row")
    groups = (group_specs(f"task-{place}", row, group_size=group_size, seed=seed) for place, row in enumerate(rows))
    return [spec for group in groups for spec in group]


def group_specs(
    task_id: str, row: Mapping[str, Any], *, group_size: int, seed: int, visit: int | str = 0
) -> list[EpisodeSpec]:
    """Return the specs of one group; `visit` is the number or name of this play of the task."""
    if not isinstance(row, Mapping):
        raise TypeError(f"the row of {task_id} must be a mapping, got {type(row).__name__}: {row!r}")
    task = Task(id=task_id, row=Row(row), seed=stable_seed(seed, "environment", task_id, visit))
    group = f"{task_id}@{visit}"
    return [
        EpisodeSpec(task=task, group=group, member=member, seed=stable_seed(seed, "sampling", task_id, visit, member))
        for member in range(group_size)
    ]
