"""TaskEnv: an environment whose tasks are folders, each with a computer of its own."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from statistics import fmean
from types import MappingProxyType
from typing import Any, get_args

from ...sandbox.box import Box
from ...sandbox.errors import SandboxFileError, SandboxLostError
from ...sandbox.limits import amount_of, check_timeout
from ...sandbox.pool import ExecutorPool
from ..core import ConfigurationError, Message, StepResult, StopReason
from ..tools.execution import SLOW_CALLS
from ..tools.mark import tool
from ..tools.sources import ToolLike
from ..tools.tool import Tool
from .computer import ComputerEnv
from .harbor import HarborTask, Stage, read_task
from .machine import begin_stage, box_of, set_up
from .shell import Shell
from .verifier import Verdict, Verify, seconds_of_verdict, verify

_MAX_BOXES = 256  # of the agents, as many as a trainer plays episodes at a time

TOOLS = {"bash": ("bash", "bash_output", "bash_kill"), "edit": ("edit",), "view": ("view",), "submit": ("submit",)}


class TaskEnv(ComputerEnv):
    """An environment in which the model works at a computer: each task is a folder in Harbor's format.

        environment = TaskEnv(DockerBox(), tools=("bash", "submit"))
        rows = harbor_tasks("tasks/")

    An episode has a new box of the task's image. It ends when the model submits or answers without a tool call, when a
    limit ends it, or with `StopReason.TIME_LIMIT` when the task's own time is over. Every ending is graded by the tests
    of the task, in a box that the agent never touched. If the tests give no verdict, the episode fails, unless the
    agent's files are at fault: then it gets 0. So does an agent that uses up the memory of its box.

    In a task of several steps, the model gets the next instruction when it submits. Each step is graded, and a step
    that is never reached counts as 0.
    """

    _task: HarborTask
    _stages: Sequence[Stage] = ()
    _place: int = 0  # of the stage that is played
    _how: Mapping[str, Any] = MappingProxyType({})  # the directory and variables of programs in the box

    def __init__(
        self,
        box: Box | ExecutorPool,
        tools: Sequence[str | ToolLike] = tuple(TOOLS),
        *,
        verify: Verify = "separate",
        time_scale: float = 1.0,
        command_timeout: float | None = None,
        **options: Any,
    ) -> None:
        """Make the environment.

        Args:
            box: A box that is not started: boxes are made like it, with the image and the limits of each task. It says
                which network a task gets that asks for one. Or a pool of boxes, to choose how many there are at a time.
            tools: Names of this environment's own tools, "bash" (with `bash_output` and `bash_kill`), "edit", "view"
                and "submit"; and plain functions or sources of tools, as in any `ToolEnv`.
            verify: "separate": the tests run in a new box with the files of the agent's box, and none of its processes.
                "shared": they run in the agent's box, if the task does not ask for another or for another network: for
                numbers that are compared with published ones. If a task asks for a separate verifier, only its
                artifacts are handed in.
            time_scale: The time of an episode is `agent.timeout_sec` of the task times this number.
            command_timeout: Seconds for one command; by default the class attribute, 60.
            options: The other options of `ToolEnv`.

        Raises:
            TypeError: `box` is no box, or an option is unknown.
            ValueError: there is no tool of a name, or an option is out of its range.
        """
        if verify not in get_args(Verify):
            raise ValueError(f"verify must be one of {get_args(Verify)}, got {verify!r}")
        if unknown := [name for name in tools if isinstance(name, str) and name not in TOOLS]:
            raise ValueError(f"TaskEnv has the tools {', '.join(TOOLS)}, got {', '.join(unknown)}")
        if not 0 < amount_of(time_scale, "time_scale", "times the time of a task") < math.inf:
            raise ValueError(f"time_scale must be positive, got {time_scale!r}")
        self._chosen = {name for entry in tools if isinstance(entry, str) for name in TOOLS[entry]}
        others = [entry for entry in tools if not isinstance(entry, str)]
        super().__init__(box, others, Box, "box must be a box such as DockerBox()", _MAX_BOXES, **options)
        self._time_scale = time_scale
        self._verify: Verify = verify
        timeout = self.command_timeout if command_timeout is None else command_timeout
        self.command_timeout = check_timeout(timeout, "command_timeout")
        self.min_step_seconds = (SLOW_CALLS + 1) * self.command_timeout
        self._verdicts: list[Verdict] = []

    @tool(timeout=math.inf, final=True)
    async def submit(self) -> str:
        """Submit your work: the task is over, or its next instruction comes."""
        return await self._next_stage() or "The task is over."

    async def reply(self, message: Message) -> list[Message] | None:  # type: ignore[override]
        """Take an answer without a tool call as a submission."""
        told = await self._next_stage()
        return None if told is None else [{"role": "user", "content": told}]

    def is_final(self, call: Any) -> bool:
        return super().is_final(call) and self._place + 1 >= len(self._stages)

    def _all_tools(self) -> dict[str, Tool]:
        own = {name for names in TOOLS.values() for name in names}
        return {name: tool for name, tool in super()._all_tools().items() if name in self._chosen or name not in own}

    # The episode.

    def box_for(self, task: Mapping[str, Any]) -> Box:
        """Return a box for a row, not started; override it for an image or limits of your own."""
        found = read_task(task["task_dir"])
        return box_of(self._prototype, found, found.stages()[0].agent, machine=found.machine)

    async def _prepare(self, task: Mapping[str, Any]) -> None:
        if not isinstance(task.get("task_dir"), str):
            raise ConfigurationError(f"TaskEnv: the row has no 'task_dir', the folder of a task: {sorted(task)}")
        await super()._prepare(task)
        self._task = read_task(task["task_dir"])
        self._stages = self._task.stages()
        self._place, self._verdicts = 0, []
        self.own_seconds = max(map(seconds_of_verdict, self._stages))
        self._user = self._stages[0].agent.user

    async def _acquire(self) -> None:
        started = time.perf_counter()
        await super()._acquire()
        self._how = await set_up(self.box, self._task)
        await begin_stage(self.box, self._stages[0], self._how)
        self._begin_shell()
        self.metrics["setup_seconds"] = time.perf_counter() - started

    def _begin_shell(self) -> None:
        self._shell = Shell(self.box, **self._how, user=self._user)
        self._lease.push_async_callback(self._shell.close)

    async def _begin(self, messages: list[Message]) -> None:
        self._begin_clock()

    def _begin_clock(self) -> None:
        seconds = self._stages[self._place].agent.timeout_sec
        self._time_ends = math.inf if seconds is None else time.monotonic() + seconds * self._time_scale

    async def astep(self, action: Message) -> StepResult:
        try:
            result = await super().astep(action)
        except SandboxLostError:
            if not self._lost_by_agent():
                raise
            self._over = True
            info = {"stop_reason": StopReason.ENV_TERMINATED, "metrics": dict(self.metrics)}
            return StepResult([], 0.0, True, False, info)
        if result.terminated or result.truncated or time.monotonic() < self._time_ends:
            return result
        told = await self._next_stage()
        if told is not None:
            return result._replace(
                messages=[*result.messages, {"role": "user", "content": f"The time is over.\n\n{told}"}],
                terminated=self.terminated,
            )
        self._over = True
        return result._replace(truncated=True, info=result.info | {"stop_reason": StopReason.TIME_LIMIT})

    def _lost_by_agent(self) -> bool:
        """Return whether the box has ended because the agent's programs used up its memory."""
        reason = self.box.retire_reason
        return reason is not None and reason.category == "oom"

    # Grading.

    async def _next_stage(self) -> str | None:
        """Grade this stage and begin the next one; return what the model is told, or None if this is the last."""
        if self._place + 1 >= len(self._stages):
            return None
        verdict, least = await self._judge(), self._stages[self._place].min_reward
        if any(verdict.rewards.get(key, -math.inf) < number for key, number in least.items()):
            self.terminated = True
            return "The task is over: the next step needs a better result of this one."
        self._place += 1
        stage = self._stages[self._place]
        await begin_stage(self.box, stage, self._how, before=self._stages[self._place - 1])
        if stage.agent.user != self._user:
            self._user = stage.agent.user
            await self.shell.close()
            self._begin_shell()
        self._begin_clock()
        return stage.instruction

    async def _judge(self) -> Verdict:
        stage = self._stages[self._place]
        try:
            verdict = await verify(self.box, self._prototype, self._task, stage, how=self._how, mode=self._verify)
        except SandboxFileError as error:  # the agent's files are too large to be handed in
            verdict = Verdict(rewards={"reward": 0.0}, log=f"[{error}]")
        except SandboxLostError:
            if not self._lost_by_agent():
                raise
            verdict = Verdict(rewards={"reward": 0.0}, log="[the agent has used up the memory of its box]")
        self._verdicts.append(verdict)
        return verdict

    async def agrade(self, stop: StopReason) -> float | None:
        """Return the reward that the tests give: of the last step, or the mean of all, as the task says.

        The metrics are `success`, which is 1 if the reward is at least 1, `verifier_seconds`, and `reward_KEY` where
        the tests give several. The report has the log of the tests.
        """
        if len(self._verdicts) <= self._place:
            await self._judge()
        rewards = [verdict.reward for verdict in self._verdicts] + [0.0] * (len(self._stages) - len(self._verdicts))
        reward = rewards[-1] if self._task.settings.multi_step_reward_strategy == "final" else fmean(rewards)
        keys = {key for verdict in self._verdicts for key in verdict.rewards} - {"reward"}
        for key in keys:
            self.metrics[f"reward_{key}"] = fmean(verdict.rewards.get(key, 0.0) for verdict in self._verdicts)
        self.metrics["success"] = float(reward >= 1.0)
        self.metrics["verifier_seconds"] = sum(verdict.seconds for verdict in self._verdicts)
        self.report["verifier"] = [
            {"step": stage.name, "rewards": dict(verdict.rewards), "log": verdict.log}
            for stage, verdict in zip(self._stages, self._verdicts, strict=False)
        ]
        return reward
