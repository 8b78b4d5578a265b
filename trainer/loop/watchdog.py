"""Watchdog: warns of a stall, and says what the run waits for."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Self

from ...envs.runtime.whereabouts import PLACES, Whereabouts

logger = logging.getLogger(__name__)

LOOKS = 10
"""The number of times that the watchdog looks within its time limit."""


class Watchdog:
    """Logs one line when neither an episode nor the trainer has moved for some time, and again after the next stall.

    It watches while it is open, in a thread, since an environment may block the event loop. It may be opened again
    while it is open. It warns after `seconds` without progress; None: never. `whereabouts` has the places of the
    episodes in flight. `process` names this process in the line, such as " in process 1"; empty if there is one.
    """

    def __init__(self, seconds: float | None, whereabouts: Whereabouts, *, process: str = "") -> None:
        self._seconds = seconds
        self._whereabouts = whereabouts
        self._process = process
        self._moves = 0  # of the trainer's own
        # The last one counts.
        self._waits_for = ["an update, which needs the gradients of all processes, or a callback"]
        self._opened = 0
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        self._opened += 1
        if self._opened == 1 and self._seconds is not None:
            self._closing.clear()
            self._thread = threading.Thread(
                target=self._watch, args=(self._seconds,), name="gymnast-watchdog", daemon=True
            )
            self._thread.start()
        return self

    def __exit__(self, *error: Any) -> None:
        self._opened -= 1
        if self._opened == 0 and self._thread is not None:
            self._closing.set()
            self._thread.join()
            self._thread = None

    def moved(self) -> None:
        """Record that the trainer has made progress."""
        self._moves += 1

    @contextmanager
    def during(self, what: str) -> Iterator[None]:
        """Within this context the trainer waits for `what`."""
        self._waits_for.append(what)
        self._moves += 1
        try:
            yield
        finally:
            self._waits_for.pop()
            self._moves += 1

    @contextmanager
    def playing(self) -> Iterator[None]:
        """Watch while episodes are played; until the first one begins, training waits for the generator."""
        with self, self.during("the generator to take new weights"):
            yield

    def _watch(self, seconds: float) -> None:
        last, since, told = self._state(), time.monotonic(), False
        while not self._closing.wait(seconds / LOOKS):
            state, now = self._state(), time.monotonic()
            if state != last:
                last, since, told = state, now, False
            elif not told and now - since >= seconds:
                told = True
                logger.warning("nothing has moved%s for %.3g s: %s", self._process, now - since, self._who_waits())

    def _state(self) -> tuple[int, int]:
        return self._whereabouts.moves, self._moves

    def _who_waits(self) -> str:
        counts = self._whereabouts.counts().most_common()
        if not counts:
            return f"training waits for {self._waits_for[-1]}"
        parts = [f"{count} in {PLACES.get(place, place)}" for place, count in counts]
        many = counts[0][1] > 1
        return ", ".join(parts).replace(" in ", " episodes wait in " if many else " episode waits in ", 1)
