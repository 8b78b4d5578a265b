"""The garbage collector while many episodes are in flight.

Python looks for reference cycles after every 700 new containers (see `gc.set_threshold`), which suits a program that
does one thing at a time. With thousands of episodes in flight that many are new within a fraction of one round of the
event loop, and nearly all of them are still in use: each look finds nothing, and hands on to the next generation what
is about to be freed anyhow, so that the costly looks at all objects become frequent too. At 4,096 episodes a third of
the time went there. So the threshold grows with the episodes in flight, and the collector's share of a turn does not.

What it costs: that many containers may wait in dead cycles before they are found. It is kept small and in
proportion, since a cycle may hold a tensor; to freeze or disable the collector would keep cycles for a whole run.
"""

from __future__ import annotations

import gc
import os
import threading

NEW_CONTAINERS = 30  # for each episode in flight: what one of its turns makes, most of which it drops again


class _EpisodeInFlight:
    """Entered once for each episode, by any number of engines, loops and threads at once.

    The thresholds belong to the whole process. Those that are found before the first episode hold again after the
    last; if somebody sets others meanwhile, it is those. A collector that is off stays off.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._episodes = 0
        self._given = self._set = gc.get_threshold()

    def __enter__(self) -> None:
        self._count(1)

    def __exit__(self, *error: object) -> None:
        self._count(-1)

    def _count(self, change: int) -> None:
        with self._lock:
            self._episodes += change
            found = gc.get_threshold()
            if found != self._set:
                self._given = found
            young, *older = self._given
            self._set = (max(young, NEW_CONTAINERS * self._episodes) if young else 0, *older)
            gc.set_threshold(*self._set)

    def forget(self) -> None:
        """In a forked child: its parent's episodes are not in flight there."""
        if gc.get_threshold() == self._set:
            gc.set_threshold(*self._given)
        self.__init__()


episode_in_flight = _EpisodeInFlight()
os.register_at_fork(after_in_child=episode_in_flight.forget)
