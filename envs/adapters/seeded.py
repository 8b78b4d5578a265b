"""The seed of an episode, for environments around games that take one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..core import Message
from ..tool_env.tool_env import ToolEnv


class SeededEnv(ToolEnv):
    """A `ToolEnv` whose row may have a `seed`; by default the game gets the seed of the episode. It needs no rows."""

    _seed: int | None = None

    async def areset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[list[Message], dict[str, Any]]:
        self._seed = seed
        return await super().areset(seed=seed, options=options)

    def sample_task(self) -> Mapping[str, Any]:
        return super().sample_task() if self.tasks else {}

    def seed_of(self, task: Mapping[str, Any]) -> int | None:
        """Return the seed for the game."""
        return self._seed if task.get("seed") is None else int(task["seed"])
