"""Environments of one step, and groups of their episodes with reward functions, for the tests of rewards."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gymnast.envs import (
    Environment,
    Episode,
    EpisodeSpec,
    Message,
    Rewards,
    RolloutEngine,
    ScriptedPolicy,
    StepResult,
    Task,
)

WAIT = 30.0


class Plays(Environment):
    """An episode of one step; the row gives its reward."""

    async def areset(self, *, seed: int | None = None, options: Any = None) -> tuple[list[Message], dict]:
        await super().areset(seed=seed)
        self.row = self.task_of(options)
        return [{"role": "user", "content": "question"}], {}

    async def astep(self, action: Message) -> StepResult:
        if self.row.get("fails"):
            raise ZeroDivisionError("in the environment")
        messages: list[Message] = [{"role": "tool", "content": "3"}]
        return StepResult(messages, self.row.get("reward", 1.0), True, False, {})


class Judges(Plays):
    """Gives no rewards of its own."""

    gives_rewards = False


async def play(
    rows: Sequence[Mapping[str, Any]],
    *functions: Callable[..., Any],
    environment: type[Environment] = Plays,
    weights: Sequence[float] | None = None,
    timeout: float | None = WAIT,
    **options: Any,
) -> list[Episode]:
    """Play one group with one episode for each row."""
    engine = RolloutEngine(
        environment, ScriptedPolicy(["answer"]), rewards=Rewards(functions, weights, timeout=timeout), **options
    )
    return await engine.run(
        [EpisodeSpec(task=Task(id="t", row=row), group="t", member=member) for member, row in enumerate(rows)]
    )


async def rewards_of(
    rows: Sequence[Mapping[str, Any]], *functions: Callable[..., Any], **options: Any
) -> list[float | None]:
    return [episode.reward for episode in await play(rows, *functions, **options)]


def never(completions: list[Any]) -> list[None]:
    return [None] * len(completions)
