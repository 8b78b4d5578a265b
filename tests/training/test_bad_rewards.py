"""Reward functions with a wrong signature or wrong results."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gymnast.envs import ToolEnv, tool

from .buttons import make_trainer


def test_max_rl_names_the_task_of_a_negative_reward(tmp_path: Path) -> None:
    def negative(completions: Any) -> list[float]:
        return [-2.0] * len(completions)

    with pytest.raises(
        ValueError, match=r"'max_rl' divides by the mean reward, .*: train-\d@0\[\d\] has -[12]; change"
    ):
        make_trainer(tmp_path, reward_funcs=negative, advantage_estimator="max_rl").train()


def test_methods_that_are_documented_as_tools_and_lack_the_mark_are_named(tmp_path: Path) -> None:
    class OfTRL(ToolEnv):
        def lookup(self, word: str) -> str:
            """Look a word up.

            Args:
                word: The word.
            """
            return word

        def undocumented(self, word: str) -> str:
            return word

        def _helper(self, word: str) -> str:
            """Help.

            Args:
                word: The word.
            """
            return word

    class Talks(OfTRL):
        def reply(self, message: Any) -> Any:
            return None

    class Grades(OfTRL):
        def grade(self, stop: Any) -> float:
            return 0.0

    class Marked(OfTRL):
        @tool(final=True)
        def submit(self) -> str:
            """Submit."""
            return ""

    rows = [{"prompt": "Hi."}]

    def ones(completions: Any) -> list[float]:
        return [1.0] * len(completions)

    with pytest.warns(
        UserWarning, match=r"OfTRL has no tools, but lookup could be: mark each tool with @tool"
    ) as found:
        make_trainer(tmp_path, environment=OfTRL, rows=rows, reward_funcs=ones)
    assert len(found) == 1
    for silent in (Talks, Grades, Marked):
        make_trainer(tmp_path, environment=silent, rows=rows, reward_funcs=ones)


def test_an_environment_in_which_nothing_can_reward_warns(tmp_path: Path) -> None:
    class Forgotten(ToolEnv):
        def lookup(self, word: str) -> str:  # no @tool
            return word

    with pytest.warns(UserWarning, match=r"Forgotten has no tools and no reply\(\).*mark its methods with @tool"):
        make_trainer(tmp_path, environment=Forgotten(), rows=[{"prompt": "Hi."}])
    # With a reward function, plain answers can be rewarded.
    make_trainer(
        tmp_path,
        environment=Forgotten(),
        rows=[{"prompt": "Hi."}],
        reward_funcs=lambda completions: [1.0] * len(completions),
    )
