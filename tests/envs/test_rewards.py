"""Reward functions beside the environment's own reward: when they are called, and what their failures lead to."""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import pytest

from gymnast.envs import (
    Calculator,
    ConfigurationError,
    Environment,
    Episode,
    EpisodeFailedError,
    EpisodeSpec,
    Message,
    OverlongPromptError,
    Rewards,
    RolloutEngine,
    ScriptedPolicy,
    StepResult,
    Task,
    ToolEnv,
    episode_specs,
    matches,
    per_episode,
    tool_call,
)

WAIT = 30.0


class Plays(Environment):
    """One step, whose reward is the row's."""

    async def areset(self, *, seed: int | None = None, options: Any = None) -> tuple[list[Message], dict]:
        await super().areset(seed=seed)
        self.row = self.task_of(options)
        return [{"role": "user", "content": "question"}], {}

    async def astep(self, action: Message) -> StepResult:
        if self.row.get("fails"):
            raise ZeroDivisionError("in the environment")
        messages: list[Message] = [{"role": "tool", "content": "3"}]
        return StepResult(messages, self.row.get("reward", 1.0), True, False, {})


class Judges(Plays):
    """Gives no rewards of its own."""

    gives_rewards = False


async def play(
    rows: Sequence[Mapping[str, Any]],
    *functions: Callable[..., Any],
    environment: type[Environment] = Plays,
    weights: Sequence[float] | None = None,
    timeout: float | None = WAIT,
    **options: Any,
) -> list[Episode]:
    """Play one group with one episode for each row."""
    engine = RolloutEngine(
        environment, ScriptedPolicy(["answer"]), rewards=Rewards(functions, weights, timeout=timeout), **options
    )
    return await engine.run(
        [EpisodeSpec(task=Task(id="t", row=row), group="t", member=member) for member, row in enumerate(rows)]
    )


async def rewards_of(
    rows: Sequence[Mapping[str, Any]], *functions: Callable[..., Any], **options: Any
) -> list[float | None]:
    return [each.reward for each in await play(rows, *functions, **options)]


# --- calling ----------------------------------------------------------------------------------------------------


async def test_functions_get_messages_and_columns() -> None:
    seen: dict[str, Any] = {}

    def all_of_it(**arguments: Any) -> list[float]:
        seen.update(arguments)
        return [0.0, 0.0]

    episodes = await play([{"answer": 1, "hint": "a"}, {"answer": 2}], all_of_it)
    completion = [{"role": "assistant", "content": "answer"}, {"role": "tool", "content": "3"}]
    assert seen == {
        "prompts": [[{"role": "user", "content": "question"}]] * 2,
        "completions": [completion] * 2,
        "completion_ids": [None, None],
        "episodes": episodes,
        "answer": [1, 2],
        "hint": ["a", None],
    }


async def test_functions_get_only_what_they_ask_for() -> None:
    def by_answer(completions: list[Any], answer: list[int]) -> list[float]:
        assert len(completions) == 2
        return [each / 10 for each in answer]

    async def by_hint(hint: list[str], missing: int = 7) -> list[float]:
        await asyncio.sleep(0)
        return [float(len(each)) * missing for each in hint]

    episodes = await play([{"answer": 1, "hint": "a"}, {"answer": 2, "hint": "bb"}], by_answer, by_hint)
    assert [each.reward for each in episodes] == [pytest.approx(8.1), pytest.approx(15.2)]
    assert episodes[1].reward_parts == {"environment": 1.0, "by_answer": 0.2, "by_hint": 14.0}


async def test_weights_and_not_applicable() -> None:
    def halves(completions: list[Any]) -> list[float | None]:
        return [0.5, None, 0.5]

    def wholes(completions: list[Any]) -> np.ndarray:
        return np.array([1.0, 2.0, 3.0])

    rows = [{"reward": 1.0}, {"reward": 2.0}, {"reward": 3.0}]
    episodes = await play(rows, halves, wholes, weights=[2.0, -1.0])
    assert [each.reward for each in episodes] == [1.0, 0.0, 1.0]
    assert episodes[1].reward_parts == {"environment": 2.0, "halves": None, "wholes": 2.0}


async def test_a_blocking_function_does_not_block_the_loop() -> None:
    free = threading.Event()

    def blocking(completions: list[Any]) -> list[float]:
        asyncio.run_coroutine_threadsafe(set_free(), loop).result(WAIT)  # the loop runs while the function waits
        assert free.is_set()
        return [1.0]

    async def set_free() -> None:
        free.set()

    loop = asyncio.get_running_loop()
    assert await rewards_of([{}], blocking) == [2.0]


