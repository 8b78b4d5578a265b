"""An environment of tools whose state is outside of it, for the tests of cassettes."""

from __future__ import annotations

from typing import Any

import pytest

from gymnast.envs import (
    Episode,
    EpisodeSpec,
    Message,
    RolloutEngine,
    ScriptedPolicy,
    StopReason,
    Task,
    ToolEnv,
    tool,
    tool_call,
)
from gymnast.envs.runtime.threads import run_in_loop

DISK: dict[str, str] = {}  # what the tools of `Disk` change; nothing in the environment itself
CALLS: list[str] = []  # tools and hooks that ran


@pytest.fixture(autouse=True)
def empty_disk() -> None:
    DISK.clear()
    CALLS.clear()


class Disk(ToolEnv):
    """Tools with a state outside of the environment, and rewards of every kind."""

    def reset_task(self, task: Any) -> list[dict[str, Any]]:
        DISK.clear()
        return [{"role": "user", "content": task["prompt"]}]

    @tool
    def write(self, name: str, text: str) -> int:
        """Write a file.

        Args:
            name: Its name.
            text: Its content.
        """
        CALLS.append("write")
        DISK[name] = text
        self.reward += 0.5
        self.metrics["writes"] = self.metrics.get("writes", 0.0) + 1.0
        self.report.setdefault("names", []).append(name)
        return len(DISK)

    @tool
    def read(self, name: str) -> str:
        """Read a file.

        Args:
            name: Its name.
        """
        CALLS.append("read")
        if name not in DISK:
            raise ValueError(f"no file {name}")
        return DISK[name]

    @tool(parallel=True)
    def look_up(self, word: str) -> dict[str, Any]:
        """Look a word up.

        Args:
            word: The word.
        """
        CALLS.append("look_up")
        return {"word": word, "letters": len(word)}

    @tool(final=True, replay="run")
    def answer(self, text: str) -> str:
        """Answer.

        Args:
            text: The answer.
        """
        CALLS.append("answer")
        self.reward = float(text == "right")
        return "thanks"

    def reply(self, message: Message) -> list[Message] | None:
        CALLS.append("reply")
        if message.get("content") == "bye":
            return None
        self.truncated = message.get("content") == "enough"
        self.metrics["replies"] = self.metrics.get("replies", 0.0) + 1.0
        return [{"role": "user", "content": f"{len(DISK)} files"}]

    def grade(self, stop: StopReason) -> float:
        CALLS.append("grade")
        self.report["disk"] = dict(DISK)
        return 10.0 * len(DISK)


WRITE_A = tool_call("write", name="a", text="1")
WRITE_B = tool_call("write", name="b", text="2")
READ_A = tool_call("read", name="a")
HELLO: Message = {"role": "assistant", "content": "hello"}
BYE: Message = {"role": "assistant", "content": "bye"}


def play(environment: Any, *script: Message, seed: int = 0, prompt: str = "go") -> Episode:
    spec = EpisodeSpec(task=Task(id="t", row={"prompt": prompt}, seed=seed), group="t@0")
    engine = RolloutEngine(environment, ScriptedPolicy(list(script)))
    [episode] = run_in_loop(engine.run([spec]))
    return episode


def facts(episode: Episode) -> tuple[Any, ...]:
    """Everything that a replay must repeat."""
    turns = [
        (turn.observation, turn.reward, [(record.outcome, record.traceback) for record in turn.tool_calls])
        for turn in episode.turns
    ]
    return turns, episode.reward, episode.stop, episode.metrics, episode.report


def ran() -> list[str]:
    """The tools and hooks that ran since the last time."""
    found, CALLS[:] = CALLS[:], []
    return found
