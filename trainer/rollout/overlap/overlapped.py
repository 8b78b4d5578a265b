"""Overlapped: rounds of groups that are played in the background, while the model trains."""

from __future__ import annotations

import asyncio
import json
import logging
import math
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from accelerate import PartialState

from ....envs.episode import Episode
from ....envs.runtime.line_files import append_lines
from ....envs.runtime.threads import run_in_loop, run_in_thread
from ....records.files.run_files import keep_lines_until, move_aside
from ...run_log.metrics import Part
from ..group_source import GroupSource, PlayedRound
from .groups_in_flight import FinishedGroup, GroupsInFlight
from .turn_gate import TurnGate

logger = logging.getLogger(__name__)

EPISODES = "the episodes of the next round"
WEIGHTS = "the generator to take new weights"


@dataclass
class Overlapped(GroupSource):
    """Consumes groups that are played in the background.

    A round is needed from a certain step on. Its groups may start `max_staleness` steps before. Each round takes the
    oldest groups that are over, so a late one delays no other, and is consumed with a later round. No group is thrown
    away.

    While an update computes its gradients, a thread sends the weights of the last update to the generator; the
    optimiser waits for it. Processes that send together do so before the gradients, in the main thread.

    The player's generator must be a `TurnGate`.
    """

    max_staleness: int
    log: Path
    """`groups.jsonl`: `{"step": ..., "groups": [...]}` for each round, with the groups in the order of consumption."""
    _next: int | None = None  # the number of the next group to start; None: not known yet
    _restarted: list[int] = field(default_factory=list)  # numbers of groups that were not over at the checkpoint
    _taken: dict[int, list[FinishedGroup]] = field(default_factory=dict)
    """The groups of the rounds that have not been used in a finished step, by the number of the round."""
    _sending: asyncio.Task[None] | None = None

    def __post_init__(self) -> None:
        assert isinstance(self.player.generator, TurnGate)
        self._gate = self.player.generator
        self._is_first = True
        self._last = 0  # the number of optimiser steps of the whole training
        self._groups = GroupsInFlight(self.player.engine, lambda group: self.conclude(group.episodes))
        self._clock = time.perf_counter(), 0.0  # the time of the last round, and the generator's busy seconds then
        self._waited: defaultdict[str, float] = defaultdict(float)  # seconds since the last round, by their reason

    def begin(self, step: int, last: int) -> None:
        self._last = last
        if self._next is None:
            self._next = self._count_before(step)
        if step == 0 and self.log.exists():
            move_aside(self.log)
        elif self.log.exists():
            keep_lines_until(step - 1, self.log)  # a resumed training consumes the later rounds again
        self._gate.stays_awake = True
        self._gate.wake()
        self._clock = time.perf_counter(), self._gate.busy_seconds
        if self.max_staleness > last and PartialState().is_main_process:
            text = "max_staleness=%d is more than the %d steps of this training: all episodes may start at the first"
            logger.warning(text, self.max_staleness, last)

    def play(self, index: int, step: int) -> PlayedRound:
        self._send_weights()
        starts = [(number, self.schedule.group(number)) for number in self._admitted(step)]
        run_in_loop(self._groups.start(starts, step=step))
        with self._waiting(EPISODES):
            groups = self.processes.all_or_none(
                lambda: self.player.wait_for(lambda: self._groups.take(self.schedule.groups_per_process))
            )
        self._taken = {number: taken for number, taken in self._taken.items() if not self._is_used(number, step)}
        self._taken[index] = groups
        self._write(groups, step)
        played = PlayedRound()
        played.groups = self.form_groups([episode for group in groups for episode in group.episodes], played)
        played.overlap = [*self._staleness(groups, step), (1, self._shares())]
        return played

    def _write(self, groups: list[FinishedGroup], step: int) -> None:
        """Append a round that this step trains on to the log."""
        records = [group.record | {"versions": group.versions} for group in groups]
        self.log.parent.mkdir(parents=True, exist_ok=True)
        append_lines(self.log, [json.dumps({"step": step, "groups": records})])

    def before_update(self) -> float:
        """Wait until the generator has its copy of the weights."""
        before = self._waited[WEIGHTS]
        with self._waiting(WEIGHTS):
            self._finish_sending()
            self._gate.weights_will_change()
        return self._waited[WEIGHTS] - before

    @contextmanager
    def alone(self) -> Iterator[None]:
        with self._waiting(WEIGHTS):
            self._finish_sending()
        try:
            with self._waiting(EPISODES):
                self.player.wait_for(self._groups.drain)
            yield
        finally:
            run_in_loop(self._groups.go_on())

    def save(self, folder: Path, step: int) -> None:
        """Write the groups that are over and that no finished step has used, and the numbers of the others."""
        taken = [group for index, groups in self._taken.items() if not self._is_used(index, step) for group in groups]
        finished, unfinished = run_in_loop(self._groups.snapshot())
        state = {
            "next": self._next,
            "unfinished": [*self._restarted, *unfinished],
            "finished": [
                group.record | {"episodes": [episode.to_json() for episode in group.episodes]}
                for group in [*taken, *finished]
            ],
        }
        self._path(folder).write_text(json.dumps(state))

    def load(self, folder: Path) -> None:
        if not self._path(folder).is_file():
            return  # of a training without overlap
        state = json.loads(self._path(folder).read_text())
        self._next, self._restarted = state["next"], state["unfinished"]
        for saved in state["finished"]:
            # The row may hold values that JSON does not have.
            task = self.schedule.group(saved["number"])[0].task
            episodes = [Episode.from_json(text) for text in saved["episodes"]]
            for episode in episodes:
                episode.spec = replace(episode.spec, task=task)
            self._groups.finished[saved["number"]] = FinishedGroup(**saved | {"episodes": episodes})

    def close(self) -> None:
        if not self._gate.stays_awake:  # closed already, or never begun
            return
        run_in_loop(self._groups.close())  # first, because the weights wait for the turns in progress
        with suppress(Exception):  # the error of an update, if any, is on its way
            self._finish_sending()
        self._gate.stays_awake = False
        self._gate.weights_will_change()
        self._gate.sleep()

    def _path(self, folder: Path) -> Path:
        return folder / f"groups{self.processes.suffix}.json"

    def _send_weights(self) -> None:
        """Begin to send the weights, unless the generator has them."""
        if self._sending is not None:  # a second round of the same step
            return
        if self._is_first or self.player.sends_together:
            self._is_first = False  # sent at once, so that errors come before the first round
            with self._waiting(WEIGHTS):
                self.player.send_weights()
            return

        async def begin() -> None:
            self._gate.shut()  # now, so that no group begins with the weights before
            self._sending = asyncio.create_task(run_in_thread(self.player.send_weights))
            self._sending.add_done_callback(lambda _: self._gate.open())

        run_in_loop(begin())

    def _finish_sending(self) -> None:
        sending, self._sending = self._sending, None
        if sending is not None:
            run_in_loop(asyncio.wait_for(sending, None))

    def _admitted(self, step: int) -> list[int]:
        """Return the numbers of the groups that may start from this step on, and have not been started."""
        until = self._count_before(min(step + self.max_staleness + 1, self._last))
        assert self._next is not None
        numbers = [*self._restarted, *range(self._next, until)]
        self._restarted = []
        self._next = max(self._next, until)
        return numbers

    def _count_before(self, step: int) -> int:
        """Return the number of groups of this process that the first `step` steps use."""
        schedule = self.schedule
        return -(-schedule.batches_before(step) // schedule.batches_per_round) * schedule.groups_per_process

    def _is_used(self, index: int, step: int) -> bool:
        """Return whether a step before this one uses the round."""
        return index * self.schedule.groups_per_process < self._count_before(step)

    def _staleness(self, groups: list[FinishedGroup], step: int) -> list[Part]:
        """Return the ages of the weights that sampled these groups."""
        versions = [version for group in groups for turns in group.versions for version in turns if version is not None]
        ages = [float(step - version) for version in versions] or [math.nan]
        late = float(sum(step - group.started_at > self.max_staleness for group in groups))
        of_turns = {"staleness/mean": sum(ages) / len(ages), "staleness/max": max(ages)}
        return [(1, {"staleness/late": late}), (len(versions), of_turns)]

    @contextmanager
    def _waiting(self, what: str) -> Iterator[None]:
        began = time.perf_counter()
        try:
            with self.processes.waiting(what):
                yield
        finally:
            self._waited[what] += time.perf_counter() - began

    def _shares(self) -> dict[str, float]:
        """Return the shares of the time since the last round in which the trainer and the generator did nothing."""
        now, busy = time.perf_counter(), self._gate.busy_seconds
        then, busy_then = self._clock
        seconds, self._clock = now - then, (now, busy)
        waited, self._waited = self._waited, defaultdict(float)
        return {
            "idle/trainer": sum(waited.values()) / seconds,
            "idle/weights": waited[WEIGHTS] / seconds,
            "idle/generator": max(0.0, 1 - (busy - busy_then) / seconds),
            "groups/in_flight": float(self._groups.in_flight),
        }
