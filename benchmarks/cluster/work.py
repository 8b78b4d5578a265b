"""The work of the cluster benchmark: an environment that takes no time, and models that answer at once or late."""

from __future__ import annotations

import asyncio
import math
import random
import zlib
from typing import Any

from gymnast.envs import Environment, Message, StepResult

MEDIAN, P99 = 5.0, 60.0  # seconds of an answer: some hundred tokens, now and then thousands
SIGMA = math.log(P99 / MEDIAN) / 2.326  # of the log-normal distribution; 2.326 is the normal's 99th percentile
MEAN = MEDIAN * math.exp(SIGMA**2 / 2)

GO: Message = {"role": "user", "content": "go on"}


class Instant(Environment):
    """Takes `turns` turns, none of which takes any time."""

    def __init__(self, turns: int) -> None:
        super().__init__()
        self.turns = turns

    async def areset(self, **options: Any) -> Any:
        await super().areset(**options)
        self.left = self.turns
        return [GO | {"content": str(options["options"]["task"])}], {}

    async def astep(self, action: Message) -> StepResult:
        self.left -= 1
        return StepResult([GO], 1.0, self.left == 0, False, {})


async def late_answer(messages: list[Message]) -> str:
    """Answers after a random time, the same for the same episode and turn."""
    seed = zlib.crc32(f"{messages[0].get('content')} {len(messages)}".encode())
    await asyncio.sleep(random.Random(seed).lognormvariate(math.log(MEDIAN), SIGMA))
    return "done"


def instant_answer(messages: list[Message]) -> str:
    return "done"
