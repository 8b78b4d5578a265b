"""Whereabouts: the place of each episode in flight, for displays and for the warning of a stall."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass

PLACES = {
    "create": "the making of an environment",
    "policy": "the generator",
    "compact": "compact()",
    "reward": "a reward function",
}
"""Places with another name for people than their own, such as "reset" or "tool search"."""

SHOWN_SECONDS = 5.0  # a shorter stay at a place is not told


class Place:
    """The place of one episode: its stage, and the tools that it runs."""

    __slots__ = ("_all", "_stage", "_tools", "since")

    def __init__(self, whereabouts: Whereabouts) -> None:
        self._all = whereabouts
        self._stage = "create"
        self._tools: list[str] = []
        self.since = time.monotonic()

    def enter(self, stage: str) -> None:
        """Record that the episode has reached this stage, such as "reset"."""
        self._stage = stage
        self._moved()

    @contextmanager
    def tool(self, name: str) -> Iterator[None]:
        """Within this context the episode runs this tool, too."""
        self._tools.append(name)
        self._moved()
        try:
            yield
        finally:
            self._tools.remove(name)
            self._moved()

    def _moved(self) -> None:
        self.since = time.monotonic()
        self._all.moves += 1

    def __str__(self) -> str:
        tools = list(self._tools)  # a copy, since another thread may read them
        return f"tool {tools[0]}" if tools else self._stage


@dataclass(slots=True, eq=False)
class Progress:
    """Counts the episodes that are played together, and those that are over."""

    count: int
    over: int = 0


class Whereabouts:
    """The places of the episodes in flight. Any thread may read them."""

    def __init__(self) -> None:
        self.moves = 0  # of all episodes so far; it does not change during a stall
        self._places: set[Place] = set()
        self._in_progress: set[Progress] = set()
        self._purpose = ""

    @contextmanager
    def progress(self, count: int) -> Iterator[Progress]:
        """Within this context so many episodes are played; the caller counts those that are over."""
        progress = Progress(count)
        self._in_progress.add(progress)
        try:
            yield progress
        finally:
            self._in_progress.discard(progress)

    @contextmanager
    def playing_for(self, purpose: str) -> Iterator[None]:
        """Within this context episodes are played for something else than training, such as "evaluation"."""
        self._purpose = purpose
        try:
            yield
        finally:
            self._purpose = ""

    def describe(self) -> str:
        """Return a line such as `27 of 64 episodes are over, 12 in the generator, 3 in tool search for 40 s`.

        The seconds are those of the episode that has been at this place for longest. It is empty if nothing is played.
        """
        played, places, now = list(self._in_progress), list(self._places), time.monotonic()
        if not played:
            return ""
        over, count = sum(progress.over for progress in played), sum(progress.count for progress in played)
        longest: dict[str, float] = {}
        for place in places:
            longest[str(place)] = max(longest.get(str(place), 0.0), now - place.since)
        parts = [f"{over} of {count} episodes are over"]
        for name, number in Counter(map(str, places)).most_common():
            stay = f" for {longest[name]:.0f} s" if longest.get(name, 0.0) >= SHOWN_SECONDS else ""
            parts.append(f"{number} in {PLACES.get(name, name)}{stay}")
        return (f"{self._purpose}: " if self._purpose else "") + ", ".join(parts)

    @contextmanager
    def episode(self) -> Iterator[Place]:
        """Within this context an episode is in flight; `current_place` is its place in this task."""
        place = Place(self)
        self._places.add(place)
        token = current_place.set(place)
        try:
            yield place
        finally:
            current_place.reset(token)
            self._places.discard(place)
            self.moves += 1

    def counts(self) -> Counter[str]:
        """Return the number of episodes at each place, as in `{"tool search": 3, "policy": 12}`."""
        return Counter(map(str, list(self._places)))


current_place: ContextVar[Place | None] = ContextVar("gymnast_place", default=None)
"""The place of the episode that this code runs for."""


def running_tool(name: str) -> AbstractContextManager[None]:
    """Within this context the episode that this code runs for, if any, runs this tool."""
    place = current_place.get()
    return nullcontext() if place is None else place.tool(name)
