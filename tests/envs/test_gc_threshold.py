"""The garbage collector's threshold while episodes are in flight."""

from __future__ import annotations

import asyncio
import gc
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
    """A policy's script: all episodes wait for one another, then `then` answers."""

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

    async def play(self, **options: Any) -> asyncio.Task[Any]:
        """Start a run; return when all its episodes are in flight."""
        engine = RolloutEngine(ToolEnv, ScriptedPolicy(self), **{"max_concurrency": self.count, **options})
        running = asyncio.create_task(engine.run(specs(self.count)))
        await asyncio.wait_for(self.all_here.wait(), WAIT)
        return running


async def test_the_threshold_grows_with_the_episodes_in_flight_and_comes_back() -> None:
    gate = Gate()
    playing = await gate.play()
    assert gc.get_threshold() == (30 * MANY, *GIVEN[1:])
    gate.open.set()
    await playing
    assert gc.get_threshold() == GIVEN


async def test_the_threshold_comes_back_when_two_runs_overlap() -> None:
    gates = [Gate(), Gate(count=2 * MANY)]
    runs = [await gate.play() for gate in gates]
    assert gc.get_threshold() == (30 * 3 * MANY, *GIVEN[1:])
    for gate, run, left in zip(gates, runs, (2 * MANY, 0), strict=True):
        gate.open.set()
        await run
        assert gc.get_threshold() == (max(30 * left, GIVEN[0]), *GIVEN[1:])


async def test_a_few_episodes_leave_the_threshold_alone() -> None:
    gate = Gate(count=8)
    playing = await gate.play(max_concurrency=1000)
    assert gc.get_threshold() == GIVEN
    gate.open.set()
    await playing


async def test_the_threshold_comes_back_when_the_run_is_cancelled() -> None:
    playing = await Gate().play()
    playing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await playing
    assert gc.get_threshold() == GIVEN


async def test_the_threshold_comes_back_when_an_episode_stops_the_run() -> None:
    gate = Gate(then=lambda: 1 / 0)
    playing = await gate.play(on_failure="raise")
    gate.open.set()
    with pytest.raises(EpisodeFailedError):
        await playing
    assert gc.get_threshold() == GIVEN


async def test_a_collector_that_is_off_stays_off() -> None:
    gc.set_threshold(0)
    gate = Gate()
    playing = await gate.play()
    assert gc.get_threshold()[0] == 0
    gate.open.set()
    await playing
    assert gc.get_threshold()[0] == 0
