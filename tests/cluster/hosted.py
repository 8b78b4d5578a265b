"""Environments and comparisons for the tests of `gymnast.cluster`."""

from __future__ import annotations

from typing import Any

from gymnast.envs import Episode, RolloutEngine, ScriptedPolicy, tool_call

ADD = tool_call("add", a=1, b=2)
ANSWER = tool_call("final_answer", answer=3)
ROW = {"question": "What is 1 plus 2?", "answer": 3, "prompt": "go"}


def play(environment: Any, script: Any, *, count: int = 1, rows: Any = None, **options: Any) -> list[Episode]:
    """Episodes of these rows, or of `count` rows that differ in their `index` only."""
    rows = [{**ROW, "index": index} for index in range(count)] if rows is None else rows
    return RolloutEngine(environment, ScriptedPolicy(script), **options).play(rows)


def without_times(episodes: list[Episode]) -> list[Episode]:
    """The same episodes with every duration set to 0, and with the traceback of a failure left out."""
    for episode in episodes:
        episode.seconds = 0.0
        for turn in episode.turns:
            turn.generation_seconds = turn.environment_seconds = 0.0
            for record in turn.tool_calls:
                record.seconds = 0.0
    return episodes
