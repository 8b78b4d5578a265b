"""GroupSource: from tasks to the groups of episodes that a round learns from; `InStep` plays them while training waits.

`Overlapped` is the other source: it plays them while the model trains.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from ...envs.episode import Episode, EpisodeSpec
from ...envs.runtime.threads import run_in_loop
from ..learning.groups import Group, form_groups
from ..learning.settings import LearningSettings
from ..models.distributed import Processes
from .episode_player import EpisodePlayer
from .overlong import charge_overlong
from .schedule import Schedule


@dataclass(kw_only=True, slots=True)
class PlayedRound:
    """The episodes that a process has played in a round, and their groups."""

    episodes: list[Episode] = field(default_factory=list)  # all of them, including those that are not learned from
    groups: list[Group] = field(default_factory=list)  # those to learn from
    dropped: int = 0  # groups that had fewer than two members left
    refilled: int = 0  # groups that were played because others had no spread
    replaced: int = 0  # groups without spread, or dropped ones, that refills replaced
    overlap: list[tuple[int, dict[str, float]]] = field(default_factory=list)
    """Further means, of rollouts that overlap with updates, with the number of values of each."""

    @property
    def metrics(self) -> dict[str, float]:
        counts = {"dropped": self.dropped, "refilled": self.refilled, "replaced": self.replaced}
        return {f"groups/{name}": float(count) for name, count in counts.items()}


@dataclass
class GroupSource(ABC):
    """The groups of each round, in this process."""

    schedule: Schedule
    player: EpisodePlayer
    processes: Processes
    settings: LearningSettings

    @abstractmethod
    def play(self, index: int, step: int) -> PlayedRound:
        """Return the round of this number, which this optimiser step begins with; the rewards are final."""

    def begin(self, step: int, last: int) -> None:  # noqa: B027
        """Begin a training of `last` steps, or resume it, at this step."""

    def before_update(self) -> float:
        """Prepare for new weights; return the seconds that this waited for the generator."""
        return 0.0

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Open a context in which no episode of a round is in flight."""
        yield

    def save(self, folder: Path, step: int) -> None:  # noqa: B027
        """Write the episodes into the checkpoint of this step that could not be played again."""

    def load(self, folder: Path) -> None:  # noqa: B027
        """Read the episodes that `save` wrote; raise a ValueError if this training cannot continue with them."""

    def close(self) -> None:  # noqa: B027
        """End all episodes in flight."""

    def conclude(self, episodes: Sequence[Episode]) -> None:
        """Give episodes that are over their final rewards; raise a ValueError if the estimator cannot take them."""
        if self.settings.overlong_buffer:
            charge_overlong(episodes, self.settings)
        self.settings.comparison.check(episodes)

    def form_groups(self, episodes: Sequence[Episode], played: PlayedRound) -> list[Group]:
        """Add episodes to the round, and form their groups."""
        groups, dropped = form_groups(episodes, self.settings.truncated)
        played.episodes += episodes
        played.dropped += dropped
        return groups


@dataclass
class InStep(GroupSource):
    """Plays a round when it is asked for, with the weights of now.

    Groups whose rewards do not differ teach nothing. They are replaced by groups of other tasks up to `max_refills`
    times, as in the dynamic sampling of DAPO (Yu et al. 2025, arXiv 2503.14476, section 3.2). The tasks depend only on
    the number of the round, so a resumed training plays the same ones.
    """

    max_refills: int
    _batches: int = 0  # of the whole training

    def begin(self, step: int, last: int) -> None:
        self._batches = self.schedule.batches_before(last)

    def play(self, index: int, step: int) -> PlayedRound:
        has_spread, played = self.settings.comparison.has_spread, PlayedRound()
        played.groups = self._play(self.schedule.specs(index), played)
        for refill in range(self.max_refills):
            flat = [place for place, group in enumerate(played.groups) if not has_spread(group)]
            missing = self.schedule.groups_per_process - len(played.groups) + len(flat)
            if self.processes.sum_counts(missing) == [0]:
                break
            # A process that misses no group plays nothing, but must take part: processes send weights together.
            fresh = self._play(self.schedule.refill_specs(index, refill, missing), played)
            fresh = [group for group in fresh if has_spread(group)]
            played.refilled += missing
            played.replaced += len(fresh)
            # Where refills do not suffice, groups without spread stay: they count in the divisors of the loss.
            for place, group in zip(flat, fresh, strict=False):
                played.groups[place] = group
            played.groups += fresh[len(flat) :]
        if (index + 1) * self.schedule.batches_per_round < self._batches and self.schedule.num_tasks is not None:
            # While the model trains. A stream is not read ahead.
            run_in_loop(self.player.engine.prepare(self.schedule.specs(index + 1)))
        return played

    def _play(self, specs: list[EpisodeSpec], played: PlayedRound) -> list[Group]:
        """Play episodes, add them to the round, and form their groups."""

        def play() -> list[Episode]:
            episodes = self.player.run(specs)
            self.conclude(episodes)
            return episodes

        return self.form_groups(self.processes.all_or_none(play), played)

    def load(self, folder: Path) -> None:
        if any(folder.glob("groups*.json")):
            raise ValueError(
                f"{folder} is a checkpoint of a training with max_staleness, which has started groups of later rounds: "
                f"set max_staleness here, too"
            )
