"""Reward functions beside the environment's own reward."""

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
    Episode,
    EpisodeSpec,
    Rewards,
    RolloutEngine,
    ScriptedPolicy,
    StopReason,
    Task,
    Turn,
    matches,
    tool_call,
)

WAIT = 30.0


def episode(reward: float = 1.0, stop: StopReason = StopReason.FINAL_ANSWER, **row: Any) -> Episode:
    record = Episode(
        spec=EpisodeSpec(task=Task(id="t", row=row), group="t"),
        prompt=[{"role": "user", "content": "question"}],
        turns=[
            Turn(
                message={"role": "assistant", "content": "answer"},
                observation=[{"role": "tool", "content": "3"}],
                reward=reward,
            )
        ],
        stop=stop,
    )
    if not stop.is_failure:
        record.reward = reward
        record.reward_parts["environment"] = reward
    return record


def score(
    episodes: Sequence[Episode], *functions: Callable[..., Any], weights: Sequence[float] | None = None
) -> list[float | None]:
    asyncio.run(Rewards(functions, weights).score(episodes))
    return [each.reward for each in episodes]


# --- calling ----------------------------------------------------------------------------------------------------


def test_functions_get_messages_and_columns() -> None:
    seen: dict[str, Any] = {}

    def all_of_it(**arguments: Any) -> list[float]:
        seen.update(arguments)
        return [0.0, 0.0]

    episodes = [episode(answer=1, hint="a"), episode(answer=2)]
    score(episodes, all_of_it)
    completion = [{"role": "assistant", "content": "answer"}, {"role": "tool", "content": "3"}]
    assert seen == {
        "prompts": [[{"role": "user", "content": "question"}]] * 2,
        "completions": [completion] * 2,
        "completion_ids": [None, None],
        "episodes": episodes,
        "answer": [1, 2],
        "hint": ["a", None],
    }


def test_functions_get_only_what_they_ask_for() -> None:
    def by_answer(completions: list[Any], answer: list[int]) -> list[float]:
        assert len(completions) == 2
        return [each / 10 for each in answer]

    async def by_hint(hint: list[str], missing: int = 7) -> list[float]:
        await asyncio.sleep(0)
        return [float(len(each)) * missing for each in hint]

    episodes = [episode(answer=1, hint="a"), episode(answer=2, hint="bb")]
    assert score(episodes, by_answer, by_hint) == [pytest.approx(8.1), pytest.approx(15.2)]
    assert episodes[1].reward_parts == {"environment": 1.0, "by_answer": 0.2, "by_hint": 14.0}


def test_weights_and_not_applicable() -> None:
    def halves(completions: list[Any]) -> list[float | None]:
        return [0.5, None, 0.5]

    def wholes(completions: list[Any]) -> np.ndarray:
        return np.array([1.0, 2.0, 3.0])

    episodes = [episode(1.0), episode(2.0), episode(3.0)]
    assert score(episodes, halves, wholes, weights=[2.0, -1.0]) == [1.0, 0.0, 1.0]
    assert episodes[1].reward_parts == {"environment": 2.0, "halves": None, "wholes": 2.0}


async def test_a_blocking_function_does_not_block_the_loop() -> None:
    free = threading.Event()

    def blocking(completions: list[Any]) -> list[float]:
        assert free.wait(WAIT)
        return [1.0]

    scoring = asyncio.create_task(Rewards([blocking]).score([episode()]))
    asyncio.get_running_loop().call_soon(free.set)  # runs only while the function waits elsewhere
    await scoring


def test_failed_episodes_are_not_scored() -> None:
    def count(completions: list[Any]) -> list[float]:
        return [float(len(completions))] * len(completions)

    def never(completions: list[Any]) -> list[float]:
        raise AssertionError("called without episodes")

    failed, zeroed = episode(stop=StopReason.FAILED), episode(stop=StopReason.FAILED)
    zeroed.reward = 0.0  # as on_failure="zero" leaves it
    assert score([failed, episode(), zeroed, episode()], count) == [None, 3.0, 0.0, 3.0]
    assert failed.reward_parts == {}
    assert score([failed], never) == [None]


def test_an_episode_to_which_no_function_applies_has_no_reward() -> None:
    def never(completions: list[Any]) -> list[None]:
        return [None] * len(completions)

    def first(completions: list[Any]) -> list[float | None]:
        return [0.0, *[None] * (len(completions) - 1)]

    assert score([episode(0.0), episode(0.0)], never) == [None, None]
    assert score([episode(0.0), episode(0.0)], never, first) == [0.0, None]
    assert score([episode(0.0), episode(0.0)]) == [0.0, 0.0]


def test_a_zero_of_an_environment_that_rewards_is_a_reward() -> None:
    def never(completions: list[Any]) -> list[None]:
        return [None] * len(completions)

    # Dropping the wrong answers and keeping the right ones would bias the group.
    assert score([episode(0.0), episode(1.0)], never) == [0.0, 1.0]


def test_an_episode_without_a_reward_is_not_scored() -> None:
    overlong = episode(stop=StopReason.CONTEXT_OVERFLOW)
    overlong.reward, overlong.turns = None, []
    assert score([overlong, episode()], lambda completions: [1.0] * len(completions)) == [None, 2.0]


def test_an_exception_of_a_function_is_not_hidden() -> None:
    def broken(completions: list[Any]) -> list[float]:
        raise ZeroDivisionError("in a reward")

    with pytest.raises(ZeroDivisionError, match="in a reward"):
        score([episode()], broken)


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
    ],
)
def test_a_wrong_result_is_a_clear_error(result: Any, message: str) -> None:
    def wrong(completions: list[Any]) -> Any:
        return result

    with pytest.raises(ValueError, match=f"reward function 'wrong' {message}"):
        score([episode(), episode()], wrong)


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
    with pytest.raises(ValueError, match=r"reward function 'by_answer' requires \['answer'\], but what it is called"):
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
        ("stop", "final_answer", 1.0),
        ("nothing.at.all", True, 0.0),
        ("nothing.at.all", None, 1.0),
    ],
)
def test_matches(expression: str, value: Any, reward: float) -> None:
    assert score([episode(0.0, answer=5)], matches(expression, value=value)) == [reward]


def test_matches_has_a_name_and_clear_errors() -> None:
    episodes = [episode(0.0)]
    score(episodes, matches("stop", name="stopped"), matches("completion"))
    assert episodes[0].reward_parts == {"environment": 0.0, "stopped": 1.0, "matches(completion)": 1.0}
    for wrong in ("completion[", "", "@@"):
        with pytest.raises(ValueError, match="not a JMESPath expression: "):
            matches(wrong)
    with pytest.raises(ValueError, match=r"expression 'length\(nothing\)' does not fit the episode: "):
        score([episode()], matches("length(nothing)"))


# --- together with the engine ---------------------------------------------------------------------------------------


def test_episodes_of_the_engine_are_scored() -> None:
    def short(completions: list[list[Mapping[str, Any]]], answer: list[int]) -> list[float]:
        return [answer[index] / len(completion) for index, completion in enumerate(completions)]

    rows = [{"question": "What is 1 plus 1?", "answer": 2}, {"question": "What is 2 plus 2?", "answer": 4}]
    episodes = RolloutEngine(Calculator(), ScriptedPolicy([tool_call("final_answer", answer=2)])).play(rows)
    assert score(episodes, short, matches("completion[-1].content", value="right", name="right")) == [3.0, 2.0]
    assert episodes[0].reward_parts == {"environment": 1.0, "short": 1.0, "right": 1.0}
