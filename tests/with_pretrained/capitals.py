"""Questions about capitals, with a tool and without."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gymnast.envs import Message, ToolEnv, tool

SHOWN: list[Message] = [
    {"role": "user", "content": "How many people live in Italy?"},
    {"role": "assistant", "content": 'Action: population\nAction Input: {"country": "Italy"}'},
    {"role": "user", "content": "Observation: 59 million"},
    {"role": "assistant", "content": "59 million people live in Italy."},
]


class Plain(ToolEnv):
    """What is the capital of a country?"""

    def reset_task(self, task: Mapping[str, Any]) -> list[Message]:
        return [{"role": "user", "content": f"What is the capital of {task['country']}?"}]

    def reply(self, message: Message) -> None:
        self.reward = self.metrics["success"] = float("Paris" in str(message.get("content")))


class Capitals(Plain):
    """The same with a tool that nobody needs; or how many people live there, with an example of a call."""

    def reset_task(self, task: Mapping[str, Any]) -> list[Message]:
        if not task.get("people"):
            return super().reset_task(task)
        begun: Message = {"role": "assistant", "content": "Action: population\nAction Input:"}
        return [*SHOWN, {"role": "user", "content": f"How many people live in {task['country']}?"}, begun]

    @tool
    def population(self, country: str) -> str:
        """Return the population of a country.

        Args:
            country: The country.
        """
        return f"  {country} 🙂\n\n has 68  million <|im_end|>"