async def test_functions_run_at_the_same_time_and_groups_do_not_wait_for_one_another() -> None:
    calls, all_there = 0, asyncio.Event()

    async def meet(completions: list[Any]) -> list[float]:
        nonlocal calls
        calls += 1
        if calls == 4:  # two functions, two groups
            all_there.set()
        await asyncio.wait_for(all_there.wait(), WAIT)
        return [1.0] * len(completions)

    async def one_more(completions: list[Any]) -> list[float]:
        return await meet(completions)

    engine = RolloutEngine(Plays, ScriptedPolicy(["answer"]), rewards=Rewards([meet, one_more]))
    episodes = await engine.run(episode_specs([{}, {}], group_size=2, seed=0))
    assert [each.reward for each in episodes] == [3.0] * 4


async def test_a_group_is_rewarded_while_others_play() -> None:
    rewarded = asyncio.Event()

    async def answer(messages: list[Message]) -> str:
        if messages[0].get("content") == "slow":
            await asyncio.wait_for(rewarded.wait(), WAIT)
        return "answer"

    def note(completions: list[Any]) -> list[float]:
        loop.call_soon_threadsafe(rewarded.set)
        return [1.0] * len(completions)

    loop = asyncio.get_running_loop()
    engine = RolloutEngine(ToolEnv, ScriptedPolicy(answer), rewards=Rewards([note]))
    episodes = await engine.run(episode_specs([{"prompt": "fast"}, {"prompt": "slow"}], group_size=2, seed=0))
    assert [each.reward for each in episodes] == [1.0] * 4


async def test_a_function_of_a_group_sees_it_in_order_of_the_specs() -> None:
    done = [asyncio.Event() for _ in range(5)]
    done[4].set()
    at = iter(range(4))

    async def backwards(messages: list[Message]) -> str:
        place = next(at)
        await asyncio.wait_for(done[place + 1].wait(), WAIT)
        done[place].set()
        return "answer"

    seen: list[list[int]] = []

    def look(column: list[int]) -> list[float]:
        seen.append(column)
        return [float(each) for each in column]

    engine = RolloutEngine(Plays, ScriptedPolicy(backwards), rewards=Rewards([look]))
    specs = [EpisodeSpec(task=Task(id="t", row={"column": each}), group="t", member=each) for each in range(4)]
    episodes = await engine.run(specs)
    assert seen == [[0, 1, 2, 3]]
    assert [each.reward for each in episodes] == [1.0, 2.0, 3.0, 4.0]


async def test_a_function_may_take_each_episode_as_soon_as_it_is_over() -> None:
    judged, sizes = asyncio.Event(), []

    async def answer(messages: list[Message]) -> str:
        if next(at) == 1:
            await asyncio.wait_for(judged.wait(), WAIT)  # the group is not complete, and its first episode is judged
        return "answer"

    @per_episode
    async def judge(completions: list[Any]) -> list[float]:
        sizes.append(len(completions))
        judged.set()
        return [1.0]

    def whole(completions: list[Any]) -> list[float]:
        sizes.append(len(completions))
        return [10.0] * len(completions)

    at = iter(range(2))
    engine = RolloutEngine(Plays, ScriptedPolicy(answer), rewards=Rewards([whole, judge], [1.0, 2.0]))
    episodes = await engine.run(episode_specs([{}], group_size=2, seed=0))
    assert sizes == [1, 1, 2]
    assert [each.reward for each in episodes] == [13.0, 13.0]
    assert list(episodes[0].reward_parts.items()) == [("environment", 1.0), ("whole", 10.0), ("judge", 1.0)]


# --- failures ---------------------------------------------------------------------------------------------------


async def test_failed_episodes_are_not_rewarded() -> None:
    def count(completions: list[Any]) -> list[float]:
        return [float(len(completions))] * len(completions)

    def never(completions: list[Any]) -> list[float]:
        raise AssertionError("called without episodes")

    failed, *others = await play([{"fails": True}, {}, {}], count)
    assert (failed.reward, failed.reward_parts) == (None, {})
    assert [each.reward for each in others] == [3.0, 3.0]
    assert await rewards_of([{"fails": True}, {}], count, on_failure="zero") == [0.0, 2.0]
    assert str((await play([{"fails": True}], never))[0].failure) == "step: ZeroDivisionError: in the environment"


