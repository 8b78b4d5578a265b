"""The line that says where the episodes in flight are."""

from __future__ import annotations

import asyncio

import pytest

from gymnast.envs import Message, RolloutEngine, ScriptedPolicy, episode_specs, tool, tool_call, tool_calls
from gymnast.envs.engine.compaction import EveryTurn
from gymnast.envs.runtime import whereabouts

from .toolkit import WAIT, environment_of


async def test_the_line_counts_episodes_and_places(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(whereabouts, "SHOWN_SECONDS", 0.0)
    may_go_on, waiting = asyncio.Event(), asyncio.Semaphore(0)

    @tool(timeout=WAIT)
    async def search(words: str) -> str:
        """Search.

        Args:
            words: For these.
        """
        waiting.release()
        await may_go_on.wait()
        return "found"

    calls = {"quick": "bye", "slow": tool_calls(("search", {"words": "x"}))}
    policy = ScriptedPolicy(lambda messages: calls[messages[0]["content"]] if len(messages) == 1 else "bye")
    engine = RolloutEngine(environment_of(search), policy)
    rows = [{"prompt": "slow"}, {"prompt": "quick"}, {"prompt": "slow"}]
    over = asyncio.Event()
    assert engine.whereabouts.describe() == ""
    with engine.whereabouts.playing_for("evaluation"):
        playing = asyncio.create_task(engine.run(episode_specs(rows, group_size=1, seed=0), lambda episode: over.set()))
        async with asyncio.timeout(WAIT):
            await over.wait()
            await waiting.acquire()
            await waiting.acquire()
        assert engine.whereabouts.describe() == "evaluation: 1 of 3 episodes are over, 2 in tool search for 0 s"
        may_go_on.set()
        await playing
        assert engine.whereabouts.describe() == ""


async def test_what_is_quick_is_told_without_seconds() -> None:
    lines: list[str] = []

    @tool
    async def look() -> str:
        """Look."""
        lines.append(engine.whereabouts.describe())
        return "seen"

    engine = RolloutEngine(environment_of(look), ScriptedPolicy([tool_call("look"), "bye"]))
    await engine.run(episode_specs([{"prompt": "go"}], group_size=1, seed=0))
    assert lines == ["0 of 1 episodes are over, 1 in tool look"]


async def test_an_episode_whose_history_is_rewritten_is_in_compact_not_in_the_generator() -> None:
    lines: list[str] = []

    def keep(messages: list[Message]) -> list[Message]:
        lines.append(engine.whereabouts.describe())
        return messages

    @tool
    def look() -> str:
        """Look."""
        return "seen"

    script = ScriptedPolicy([tool_call("look"), "bye"])
    engine = RolloutEngine(environment_of(look), script, compact=EveryTurn(keep))
    await engine.run(episode_specs([{"prompt": "go"}], group_size=1, seed=0))
    assert lines == ["0 of 1 episodes are over, 1 in compact()"]
