"""Failures that are scored as zero: the model learns to avoid the better tool, whose server often fails.

The archive gives the right answer, but fails in 40 % of the calls. A guess is worth 0.8. With failures at 0 the
archive is worth 0.6 on average, less than a guess. A failed episode says nothing about the model, so it is dropped: the
episodes that remain show that the archive is worth 1.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from functools import partial
from typing import Any

from gymnast.envs import BrokenEnvironmentError, Episode, Message, ToolEnv, tool, tool_call

from .accident import WORDS, Accident, Setting, WatchedTrainer

OUTAGE = 0.4  # share of the archive's calls that fail; training stops at 0.5 (`max_failure_rate`)
GUESS, LOOK_UP = 0.8, 1.0  # rewards


class Archive(ToolEnv):
    """A question that the model may guess or look up; `chance` decides when the archive fails."""

    def __init__(self, chance: random.Random) -> None:
        super().__init__()
        self.chance = chance  # shared by all episodes: members of a group have the same `np_random`

    def reset_task(self, task: Mapping[str, Any]) -> list[Message]:
        return [{"role": "user", "content": f"How old is the {task['word']}?"}]

    @tool(final=True)
    def guess(self) -> str:
        """Guess the answer."""
        self.reward = GUESS
        return "roughly right"

    @tool(final=True)
    def look_up(self) -> str:
        """Look the answer up in the archive."""
        if self.chance.random() < OUTAGE:
            raise BrokenEnvironmentError("the archive is down")
        self.reward = LOOK_UP
        return "right"


def looked_up(episode: Episode) -> float:
    """Whether the model called the archive, which a failed episode shows, too."""
    calls = episode.turns[0].message.get("tool_calls", [])
    return float([call["function"]["name"] for call in calls] == ["look_up"])


def make(setting: Setting, *, on_failure: str) -> WatchedTrainer:
    rng = random.Random(setting.seed)
    environment = Archive(rng)
    rows = [{"word": word} for word in WORDS]
    schemas = environment.tool_schemas()
    demonstrations = [
        ([*environment.reset_task(rng.choice(rows)), tool_call(rng.choice(["guess", "look_up"]))], schemas)
        for _ in range(512)
    ]
    model, tokenizer = setting.model(demonstrations)
    return WatchedTrainer(
        looked_up,
        model=model,
        processing_class=tokenizer,
        environment=environment,
        train_dataset=rows,
        args=setting.config(on_failure=on_failure),
    )


ACCIDENT = Accident(
    title="Failed episodes",
    measured="share of episodes that use the better tool",
    warm_up_steps=60,
    steps=40,
    arms={
        "scored as zero": partial(make, on_failure="zero"),
        "dropped": partial(make, on_failure="drop"),
    },
)
