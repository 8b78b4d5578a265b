"""The check of `gymnast check --tasks`: each task can be played, and its tests tell a solution from doing nothing."""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from ...envs import Episode, EpisodeLimits, ScriptedPolicy, TaskEnv, episode_specs, play_episode, tool_call
from ...envs.tasks.harbor import read_task, row_of
from ...envs.tasks.machine import image_of
from ...envs.tasks.settings import resolve_variables
from ...envs.tasks.verifier import Verdict
from ...sandbox import DockerBox, SandboxError
from ...sandbox.box import Box
from ...sandbox.docker.images import image_facts
from ..terminal.output import one_line


@dataclass(kw_only=True, slots=True)
class TaskCheck:
    """The findings about one task."""

    task: str
    fault: str = ""  # why it is not fit
    null: float | None = None  # the reward of doing nothing
    oracle: float | None = None  # that of the task's own solution
    build_seconds: float = 0.0
    seconds: float = 0.0  # of both episodes
    image_bytes: int | None = None
    without_effect: list[str] = field(default_factory=list)  # settings of the folder that change nothing here

    HEADINGS: ClassVar = ("", "task", "null", "oracle", "build s", "s", "MB", "")

    @property
    def is_fit(self) -> bool:
        """Whether the task can be trained on."""
        return not self.fault

    def row(self) -> tuple[str, ...]:
        """Return the row of a table; see `HEADINGS`."""
        rewards = ["-" if reward is None else f"{reward:g}" for reward in (self.null, self.oracle)]
        size = "-" if self.image_bytes is None else f"{self.image_bytes / 1e6:.0f}"
        seconds = f"{self.build_seconds:.1f}", f"{self.seconds:.1f}"
        told = self.fault or (f"without effect: {', '.join(self.without_effect)}" if self.without_effect else "")
        return "fit" if self.is_fit else "unfit", self.task, *rewards, *seconds, size, one_line(told, 300)


class SolvedTaskEnv(TaskEnv):
    """Runs the solution of each step before its tests."""

    async def _judge(self) -> Verdict:
        stage, box = self._stages[self._place], self.box
        if stage.solution is None:
            raise ValueError("there is no solution/solve.sh, so nothing shows that the task can be solved")
        await box.copy_in(stage.solution, "/solution")
        await box.exec(["chmod", "+x", "/solution/solve.sh"], user=0)
        variables = resolve_variables(self._task.settings.solution.env, "solution.env")
        env = {**self._how["env"], "DEBIAN_FRONTEND": "noninteractive", **variables}
        seconds = stage.agent.timeout_sec or 3600.0
        result = await box.exec(
            "/solution/solve.sh", cwd=self._how["cwd"], env=env, user=stage.agent.user, timeout=seconds
        )
        self.report["solution"] = f"{result.status}, exit code {result.exit_code}: {result.stderr[-300:].strip()}"
        return await super()._judge()


async def check_tasks(
    folders: Sequence[Path], box: Box, *, jobs: int, shown: Callable[[TaskCheck], None]
) -> list[TaskCheck]:
    """Check tasks, `jobs` of them at a time; `shown` is given each result as it comes."""
    turns = asyncio.Semaphore(jobs)

    async def one(folder: Path) -> TaskCheck:
        async with turns:
            found = TaskCheck(task=folder.name)
            try:
                await _check(folder, found, box)
            except (ValueError, OSError, SandboxError) as error:  # one broken task leaves the others
                found.fault = str(error)
            shown(found)
            return found

    engine = box.engine if isinstance(box, DockerBox) else contextlib.nullcontext()
    async with engine, asyncio.TaskGroup() as group:
        tasks = [group.create_task(one(folder)) for folder in folders]
    return [task.result() for task in tasks]


def describe(checks: Sequence[TaskCheck]) -> dict[str, Any]:
    """Return the findings as JSON holds them; `harbor_tasks(fit=...)` reads the names under `fit`."""
    return {"fit": [found.task for found in checks if found.is_fit], "tasks": [asdict(found) for found in checks]}


async def _check(folder: Path, found: TaskCheck, box: Box) -> None:
    task = read_task(folder)
    found.without_effect = task.without_effect()
    started = time.perf_counter()
    if isinstance(box, DockerBox):
        found.image_bytes = (await image_facts(box.engine, image_of(task))).size
    else:
        await box.variant(image=image_of(task)).prepare()
    found.build_seconds = time.perf_counter() - started
    row = row_of(task)
    # Where nothing was done, the tests need no copy of the box.
    null = await _play(TaskEnv(box, ("submit",), verify="shared"), row)
    oracle = await _play(SolvedTaskEnv(box, ("submit",)), row)
    found.null, found.oracle, found.seconds = null.reward, oracle.reward, null.seconds + oracle.seconds
    for name, episode in (("doing nothing", null), ("the solution", oracle)):
        if episode.failure is not None:
            found.fault = f"{name}: {episode.failure}"
            return
    if (null.reward or 0.0) >= 1:
        found.fault = "doing nothing earns 1"
    elif (oracle.reward or 0.0) < 1:
        found.fault = f"the solution earns {oracle.reward:g}, not 1; it ended with {oracle.report.get('solution')}"


async def _play(environment: TaskEnv, row: dict[str, str]) -> Episode:
    [spec] = episode_specs([row], group_size=1, seed=0)
    submit = ScriptedPolicy(lambda messages: tool_call("submit"))
    return await play_episode(spec, lambda spec: environment, submit, EpisodeLimits(step_timeout=math.inf))
