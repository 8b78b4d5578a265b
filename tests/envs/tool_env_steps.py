"""Short ways to begin an episode of a `ToolEnv` and to read a step, and an environment with rewards."""

from __future__ import annotations

from typing import Any

from gymnast.envs import MalformedCall, Message, StepResult, ToolEnv, tool, tool_calls

QUESTION = {"question": "What is 2 times 3?", "answer": 6}


def malformed(*calls: tuple[str, dict[str, Any]]) -> Message:
    wrong: MalformedCall = {"text": "<tool_call>{", "error": "the JSON ends early"}
    return {**tool_calls(*calls), "malformed": [wrong]}


def begin(environment: ToolEnv, **row: Any) -> list[Message]:
    return environment.reset(seed=0, options={"task": {"prompt": "go", **row}})[0]


def contents(result: StepResult) -> list[Any]:
    return [message.get("content") for message in result.messages]


class Collector(ToolEnv):
    """Pays for each stone, and ends when told so."""

    @tool
    def collect(self, stones: int) -> str:
        """Collect stones.

        Args:
            stones: How many.
        """
        self.reward += stones
        self.metrics["stones"] = self.metrics.get("stones", 0.0) + stones
        self.terminated = stones > 5
        return "collected"

    def reply(self, message: Message) -> list[Message] | None:
        if message.get("content") == "bye":
            return None
        if message.get("content") == "stop":
            self.terminated, self.reward = True, -1.0
        return [{"role": "user", "content": f"You said: {message.get('content')}"}]