async def test_a_function_that_raises_fails_its_episodes_only() -> None:
    def broken(completions: list[Any], answer: list[int]) -> list[float]:
        return [1 / each for each in answer]

    engine = RolloutEngine(Plays, ScriptedPolicy(["answer"]), rewards=Rewards([broken]))
    episodes = await engine.run(episode_specs([{"answer": 0}, {"answer": 1}], group_size=2, seed=0))
    assert [each.reward for each in episodes] == [None, None, 2.0, 2.0]
    assert [each.stop.is_failure for each in episodes] == [True, True, False, False]
    assert episodes[0].failure is not None
    assert episodes[0].failure.stage == "reward"
    assert str(episodes[0].failure) == "reward: ZeroDivisionError: reward function 'broken': division by zero"
    assert "1 / each" in episodes[0].failure.traceback
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
    assert [(each.reward, each.attempts, len(each.retried)) for each in episodes] == [(2.0, 1, 1)] * 2
    assert "HTTP 500" in str(episodes[0].retried[0])
    [episode] = await play([{}], always, on_failure="retry(2)")
    assert (episode.reward, episode.stop.is_failure, len(episode.retried)) == (None, True, 2)


async def test_the_failure_policy_covers_functions() -> None:
    def broken(completions: list[Any]) -> list[float]:
        raise ZeroDivisionError("in a reward")

    assert await rewards_of([{}, {}], broken, on_failure="zero") == [0.0, 0.0]
    with pytest.raises(EpisodeFailedError, match="reward: ZeroDivisionError: reward function 'broken': in a reward"):
        await play([{}, {}], broken, on_failure="raise")


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
        episode_specs([{}], group_size=3, seed=0), lambda each: seen.append((each.spec.member, each.reward))
    )
    assert seen == [(0, 4.0), (1, 4.0), (2, 4.0)]


async def test_a_configuration_error_of_a_function_stops_the_run() -> None:
    def wrong(completions: list[Any]) -> list[float]:
        raise ConfigurationError("no key for the judge")

    with pytest.raises(ConfigurationError, match="no key for the judge"):
        await play([{}, {}], wrong)


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


# --- which rewards count ----------------------------------------------------------------------------------------


def never(completions: list[Any]) -> list[None]:
    return [None] * len(completions)


@pytest.mark.parametrize("neighbour", [0.0, 1.0])
async def test_a_reward_does_not_depend_on_the_neighbours(neighbour: float) -> None:
    """An environment gives 0 for a wrong answer; the rewards of other episodes do not change that."""
    assert (await rewards_of([{"reward": 0.0}, {"reward": neighbour}], never))[0] == 0.0
    row = {"reward": 0.0}
    assert (await rewards_of([row, row], never, environment=Judges))[0] is None


async def test_an_environment_that_gives_no_rewards_leaves_them_to_the_functions() -> None:
    def first(completions: list[Any]) -> list[float | None]:
        return [0.0, *[None] * (len(completions) - 1)]

    rows = [{"reward": 0.0}, {"reward": 0.0}]
    episodes = await play(rows, never, first, environment=Judges)
    assert [each.reward for each in episodes] == [0.0, None]
    assert episodes[1].reward_parts == {"environment": None, "never": None, "first": None}
    assert not episodes[1].stop.is_failure
    assert await rewards_of(rows, environment=Judges) == [None, None]


async def test_an_environment_that_gives_no_rewards_must_give_none() -> None:
    [episode] = await play([{"reward": 0.5}], environment=Judges)
    assert str(episode.failure) == (
        "step: ValueError: Judges.gives_rewards is False, but its step gave 0.5; set it to True"
    )


async def test_a_plain_tool_env_gives_no_rewards_and_a_subclass_does() -> None:
    class Mine(ToolEnv):
        pass

    assert await rewards_of([{"prompt": "go"}], environment=ToolEnv) == [None]
    assert await rewards_of([{"prompt": "go"}], environment=Mine) == [0.0]


async def test_an_episode_whose_prompt_was_too_long_is_not_rewarded() -> None:
    class Full(ScriptedPolicy):
        def begin(self, spec: EpisodeSpec, messages: Any, tools: Any) -> Any:
            if spec.member == 0:
                raise OverlongPromptError("the prompt is too long")
            return super().begin(spec, messages, tools)

    def size(completions: list[Any]) -> list[float]:
        return [float(len(completions))] * len(completions)

    engine = RolloutEngine(Plays, Full(["answer"]), rewards=Rewards([size]))
    episodes = await engine.run(episode_specs([{}], group_size=2, seed=0))
    assert [each.reward for each in episodes] == [None, 2.0]


