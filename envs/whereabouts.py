"""Whereabouts: the place of each episode in flight, for the warning of a stall."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar


class Place:
    """The place of one episode: its stage, and the tools that it runs."""

    __slots__ = ("_all", "_stage", "_tools")

    def __init__(self, whereabouts: Whereabouts) -> None:
        self._all = whereabouts
        self._stage = "create"
        self._tools: tuple[str, ...] = ()

    def enter(self, stage: str) -> None:
        """Record that the episode has reached this stage, such as "reset"."""
        self._stage = stage
        self._all.moves += 1

    def begin_tool(self, name: str) -> None:
        """Record that the episode runs this tool, too, until `end_tool`."""
        self._tools = (*self._tools, name)
        self._all.moves += 1

    def end_tool(self, name: str) -> None:
        place = self._tools.index(name)
        self._tools = self._tools[:place] + self._tools[place + 1 :]
        self._all.moves += 1

    def __str__(self) -> str:
        tools = self._tools
        return f"tool {tools[0]}" if tools else self._stage


class Whereabouts:
    """The places of the episodes in flight. Any thread may read them."""

    def __init__(self) -> None:
        self.moves = 0  # of all episodes so far; it does not change during a stall
        self._places: set[Place] = set()

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
        """The number of episodes at each place, as in `{"tool search": 3, "policy": 12}`."""
        return Counter(map(str, list(self._places)))


current_place: ContextVar[Place | None] = ContextVar("gymnast_place", default=None)
"""The place of the episode that this code runs for."""


@contextmanager
def running_tool(name: str) -> Iterator[None]:
    """Within this context the episode that this code runs for, if any, runs this tool."""
    place = current_place.get()
    if place is None:
        yield
        return
    place.begin_tool(name)
    try:
        yield
    finally:
        place.end_tool(name)
