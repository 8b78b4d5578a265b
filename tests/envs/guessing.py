"""One environment, written in the synchronous form and in the asynchronous one."""

from __future__ import annotations

import asyncio
from typing import Any

from gymnast.envs import Environment, Message, StepResult


class Guess(Environment):
    """Written in the synchronous form only."""

    number = 0
    closed = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[list[Message], dict]:
        super().reset(seed=seed)
        self.number = int(self.np_random.integers(10))
        return [{"role": "user", "content": f"Guess my number, which is not {self.np_random.integers(10)}."}], {}

    def step(self, action: Message) -> StepResult:
        right = str(self.number) in str(action.get("content"))
        return StepResult(
            [{"role": "user", "content": "Right!" if right else "Wrong."}], float(right), right, False, {}
        )

    def close(self) -> None:
        self.closed += 1


class AsyncGuess(Environment):
    """The same, written in the asynchronous form only."""

    number = 0
    closed = 0
    loops: frozenset[asyncio.AbstractEventLoop] = frozenset()

    async def areset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[list[Message], dict]:
        await super().areset(seed=seed)
        await asyncio.sleep(0)
        self.loops |= {asyncio.get_running_loop()}
        self.number = int(self.np_random.integers(10))
        return [{"role": "user", "content": f"Guess my number, which is not {self.np_random.integers(10)}."}], {}

    async def astep(self, action: Message) -> StepResult:
        self.loops |= {asyncio.get_running_loop()}
        right = str(self.number) in str(action.get("content"))
        return StepResult(
            [{"role": "user", "content": "Right!" if right else "Wrong."}], float(right), right, False, {}
        )

    async def aclose(self) -> None:
        await super().aclose()
        self.closed += 1


def say(text: str) -> Message:
    return {"role": "assistant", "content": text}
