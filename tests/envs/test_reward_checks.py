"""Reward functions are checked before anything is played; `matches` makes one from a JMESPath expression."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import pytest

from gymnast.envs import Rewards, matches

from .rewarding import play, rewards_of

# --- checking beforehand ----------------------------------------------------------------------------------------


def one(completions: list[Any]) -> list[float]:
    return [1.0] * len(completions)


def by_answer(completions: list[Any], answer: list[int], missing: int = 0) -> list[float]:
    return [float(value) for value in answer]


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

    with pytest.raises(ValueError, match=r"got \['partial', 'partial'\]; set `__name__` of a function"):
        Rewards([partial(one), partial(one)])
    with pytest.raises(ValueError, match=r"distinct names, none of them 'environment', got \['environment'\]"):
        Rewards([environment])
    with pytest.raises(ValueError, match="reward_weights must be finite"):
        Rewards([one], [math.nan])
    with pytest.raises(ValueError, match="reward_timeout must be positive or None, got 0"):
        Rewards([one], timeout=0)


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
