"""Reward functions that raise, hang or return wrong results: which episodes fail, and what ends the run."""

from __future__ import annotations

import asyncio
import math
import threading
from typing import Any

import pytest

from gymnast.envs import (
    ConfigurationError,
    EpisodeFailedError,
    EpisodeSpec,
    Message,
    Rewards,
    RolloutEngine,
    ScriptedPolicy,
    StepResult,
    episode_specs,
    per_episode,
)

from .rewarding import WAIT, Plays, never, play, rewards_of


async def test_failed_episodes_are_not_rewarded() -> None:
    def count(completions: list[Any]) -> list[float]:
        return [float(len(completions))] * len(completions)

    def never(completions: list[Any]) -> list[float]:
        raise AssertionError("called without episodes")

    failed, *others = await play([{"fails": True}, {}, {}], count)
    assert (failed.reward, failed.reward_parts) == (None, {})
    assert [other.reward for other in others] == [3.0, 3.0]
    assert await rewards_of([{"fails": True}, {}], count, on_failure="zero") == [0.0, 2.0]
    assert str((await play([{"fails": True}], never))[0].failure) == "step: ZeroDivisionError: in the environment"


async def test_a_function_that_raises_fails_its_episodes_only() -> None:
    def broken(completions: list[Any], answer: list[int]) -> list[float]:
        return [1 / value for value in answer]

    engine = RolloutEngine(Plays, ScriptedPolicy(["answer"]), rewards=Rewards([broken]))
    episodes = await engine.run(episode_specs([{"answer": 0}, {"answer": 1}], group_size=2, seed=0))
    assert [episode.reward for episode in episodes] == [None, None, 2.0, 2.0]
    assert [episode.stop.is_failure for episode in episodes] == [True, True, False, False]
    assert episodes[0].failure is not None
    assert episodes[0].failure.stage == "reward"
    assert str(episodes[0].failure) == "reward: ZeroDivisionError: reward function 'broken': division by zero"
    assert "1 / value" in episodes[0].failure.traceback
    assert (episodes[0].reward_parts, len(episodes[0].turns)) == ({}, 1)


@pytest.mark.parametrize("error", [SystemExit(2), KeyboardInterrupt("k"), asyncio.CancelledError("c")])
@pytest.mark.parametrize("asynchronous", [False, True])
async def test_no_error_of_a_function_ends_the_run(error: BaseException, asynchronous: bool) -> None:
    def broken(completions: list[Any]) -> list[float]:
        raise error

    async def broken_later(completions: list[Any]) -> list[float]:
        raise error

    [episode] = await play([{}], broken_later if asynchronous else broken)
    assert episode.failure is not None
    assert (episode.failure.stage, episode.failure.type) == ("reward", type(error).__name__)


async def test_a_function_of_one_episode_fails_that_episode_only() -> None:
    @per_episode
    def broken(answer: list[int]) -> list[float]:
        return [1 / answer[0]]

    def size(completions: list[Any]) -> list[float]:
        return [10.0 * len(completions)] * len(completions)

    assert await rewards_of([{"answer": 0}, {"answer": 1}, {"answer": 2}], broken, size) == [None, 22.0, 21.5]


@pytest.mark.parametrize("asynchronous", [False, True])
async def test_a_function_that_hangs_is_a_failure(asynchronous: bool) -> None:
    release = threading.Event()

    def hangs(completions: list[Any]) -> list[float]:
        release.wait(WAIT)
        return [1.0]

    async def hangs_later(completions: list[Any]) -> list[float]:
        await asyncio.Event().wait()
        return [1.0]

    function = hangs_later if asynchronous else hangs
    [episode] = await play([{}], function, timeout=0.05)
    release.set()
    name = function.__name__
    assert str(episode.failure) == (
        f"reward: TimeoutError: reward function {name!r}: did not finish within reward_timeout=0.05 s"
    )


async def test_a_retry_calls_the_function_again_and_plays_nothing_again() -> None:
    calls = 0

    def second_time(completions: list[Any]) -> list[float]:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise ConnectionError("HTTP 500")
        return [1.0] * len(completions)

    def always(completions: list[Any]) -> list[float]:
        raise ConnectionError("HTTP 500")

    episodes = await play([{}, {}], second_time, on_failure="retry(2)")
    assert [(episode.reward, episode.attempts, len(episode.retried)) for episode in episodes] == [(2.0, 1, 1)] * 2
    assert "HTTP 500" in str(episodes[0].retried[0])
    [episode] = await play([{}], always, on_failure="retry(2)")
    assert (episode.reward, episode.stop.is_failure, len(episode.retried)) == (None, True, 2)


async def test_the_failure_policy_covers_functions() -> None:
    def broken(completions: list[Any]) -> list[float]:
        raise ZeroDivisionError("in a reward")

    def wrong(completions: list[Any]) -> list[float]:
        raise ConfigurationError("no key for the judge")

    assert await rewards_of([{}, {}], broken, on_failure="zero") == [0.0, 0.0]
    with pytest.raises(EpisodeFailedError, match="reward: ZeroDivisionError: reward function 'broken': in a reward"):
        await play([{}, {}], broken, on_failure="raise")
    with pytest.raises(ConfigurationError, match="no key for the judge"):  # whatever the policy is
        await play([{}, {}], wrong)


