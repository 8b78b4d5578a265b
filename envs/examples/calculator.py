"""Calculator: arithmetic questions, answered with tools. The environment of the first example."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ..core import Message
from ..tool_env.tool_env import ToolEnv
from ..tools.mark import tool

OPERATIONS = {"plus": "add", "minus": "subtract", "times": "multiply"}


class Calculator(ToolEnv):
    """Questions such as "What is 37 times 4?"; the reward is 1 for the right final answer, else 0.

    A row has `question` and `answer`; `reset` without a task draws a random one.
    """

    expected: int = 0

    def sample_task(self) -> Mapping[str, Any]:
        return self.tasks[int(self.np_random.integers(len(self.tasks)))] if self.tasks else random_task(self.np_random)

    def reset_task(self, task: Mapping[str, Any]) -> list[Message]:
        self.expected = task["answer"]
        self.metrics["success"] = 0.0
        return [{"role": "user", "content": task["question"]}]

    @tool
    def add(self, a: int, b: int) -> int:
        """Add two integers.

        Args:
            a: The first integer.
            b: The second integer.
        """
        return a + b

    @tool
    def subtract(self, a: int, b: int) -> int:
        """Subtract the second integer from the first.

        Args:
            a: The first integer.
            b: The second integer.
        """
        return a - b

    @tool
    def multiply(self, a: int, b: int) -> int:
        """Multiply two integers.

        Args:
            a: The first integer.
            b: The second integer.
        """
        return a * b

    @tool(final=True)
    def final_answer(self, answer: int) -> str:
        """Give the final answer, which ends the task.

        Args:
            answer: The answer.
        """
        self.reward = self.metrics["success"] = float(answer == self.expected)
        return "right" if self.reward else "wrong"


def random_task(rng: np.random.Generator) -> dict[str, Any]:
    """Return a question about two random integers of two digits, with its answer and the call that finds it."""
    a, b = (int(number) for number in rng.integers(10, 100, size=2))
    word = list(OPERATIONS)[int(rng.integers(len(OPERATIONS)))]
    answer = {"plus": a + b, "minus": a - b, "times": a * b}[word]
    return {"question": f"What is {a} {word} {b}?", "answer": answer, "operation": OPERATIONS[word], "a": a, "b": b}


def random_tasks(count: int, seed: int) -> list[dict[str, Any]]:
    """Return `count` random tasks; the same for the same seed."""
    rng = np.random.default_rng(seed)
    return [random_task(rng) for _ in range(count)]
