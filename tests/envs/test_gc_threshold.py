"""The garbage collector's thresholds while episodes are in flight."""

from __future__ import annotations

import asyncio
import gc
import os
from collections.abc import Iterator
from typing import Any

import pytest

from gymnast.envs import EpisodeFailedError, Message, RolloutEngine, ScriptedPolicy, ToolEnv

from .episodes import WAIT, specs

MANY = 500  # episodes, enough for a threshold above Python's own
GIVEN = (800, 7, 9)


@pytest.fixture(autouse=True)
def thresholds() -> Iterator[None]:
    before = gc.get_threshold()
    gc.set_threshold(*GIVEN)
    yield
    gc.set_threshold(*before)


class Gate:
    """A policy's script whose episodes all wait for one another; then `then` answers."""

    def __init__(self, count: int = MANY, then: Any = lambda: "Done.") -> None:
        self.count = count
        self.then = then
        self.waiting = 0
        self.all_here, self.open = asyncio.Event(), asyncio.Event()

    async def __call__(self, messages: list[Message]) -> str:
        self.waiting += 1
        if self.waiting == self.count:
            self.all_here.set()
        await self.open.wait()
        return self.then()

    def play(self, **options: Any) -> asyncio.Task[Any]:
        engine = RolloutEngine(ToolEnv, ScriptedPolicy(self), max_concurrency=self.count, **options)
        return asyncio.create_task(engine.run(specs(self.count)))

    async def reached(self) -> None:
        await asyncio.wait_for(self.all_here.wait(), WAIT)


async def test_the_threshold_grows_with_the_episodes_in_flight_and_comes_back() -> None:
    gate = Gate()
    playing = gate.play()
    await gate.reached()
    assert gc.get_threshold() == (30 * MANY, *GIVEN[1:])
    gate.open.set()
    await playing
    assert gc.get_threshold() == GIVEN


async def test_a_few_episodes_leave_the_threshold_alone() -> None:
    gate = Gate(count=8)
    playing = gate.play()
    await gate.reached()
    assert gc.get_threshold() == GIVEN
    gate.open.set()
    await playing


async def test_two_engines_at_once_share_it_whichever_ends_first() -> None:
    first, second = Gate(), Gate()
    tasks = [first.play(), second.play()]
    await first.reached()
    await second.reached()
    assert gc.get_threshold()[0] == 60 * MANY
    first.open.set()
    await tasks[0]
    assert gc.get_threshold()[0] == 30 * MANY
    second.open.set()
    await tasks[1]
    assert gc.get_threshold() == GIVEN


async def test_it_comes_back_when_the_run_is_cancelled() -> None:
    gate = Gate()
    playing = gate.play()
    await gate.reached()
    playing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await playing
    assert gc.get_threshold() == GIVEN


async def test_it_comes_back_when_an_episode_stops_the_run() -> None:
    gate = Gate(then=lambda: 1 / 0)
    playing = gate.play(on_failure="raise")
    await gate.reached()
    gate.open.set()
    with pytest.raises(EpisodeFailedError):
        await playing
    assert gc.get_threshold() == GIVEN


async def test_thresholds_that_somebody_sets_meanwhile_stand() -> None:
    gate = Gate()
    playing = gate.play()
    await gate.reached()
    gc.set_threshold(100_000, 3, 4)
    gate.open.set()
    await playing
    assert gc.get_threshold() == (100_000, 3, 4)


async def test_a_collector_that_is_off_stays_off() -> None:
    gc.set_threshold(0)
    gate = Gate()
    playing = gate.play()
    await gate.reached()
    assert gc.get_threshold()[0] == 0
    gate.open.set()
    await playing
    assert gc.get_threshold()[0] == 0


def exit_code_of_a_child() -> int:
    """0 when a forked child finds the thresholds as they were given."""
    child = os.fork()
    if child == 0:
        os._exit(0 if gc.get_threshold() == GIVEN else 1)
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status)


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
async def test_in_a_forked_child_nothing_is_in_flight() -> None:
    gate = Gate()
    playing = gate.play()
    await gate.reached()
    assert exit_code_of_a_child() == 0
    gate.open.set()
    await playing
