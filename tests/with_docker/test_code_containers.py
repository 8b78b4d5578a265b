"""`CodeEnv` gives its containers back, however an episode ends.

The tests count this process's containers, so no other pool may live at the same time: it would make spare boxes.
"""

from __future__ import annotations

import asyncio
import subprocess

import pytest

from gymnast.envs import CodeEnv, StopReason, tool, tool_call

from ..envs.test_code_env import answer, one_box, play, python, told
from ..sandbox.boxes import own_containers


@pytest.mark.parametrize("where", ["tool", "grade"])
async def test_a_cancelled_episode_gives_its_box_back(where: str, image: str, nothing_left: None) -> None:
    busy = asyncio.Event()

    class Busy(CodeEnv):
        tools_in = "calls"

        async def agrade(self, stop: StopReason) -> float | None:
            async with self.fresh_box() as box:
                busy.set()
                return float((await box.python("import time; time.sleep(600)", timeout=900)).ok)

        @tool
        async def sleep(self) -> str:
            """Sleep."""
            busy.set()
            return str(await self.box.python("import time; time.sleep(600)", timeout=900))

    async with one_box() as pool:
        script = [tool_call("sleep") if where == "tool" else answer()]
        playing = asyncio.create_task(play(Busy(pool), script))
        await asyncio.wait_for(busy.wait(), 30)
        assert pool.statistics.leased == 1
        playing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await playing
        assert pool.statistics.leased == 0
        [episode] = await play(CodeEnv(pool), [answer()])
        assert episode.reward == 1.0


async def test_a_box_that_is_lost_is_a_failed_episode(image: str, nothing_left: None) -> None:
    before = own_containers()
    kills = iter([True, False])

    class Killer(CodeEnv):
        tools_in = "calls"

        @tool
        def kill(self) -> str:
            """Remove the container, the first time."""
            if next(kills):
                subprocess.run(["docker", "rm", "-f", *(own_containers() - before)], check=True, capture_output=True)
            return "killed"

    script = [tool_call("kill"), python("6 * 7"), answer()]
    async with one_box() as pool:
        [episode] = await play(Killer(pool), script)
        kills = iter([True, False])
        [retried] = await play(Killer(pool), script, on_failure="retry(1)")
    assert (episode.stop, episode.reward) == (StopReason.FAILED, None)
    assert str(episode.failure).startswith("step: SandboxLostError: ")
    assert told(episode) == ["killed"]
    assert (retried.reward, retried.attempts) == (1.0, 2)
