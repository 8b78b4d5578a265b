"""The work of the rollout benchmark: an agent that looks up a few things, with a tool that takes as long as tools do.

A question names one to three things. The agent looks each up in its own turn and then says that it is done. So an
episode has two to four turns and ends with a plain answer, which ends every framework's loop.
"""

from __future__ import annotations

import asyncio
import math
import random
import threading
from collections.abc import Callable, Iterator
from typing import Any

from gymnast.envs import Message, ToolEnv, tool, tool_call
from gymnast.trainer.testing.tiny import make_tiny_model, tokenizer_for, warm_up

THINGS = ["river", "garden", "lamp", "castle", "forest", "piano", "bridge", "candle"]
MEDIAN, P99 = 0.1, 1.5  # seconds of a look-up
SIGMA = math.log(P99 / MEDIAN) / 2.326  # of the log-normal distribution; 2.326 is the normal's 99th percentile
ANSWER = "Done."


def rows(count: int, *, seed: int) -> list[dict[str, Any]]:
    rng = random.Random(seed)
    return [{"prompt": _question(rng.sample(THINGS, rng.randint(1, 3)))} for _ in range(count)]


def latencies(seed: int) -> Iterator[float]:
    """Seconds of one look-up after the other, without end."""
    rng = random.Random(seed)
    while True:
        yield rng.lognormvariate(math.log(MEDIAN), SIGMA)


def blocking_look_up(wait: Callable[[float], None], seconds: Iterator[float]) -> Callable[[str], str]:
    """The tool as a plain function; `wait` takes the time of each call, which is the next of `seconds`."""
    lock = threading.Lock()

    def look_up(name: str) -> str:
        """Look something up.

        Args:
            name: What to look up.
        """
        with lock:
            duration = next(seconds)
        wait(duration)
        return f"found {name}"

    return look_up


class LookUp(ToolEnv):
    """The tool as a method that needs no thread; each episode has latencies of its own, which a seed decides."""

    def __init__(self) -> None:
        super().__init__()
        self.waited = 0.0  # seconds that this episode's calls were to take

    async def reset_task(self, task: Any) -> list[Message]:  # type: ignore[override]
        self._seconds = latencies(int(self.np_random.integers(1 << 31)))
        self.waited = 0.0
        return [{"role": "user", "content": task["prompt"]}]

    @tool
    async def look_up(self, name: str) -> str:
        """Look something up.

        Args:
            name: What to look up.
        """
        duration = next(self._seconds)
        self.waited += duration
        self.metrics["waited"] = self.waited
        await asyncio.sleep(duration)
        return f"found {name}"


def warmed_up_model(schemas: list[dict[str, Any]], *, seed: int, steps: int) -> tuple[Any, Any]:
    """A tiny model that has learned to do the work, and its tokenizer."""
    rng = random.Random(seed)
    demonstrations = [(_demonstration(rng), schemas) for _ in range(1024)]
    tokenizer = tokenizer_for(demonstrations)
    model = make_tiny_model(tokenizer, seed=seed)
    warm_up(model, tokenizer, demonstrations, steps=steps, seed=seed)
    return model, tokenizer


def _question(things: list[str]) -> str:
    return f"Look up: {', '.join(things)}."


def _demonstration(rng: random.Random) -> list[Any]:
    things = rng.sample(THINGS, rng.randint(1, 3))
    messages: list[Any] = [{"role": "user", "content": _question(things)}]
    for thing in things:
        messages.append(tool_call("look_up", name=thing))
        messages.append({"role": "tool", "name": "look_up", "content": f"found {thing}"})
    return [*messages, {"role": "assistant", "content": ANSWER}]
