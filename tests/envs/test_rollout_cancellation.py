"""A cancelled or stopped rollout closes every environment exactly once."""

from __future__ import annotations

import asyncio
import threading

import pytest

from gymnast.envs import (
    EpisodeFailedError,
    EpisodeLimits,
    Message,
    RolloutEngine,
    ScriptedPolicy,
    StepResult,
    play_episode,
)

from .episodes import WAIT, Log, Probe, specs


class Waiting(Probe):
    """Waits in its step, and closes only when it is allowed to."""

    def __init__(self, log: Log, started: asyncio.Semaphore, may_close: asyncio.Event) -> None:
        super().__init__(log)
        self.started = started
        self.may_close = may_close

    async def astep(self, action: Message) -> StepResult:
        self.started.release()
        await asyncio.Event().wait()
        raise AssertionError

    async def aclose(self) -> None:
        await asyncio.wait_for(self.may_close.wait(), WAIT)
        self.closed += 1


async def test_cancellation_closes_every_environment_exactly_once() -> None:
    log, started, may_close = Log(), asyncio.Semaphore(0), asyncio.Event()
    running = asyncio.create_task(
        RolloutEngine(lambda: Waiting(log, started, may_close), ScriptedPolicy(["x"])).run(specs(5))
    )
    for _ in range(5):
        await asyncio.wait_for(started.acquire(), WAIT)
    running.cancel()
    await asyncio.sleep(0)
    running.cancel()  # an impatient user: closing still goes on
    await asyncio.sleep(0)
    assert not running.done()
    may_close.set()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert log.closed == [1] * 5


async def test_cancellation_closes_an_environment_that_is_still_being_made() -> None:
    making, may_make, closed = threading.Event(), threading.Event(), threading.Event()

    class SlowlyMade(Probe):
        def __init__(self, log: Log) -> None:
            making.set()
            assert may_make.wait(WAIT)
            super().__init__(log)

        async def aclose(self) -> None:
            await super().aclose()
            closed.set()

    log = Log()
    running = asyncio.create_task(RolloutEngine(lambda: SlowlyMade(log), ScriptedPolicy(["x"])).run(specs(1)))
    assert await asyncio.to_thread(making.wait, WAIT)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    may_make.set()
    assert await asyncio.to_thread(closed.wait, WAIT)
    assert log.closed == [1]


async def test_cancellation_while_an_environment_closes_waits_for_it() -> None:
    closing, may_close = asyncio.Event(), asyncio.Event()

    class SlowlyClosed(Probe):
        async def aclose(self) -> None:
            closing.set()
            await asyncio.wait_for(may_close.wait(), WAIT)
            self.closed += 1

    log = Log()
    playing = asyncio.create_task(
        play_episode(specs(1)[0], lambda _: SlowlyClosed(log), ScriptedPolicy(["x"]), EpisodeLimits())
    )
    await asyncio.wait_for(closing.wait(), WAIT)
    for _ in range(3):
        playing.cancel()
        await asyncio.sleep(0)
    assert not playing.done()
    may_close.set()
    with pytest.raises(asyncio.CancelledError):
        await playing
    assert log.closed == [1]


async def test_cancellation_closes_an_environment_that_the_engine_does_not_know_yet() -> None:
    made, closed = threading.Event(), threading.Event()

    class Made(Probe):
        def __init__(self, log: Log) -> None:
            super().__init__(log)
            made.set()

        async def aclose(self) -> None:
            await super().aclose()
            closed.set()

    log = Log()
    playing = asyncio.create_task(
        play_episode(specs(1)[0], lambda _: Made(log), ScriptedPolicy(["x"]), EpisodeLimits())
    )
    await asyncio.sleep(0)
    assert made.wait(WAIT)  # blocks the loop, so the environment exists before the engine knows of it
    playing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await playing
    assert await asyncio.to_thread(closed.wait, WAIT)
    assert log.closed == [1]


async def test_raise_stops_the_run_and_closes_the_others() -> None:
    log, started, may_close = Log(), asyncio.Semaphore(0), asyncio.Event()
    may_close.set()

    class LastBreaks(Waiting):
        async def astep(self, action: Message) -> StepResult:
            if len(log.made) < 4:
                return await super().astep(action)
            for _ in range(3):
                await asyncio.wait_for(self.started.acquire(), WAIT)
            raise ZeroDivisionError("in the last one")

    makers = iter([Waiting, Waiting, Waiting, LastBreaks])
    engine = RolloutEngine(
        lambda: next(makers)(log, started, may_close), ScriptedPolicy(["x"]), on_failure="raise", max_concurrency=4
    )
    with pytest.raises(EpisodeFailedError, match="failed: step: ZeroDivisionError: in the last one") as caught:
        await engine.run(iter(specs(4)))
    assert caught.value.episode.failure is not None
    assert "Traceback" in str(caught.value)
    assert log.closed == [1] * 4
