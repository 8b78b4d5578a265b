"""The box in which a `CodeEnv` grades: no episode used it before, and grading does not queue behind new episodes."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from gymnast.envs import CodeEnv, Episode, Message, RolloutEngine, ScriptedPolicy, StopReason, episode_specs, tool_call
from gymnast.sandbox import DockerExecutor, Executor, ExecutorPool, LocalExecutor

from ..sandbox.boxes import LIMITS, eventually

CHECKS = {"submit": ["solution.py"], "checks": [{"run": "import solution\nsolution.number", "value": "7"}]}
SCRIPT = [tool_call("bash", command="echo number = 7 > solution.py"), tool_call("final_answer", answer="done")]


def rows(count: int) -> list[dict[str, Any]]:
    return [{"prompt": str(number), **CHECKS} for number in range(count)]


async def play(environment: CodeEnv, count: int, **options: Any) -> list[Episode]:
    engine = RolloutEngine(environment, ScriptedPolicy(SCRIPT), **options)
    episodes = await engine.run(episode_specs(rows(count), group_size=1, seed=0))
    assert [str(episode.failure) for episode in episodes if episode.failure is not None] == []
    return episodes


async def container(box: Executor) -> str | None:
    """The box's root file system, which no two containers share."""
    return (await box.python("open('/proc/self/mounts').readline()", timeout=10)).value


@pytest.mark.parametrize("max_boxes", [1, 4])
async def test_the_fresh_box_is_a_container_that_no_episode_used(
    max_boxes: int, image: str, nothing_left: None
) -> None:
    agents: set[str | None] = set()
    graders: list[str | None] = []

    class Named(CodeEnv):
        async def agrade(self, stop: StopReason) -> float | None:
            agents.add(await container(self.box))
            async with self.fresh_box() as box:
                graders.append(name := await container(box))
                assert name not in agents
            return 1.0

    async with ExecutorPool(DockerExecutor(limits=LIMITS), max_boxes=max_boxes) as pool:
        episodes = await play(Named(pool), 8)
    assert [episode.reward for episode in episodes] == [1.0] * 8
    assert len(set(graders)) == len(graders) == 8
    assert all(name is not None and "upperdir=" in name for name in graders)


async def test_an_episode_that_is_over_is_graded_before_others_begin() -> None:
    """The other three episodes already wait for the only box when the first one has its answer."""
    happened: list[str] = []

    class Noted(CodeEnv):
        def reset_task(self, task: Mapping[str, Any]) -> list[Message]:  # type: ignore[override]
            happened.append(f"{task['prompt']} begins")
            return [{"role": "user", "content": task["prompt"]}]

        async def agrade(self, stop: StopReason) -> float | None:
            reward = await super().agrade(stop)
            happened.append(f"{self.task['prompt']} is graded")
            return reward

    async with ExecutorPool(LocalExecutor(), max_boxes=1) as pool:
        episodes = await play(Noted(pool), 4)
        assert pool.statistics.created <= 1 + len(episodes)  # the next episode gets the grader's box, after a reset
    assert [episode.reward for episode in episodes] == [1.0] * 4
    order = [line.split()[0] for line in happened]
    assert sorted(order[::2]) == ["0", "1", "2", "3"]
    assert happened == [f"{number} {what}" for number in order[::2] for what in ("begins", "is graded")]


async def test_the_wait_for_a_fresh_box_is_a_metric_of_episodes_that_had_one() -> None:
    async with ExecutorPool(LocalExecutor(), max_boxes=1) as pool:
        [episode] = await play(CodeEnv(pool), 1)
        assert episode.metrics["grading_lease_seconds"] > 0
        assert episode.metrics["lease_seconds"] > 0
        policy = ScriptedPolicy([tool_call("final_answer", answer="1")])
        [plain] = await RolloutEngine(CodeEnv(pool), policy).run(
            episode_specs([{"prompt": "go", "answer": 1}], group_size=1, seed=0)
        )
        assert "grading_lease_seconds" not in plain.metrics


async def test_a_grader_that_is_cancelled_while_it_waits_leaves_the_box_to_others() -> None:
    """It is cancelled after the agent's box was given back, and before it has the fresh one."""
    async with ExecutorPool(LocalExecutor(), max_boxes=1) as pool:
        environment = CodeEnv(pool)
        await environment.areset(options={"task": rows(1)[0]})
        others = [asyncio.ensure_future(play(CodeEnv(pool), 1)) for _ in range(2)]
        assert await eventually(lambda: pool.statistics.waiting == 2, 10)
        grading = asyncio.ensure_future(environment.agrade(StopReason.FINAL_ANSWER))
        assert await eventually(lambda: pool.statistics.waiting == 3, 10)  # one of them for the fresh box
        grading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await grading
        await environment.aclose()
        assert [episode.reward for [episode] in await asyncio.gather(*others)] == [1.0, 1.0]
        assert pool.statistics.waiting == 0


IN_THE_WAY = [
    "import subprocess, itertools\ntry:\n"
    "    for _ in itertools.count(): subprocess.Popen(['sleep', '1000'])\n"
    "except OSError: 0",
    "import threading, time, itertools\ntry:\n"
    "    for _ in itertools.count(): threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()\n"
    "except RuntimeError: 0",
    "import os, time\nif os.fork() == 0:\n    os.setsid()\n    while True:\n        for pid in range(3, 200):\n"
    "            try: pid in (os.getpid(), os.getppid()) or os.kill(pid, 9)\n            except OSError: pass",
]


@pytest.mark.parametrize("code", IN_THE_WAY, ids=["processes", "threads", "killer"])
async def test_running_processes_of_the_agent_do_not_hinder_the_submission(code: str, image: str) -> None:
    script = [SCRIPT[0], tool_call("python", code=code), SCRIPT[1]]
    async with ExecutorPool(DockerExecutor(limits=LIMITS), max_boxes=2) as pool:
        engine = RolloutEngine(CodeEnv(pool), ScriptedPolicy(script))
        [episode] = await engine.run(episode_specs(rows(1), group_size=1, seed=0))
    assert (episode.reward, episode.failure) == (1.0, None)