async def test_a_failure_that_stops_the_run_does_not_wait_for_the_group() -> None:
    async def answer(messages: list[Message]) -> str:
        await asyncio.Event().wait()
        return ""

    class FirstFails(ScriptedPolicy):
        def begin(self, spec: EpisodeSpec, messages: Any, tools: Any) -> Any:
            if spec.member == 0:
                raise ZeroDivisionError("in the first one")
            return super().begin(spec, messages, tools)

    engine = RolloutEngine(Plays, FirstFails(answer), rewards=Rewards([never]), on_failure="raise")
    with pytest.raises(EpisodeFailedError, match="in the first one"):
        await asyncio.wait_for(engine.run(episode_specs([{}], group_size=2, seed=0)), WAIT)


async def test_an_episode_is_reported_when_its_reward_is_known() -> None:
    seen: list[tuple[int, float | None]] = []

    def size(completions: list[Any]) -> list[float]:
        return [float(len(completions))] * len(completions)

    engine = RolloutEngine(Plays, ScriptedPolicy(["answer"]), rewards=Rewards([size]))
    await engine.run(
        episode_specs([{}], group_size=3, seed=0), lambda episode: seen.append((episode.spec.member, episode.reward))
    )
    assert seen == [(0, 4.0), (1, 4.0), (2, 4.0)]


async def test_cancelling_a_run_cancels_its_functions() -> None:
    started, cancelled = asyncio.Event(), []

    async def waits(completions: list[Any]) -> list[float]:
        started.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.append(True)
            raise
        return []

    playing = asyncio.create_task(play([{}], waits))
    await asyncio.wait_for(started.wait(), WAIT)
    playing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await playing
    assert cancelled == [True]


async def test_the_first_function_in_order_names_the_failure() -> None:
    second_failed = asyncio.Event()

    async def first(completions: list[Any]) -> list[float]:
        await asyncio.wait_for(second_failed.wait(), WAIT)
        raise ZeroDivisionError("first")

    async def second(completions: list[Any]) -> list[float]:
        second_failed.set()
        raise ZeroDivisionError("second")

    [episode] = await play([{}], first, second)
    assert "'first'" in str(episode.failure)


@pytest.mark.parametrize(
    ("result", "message"),
    [
        ([math.nan, 1.0], "returned nan for episode 0 of 2; return None where the reward does not apply"),
        ([1.0, math.inf], "returned inf for episode 1 of 2"),
        ([1.0], "returned 1 rewards for 2 episodes"),
        ([1.0, 1.0, 1.0], "returned 3 rewards for 2 episodes"),
        (None, "must return a list of 2 numbers or None, got None"),
        (1.0, "must return a list of 2 numbers or None, got 1.0"),
        (["good", "bad"], r"must return a list of 2 numbers or None, got \['good', 'bad'\]"),
        (["1", "2"], r"must return a list of 2 numbers or None, got \['1', '2'\]"),
        ("12", "must return a list of 2 numbers or None, got '12'"),
        ({1: 0.5, 2: 0.5}, "must return a list of 2 numbers or None, got {1: 0.5, 2: 0.5}"),
        ({1.0, 2.0}, "must return a list of 2 numbers or None, got {1.0, 2.0}"),
    ],
)
async def test_a_wrong_result_is_a_clear_failure(result: Any, message: str) -> None:
    def wrong(completions: list[Any]) -> Any:
        return result

    for episode in await play([{}, {}], wrong):
        with pytest.raises(ValueError, match=f"reward function 'wrong': {message}"):
            raise ValueError(str(episode.failure))


async def test_an_episode_fails_if_its_rewards_add_up_beyond_float32() -> None:
    def judge(episodes: list[Any]) -> list[float]:
        return [episode.spec.task.row["judged"] for episode in episodes]

    rows = [{"judged": item, "reward": 2.0} for item in (1e37, 1e38, 1e308)]
    good, *beyond = await play(rows, judge, weights=[10.0])
    assert good.reward == 1e38
    assert [episode.reward for episode in beyond] == [None, None]
    assert str(beyond[0].failure) == (
        "reward: ValueError: the reward 1 * 2 (environment) + 10 * 1e+38 (judge) is out of the range of float32 "
        "(3.4e+38)"
    )

    class TwoTurns(Plays):
        async def astep(self, action: Message) -> StepResult:
            result = await super().astep(action)
            is_last, self.has_begun = self.has_begun, True
            return result._replace(terminated=is_last)

        has_begun = False

    engine = RolloutEngine(TwoTurns, ScriptedPolicy(["one", "two"]))
    [episode] = await engine.run(episode_specs([{"reward": 3e38}], group_size=1, seed=0))
    assert "the reward 1 * 6e+38 (environment) is out of" in str(episode.failure)
