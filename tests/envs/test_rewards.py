"""Reward functions beside the environment's own reward: when they are called, and which rewards count."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import numpy as np
import pytest

from gymnast.envs import (
    EpisodeSpec,
    Message,
    OverlongPromptError,
    Rewards,
    RolloutEngine,
    ScriptedPolicy,
    Task,
    ToolEnv,
    episode_specs,
    per_episode,
)

from .rewarding import WAIT, Judges, Plays, never, play, rewards_of

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
        return [value / 10 for value in answer]

    async def by_hint(hint: list[str], missing: int = 7) -> list[float]:
        await asyncio.sleep(0)
        return [float(len(text)) * missing for text in hint]

    episodes = await play([{"answer": 1, "hint": "a"}, {"answer": 2, "hint": "bb"}], by_answer, by_hint)
    assert [episode.reward for episode in episodes] == [pytest.approx(8.1), pytest.approx(15.2)]
    assert episodes[1].reward_parts == {"environment": 1.0, "by_answer": 0.2, "by_hint": 14.0}


async def test_weights_and_not_applicable() -> None:
    def halves(completions: list[Any]) -> list[float | None]:
        return [0.5, None, 0.5]

    def wholes(completions: list[Any]) -> np.ndarray:
        return np.array([1.0, 2.0, 3.0])

    rows = [{"reward": 1.0}, {"reward": 2.0}, {"reward": 3.0}]
    episodes = await play(rows, halves, wholes, weights=[2.0, -1.0])
    assert [episode.reward for episode in episodes] == [1.0, 0.0, 1.0]
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
    assert [episode.reward for episode in episodes] == [3.0] * 4


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
    assert [episode.reward for episode in episodes] == [1.0] * 4


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
        return [float(value) for value in column]

    engine = RolloutEngine(Plays, ScriptedPolicy(backwards), rewards=Rewards([look]))
    specs = [EpisodeSpec(task=Task(id="t", row={"column": number}), group="t", member=number) for number in range(4)]
    episodes = await engine.run(specs)
    assert seen == [[0, 1, 2, 3]]
    assert [episode.reward for episode in episodes] == [1.0, 2.0, 3.0, 4.0]


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
    assert [episode.reward for episode in episodes] == [13.0, 13.0]
    assert list(episodes[0].reward_parts.items()) == [("environment", 1.0), ("whole", 10.0), ("judge", 1.0)]


# --- which rewards count ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("neighbour", [0.0, 1.0])
async def test_a_reward_does_not_depend_on_the_neighbours(neighbour: float) -> None:
    """A 0 of the environment means a wrong answer, whatever the rewards of other episodes are."""
    assert (await rewards_of([{"reward": 0.0}, {"reward": neighbour}], never))[0] == 0.0
    row = {"reward": 0.0}
    assert (await rewards_of([row, row], never, environment=Judges))[0] is None


async def test_an_environment_that_gives_no_rewards_leaves_them_to_the_functions() -> None:
    def first(completions: list[Any]) -> list[float | None]:
        return [0.0, *[None] * (len(completions) - 1)]

    rows = [{"reward": 0.0}, {"reward": 0.0}]
    episodes = await play(rows, never, first, environment=Judges)
    assert [episode.reward for episode in episodes] == [0.0, None]
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
    assert [episode.reward for episode in episodes] == [None, 2.0]