# --- checking beforehand ----------------------------------------------------------------------------------------


def one(completions: list[Any]) -> list[float]:
    return [1.0] * len(completions)


def by_answer(completions: list[Any], answer: list[int], missing: int = 0) -> list[float]:
    return [float(each) for each in answer]


def takes_all(**columns: Any) -> list[float]:
    return [1.0]


def takes_nothing() -> list[float]:
    return [1.0]


def takes_other(thing: int = 3) -> list[float]:
    return [1.0]


def positional(completions: list[Any], /) -> list[float]:
    return [1.0]


def test_arity_is_checked_by_columns() -> None:
    Rewards([one, by_answer, takes_all, matches("task.answer")]).check_columns(["question", "answer"])
    with pytest.raises(ValueError, match=r"reward function 'by_answer' requires \['answer'\], but is called with"):
        Rewards([by_answer]).check_columns(["question"])
    with pytest.raises(ValueError, match=r"reward function 'positional' requires \['completions'\]"):
        Rewards([positional]).check_columns([])
    for function in (takes_nothing, takes_other):
        with pytest.raises(ValueError, match=f"reward function '{function.__name__}' takes none of"):
            Rewards([function]).check_columns(["answer"])


def test_names_and_weights_are_checked() -> None:
    def environment(completions: list[Any]) -> list[float]:
        return [1.0]

    with pytest.raises(ValueError, match=r"distinct names, none of them 'environment', got \['one', 'one'\]"):
        Rewards([one, one])
    with pytest.raises(ValueError, match=r"got \['partial', 'partial'\]; set `__name__` of a function"):
        Rewards([partial(one), partial(one)])
    with pytest.raises(ValueError, match=r"distinct names, none of them 'environment', got \['environment'\]"):
        Rewards([environment])
    with pytest.raises(ValueError, match="got 2 reward functions and 1 reward_weights"):
        Rewards([one, by_answer], [1.0])
    with pytest.raises(ValueError, match="reward_weights must be finite"):
        Rewards([one], [math.nan])
    with pytest.raises(ValueError, match="reward_timeout must be positive or None, got 0"):
        Rewards([one], timeout=0)
    with pytest.raises(TypeError, match="a reward function must be callable, got str"):
        Rewards(["one"])  # type: ignore[list-item]


# --- JMESPath ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("expression", "value", "reward"),
    [
        ("completion[?role=='tool'] | length(@) > `0`", True, 1.0),
        ("completion[?role=='user']", True, 0.0),
        ("completion[-1].content", "3", 1.0),
        ("completion[-1].content", "4", 0.0),
        ("prompt[0].content", "question", 1.0),
        ("task.answer", 5, 1.0),
        ("stop", "env_terminated", 1.0),
        ("nothing.at.all", True, 0.0),
        ("nothing.at.all", None, 1.0),
    ],
)
async def test_matches(expression: str, value: Any, reward: float) -> None:
    row = {"answer": 5, "reward": 0.0}
    assert await rewards_of([row], matches(expression, value=value)) == [reward]


async def test_matches_has_a_name_and_clear_errors() -> None:
    [episode] = await play([{"reward": 0.0}], matches("stop", name="stopped"), matches("completion"))
    assert episode.reward_parts == {"environment": 0.0, "stopped": 1.0, "matches(completion)": 1.0}
    for wrong in ("completion[", "", "@@"):
        with pytest.raises(ValueError, match="not a JMESPath expression: "):
            matches(wrong)
    [episode] = await play([{}], matches("length(nothing)", name="n"))
    assert "reward function 'n': the JMESPath expression 'length(nothing)' does not fit the episode: " in str(
        episode.failure
    )


# --- together with the engine ---------------------------------------------------------------------------------------


def test_play_adds_them_too() -> None:
    def short(completions: list[list[Mapping[str, Any]]], answer: list[int]) -> list[float]:
        return [answer[index] / len(completion) for index, completion in enumerate(completions)]

    rows = [{"question": "What is 1 plus 1?", "answer": 2}, {"question": "What is 2 plus 2?", "answer": 4}]
    rewards = Rewards([short, matches("completion[-1].content", value="right", name="right")])
    policy = ScriptedPolicy([tool_call("final_answer", answer=2)])
    episodes = RolloutEngine(Calculator(), policy, rewards=rewards).play(rows)
    assert [each.reward for each in episodes] == [3.0, 2.0]
    assert episodes[0].reward_parts == {"environment": 1.0, "short": 1.0, "right": 1.0}
