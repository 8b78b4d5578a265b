"""GroupsInFlight: plays groups in the background, and hands out those that are over, oldest first."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from ....envs.engine.rollout_engine import RolloutEngine
from ....envs.episode import Episode, EpisodeSpec
from .changes import Changes

Start = tuple[int, list[EpisodeSpec]]
"""The number of a group, and its episodes."""


@dataclass(kw_only=True, slots=True)
class FinishedGroup:
    """The episodes of a group that is over."""

    number: int  # the place of the group among those of this process, in the order of the schedule
    started_at: int  # the optimiser steps that had been taken when it was started
    episodes: list[Episode]

    @property
    def record(self) -> dict[str, Any]:
        """The group in files, without its episodes."""
        return {"number": self.number, "started_at": self.started_at}

    @property
    def versions(self) -> list[list[int | None]]:
        """The weight version of each turn of each episode."""
        return [[turn.weight_version for turn in episode.turns] for episode in self.episodes]


class GroupsInFlight:
    """Groups that are waiting, in flight, or over. Everything runs in the event loop of `run_in_loop`.

    A group starts when all of its episodes are within the engine's `max_concurrency`, so groups start in order.
    `on_group` is called with each group that is over. `take` and `drain` raise its exceptions, as they do a group's.
    """

    def __init__(self, engine: RolloutEngine, on_group: Callable[[FinishedGroup], None]) -> None:
        self.finished: dict[int, FinishedGroup] = {}
        self._engine = engine
        self._on_group = on_group
        self._waiting: deque[Start] = deque()
        self._playing: dict[int, asyncio.Task[None]] = {}
        self._episodes: dict[int, int] = {}  # episodes in flight, by the number of their group
        self._step = 0
        self._is_draining = False
        self._error: BaseException | None = None
        self._changes = Changes()

    @property
    def in_flight(self) -> int:
        """The number of groups that have been started and are not over."""
        return len(self._playing)

    async def snapshot(self) -> tuple[list[FinishedGroup], list[int]]:
        """Return the groups that are over, and the numbers of those that are waiting or in flight."""
        unfinished = [*self._playing, *(number for number, _ in self._waiting)]
        return list(self.finished.values()), sorted(unfinished)

    async def start(self, groups: Iterable[Start], *, step: int) -> None:
        """Let these groups start, after those that wait already. `step` optimiser steps have been taken."""
        self._step = step
        self._waiting += groups
        self._start_more()

    async def take(self, count: int) -> list[FinishedGroup]:
        """Return the `count` oldest groups that are over, as soon as there are so many; raise the error of a group."""
        await self._changes.until(lambda: self._error is not None or len(self.finished) >= count)
        self._raise_error()
        return [self.finished.pop(number) for number in sorted(self.finished)[:count]]

    async def drain(self) -> None:
        """Start no more groups until `go_on`, and wait until those in flight are over; raise the error of a group."""
        self._is_draining = True
        await self._changes.until(lambda: self._error is not None or not self._playing)
        self._raise_error()

    async def go_on(self) -> None:
        self._is_draining = False
        self._start_more()

    async def close(self) -> None:
        """Cancel the groups in flight; their environments are closed."""
        self._waiting.clear()
        tasks = list(self._playing.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _raise_error(self) -> None:
        if self._error is not None:
            raise self._error

    def _start_more(self) -> None:
        while self._waiting and not self._is_draining and self._error is None and self._fits(self._waiting[0][1]):
            number, specs = self._waiting.popleft()
            self._episodes[number] = len(specs)
            self._playing[number] = asyncio.create_task(self._play(number, specs, self._step))

    def _fits(self, specs: list[EpisodeSpec]) -> bool:
        in_flight = sum(self._episodes.values())
        return not in_flight or in_flight + len(specs) <= self._engine.max_concurrency

    async def _play(self, number: int, specs: list[EpisodeSpec], step: int) -> None:
        def episode_is_over(spec: EpisodeSpec) -> None:
            self._episodes[number] -= 1
            self._start_more()

        try:
            episodes = await self._engine.run(specs, on_played=episode_is_over)
            group = FinishedGroup(number=number, started_at=step, episodes=episodes)
            self._on_group(group)
            self.finished[number] = group
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # a SystemExit of an environment would end the thread of the loop
            self._error = self._error or error
        finally:
            del self._playing[number], self._episodes[number]
            self._start_more()
            self._changes.tell()
