"""ReasoningGymEnv: the tasks of reasoning-gym, scored by its own scorers."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

from ..core import ConfigurationError, Message, text_of
from ..extras import needs_extra
from ..tool_env.tool_env import ToolEnv

INSTRUCTIONS = "Write the final answer, and nothing else, between <answer> and </answer>."


class ReasoningGymEnv(ToolEnv):
    """One question, one answer: a data set of reasoning-gym as rows and as the environment that scores them.

        environment = ReasoningGymEnv(reasoning_gym.create_dataset("chain_sum", size=1000, seed=1))
        trainer = GRPOTrainer(environment=environment, train_dataset=environment.rows, ...)

    The reward is the score of the data set for the last `<answer>` of the message, from 0 to 1. Without one, it is the
    score of no answer. The metric `answered` is 1 if there was one.
    """

    def __init__(self, dataset: Any, *, instructions: str = INSTRUCTIONS, **options: Any) -> None:
        """Make the environment.

        Args:
            dataset: What `reasoning_gym.create_dataset` returned, with a seed: all copies share it.
            instructions: The text after each question.
            options: The options of `ToolEnv`.

        Raises:
            MissingExtraError: reasoning-gym is not installed.
        """
        with needs_extra("reasoning_gym", "ReasoningGymEnv"):
            self._extract = importlib.import_module("reasoning_gym.utils").extract_answer
        self._dataset = dataset
        self._instructions = instructions
        self._entry: dict[str, Any] = {}
        super().__init__(**options)

    @property
    def rows(self) -> list[dict[str, Any]]:
        """A row for each task: its `index` in the data set, and its `question` to read."""
        return [{"index": index, "question": self._dataset[index]["question"]} for index in range(len(self._dataset))]

    def sample_task(self) -> Mapping[str, Any]:
        return super().sample_task() if self.tasks else {"index": int(self.np_random.integers(len(self._dataset)))}

    def reset_task(self, task: Mapping[str, Any]) -> list[Message]:
        self._entry = self._dataset[int(task["index"])]
        if task.get("question", self._entry["question"]) != self._entry["question"]:
            raise ConfigurationError(
                f"row {task['index']} has another question than the data set: both need the same name, size and seed"
            )
        self.metrics["answered"] = 0.0
        return [{"role": "user", "content": f"{self._entry['question']}\n\n{self._instructions}"}]

    def reply(self, message: Message) -> None:
        answer = self._extract(text_of(message))
        self.metrics["answered"] = float(answer is not None)
        self.reward = float(self._dataset.score_answer(answer, self._entry))
