"""Environments and episodes for the tests of the engine."""

from __future__ import annotations

from typing import Any

from gymnast.envs import (
    Environment,
    Episode,
    EpisodeLimits,
    EpisodeSpec,
    Message,
    RolloutEngine,
    ScriptedPolicy,
    StepResult,
    episode_specs,
    tool_call,
)

WAIT = 30.0  # seconds to wait for an event before the test fails
ADD = tool_call("add", a=1, b=2)
ANSWER = tool_call("final_answer", answer=3)
ROW = {"question": "What is 1 plus 2?", "answer": 3}


def say(text: str) -> Message:
    return {"role": "assistant", "content": text}


def specs(count: int, **columns: Any) -> list[EpisodeSpec]:
    rows = [{**ROW, "prompt": "go", "index": index, **columns} for index in range(count)]
    return episode_specs(rows, group_size=1, seed=0)


async def play_one(environment: Any, script: Any, *, on_failure: str = "drop", **limits: Any) -> Episode:
    engine = RolloutEngine(environment, ScriptedPolicy(script), limits=EpisodeLimits(**limits), on_failure=on_failure)
    [episode] = await engine.run(specs(1))
    return episode


def tool_contents(episode: Episode) -> list[Any]:
    return [message.get("content") for message in episode.completion if message["role"] == "tool"]


class Probe(Environment):
    """Answers at once, records its creation and closing, and breaks at the given stage."""

    def __init__(self, log: Log, *, breaks: str = "", error: BaseException | None = None) -> None:
        super().__init__()
        self.log = log
        self.breaks = breaks
        self.error = error
        self.closed = 0
        log.made.append(self)
        self.maybe_break("create")

    def maybe_break(self, stage: str) -> None:
        if stage == self.breaks:
            raise self.error or ZeroDivisionError(f"in {stage}")

    async def areset(self, *, seed: int | None = None, options: Any = None) -> tuple[list[Message], dict]:
        await super().areset(seed=seed)
        self.maybe_break("reset")
        return [{"role": "user", "content": "go"}], {}

    async def astep(self, action: Message) -> StepResult:
        self.maybe_break("step")
        return StepResult([], 1.0, True, False, {})

    async def aclose(self) -> None:
        self.closed += 1
        self.maybe_break("close")


class Log:
    def __init__(self) -> None:
        self.made: list[Probe] = []

    @property
    def closed(self) -> list[int]:
        return [environment.closed for environment in self.made]


class Ender(Environment):
    """Ends in the way that its row names."""

    def __init__(self, terminated: Any = False, truncated: Any = False, **info: Any) -> None:
        super().__init__()
        self.result = StepResult([], 0.5, terminated, truncated, info)

    async def astep(self, action: Message) -> StepResult:
        return self.result
