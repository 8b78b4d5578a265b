"""CodeEnv: an environment for agents that write code, which runs in a sandbox."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from functools import cache
from types import MappingProxyType
from typing import Any

from ...sandbox.base import Executor
from ...sandbox.defaults.executor import default_executor
from ...sandbox.limits import check_timeout, size_of
from ...sandbox.pool import ExecutorPool
from ..core import Message, StepResult, StopReason
from ..tools.execution import SLOW_CALLS
from ..tools.mark import tool
from ..tools.sources import ToolLike
from .actions import Language
from .checking import log_checks_that_cannot_run, run_checks
from .files import files_of, hand_in, log_near_columns, put_files, submit_of
from .grading import HiddenCheck, checks_of, same_answer
from .results import describe
from .tools_in_code import ToolsIn, ToolsInCodeEnv


@cache
def _own_executor() -> Executor:
    """Return the executor of all environments that were given none, so that their copies share one pool."""
    return default_executor()


class CodeEnv(ToolsInCodeEnv):
    """An environment with a box: the model runs Python and Bash in it, and ends the episode with `final_answer`.

        environment = CodeEnv(DockerExecutor(limits=Limits(memory="256m")))
        rows = [{"prompt": "How many lines has data.csv?", "files": {"data.csv": "a\\nb\\n"}, "answer": 2}]

    A row may have, besides what a `ToolEnv` reads:

    - `files`: files in the workspace before the first turn: text or bytes by relative path.
    - `image`: the image of its boxes, instead of that of the executor; see also `box_for`.
    - `answer`: the right final answer. A number is compared as a number, exactly.
    - `submit` and `checks`: files that the agent hands in, by relative path, and hidden checks of them (see `agrade`).

    Each episode has a box of its own, leased from the pool until the episode is graded. Tools that you add, as in any
    `ToolEnv`, are functions in the model's code, and run outside of the box; the model then sees one tool, `python`.
    See `tools_in`. If the box is lost, or if the pool has none, the episode fails and
    has no reward: that is never the model's fault. `DefaultEnv` is another name of this class.
    """

    code_timeout: float = 30.0

    given_answer: str | None = None  # the argument of `final_answer`; None if the episode ended without it

    _handed_in: dict[str, bytes] | None = None  # read from the agent's box before that was given back
    _turn_ends: float = 0.0  # for its calls of `python` and `bash`

    def __init__(
        self,
        code_executor: Executor | ExecutorPool | None = None,
        tools: Sequence[ToolLike] = (),
        *,
        code_timeout: float | None = None,
        tools_in: ToolsIn | None = None,
        code_actions: bool | None = None,
        max_code_calls: int | None = None,
        **options: Any,
    ) -> None:
        """Make the environment.

        Args:
            code_executor: An executor that is not started: boxes are made like it, and all copies of the environment
                lease them from one pool, `pool_of(executor)`. Or a pool, to choose its size or to share it. By default
                `default_executor()`: Docker, or bubblewrap where no engine answers.
            tools: Plain functions as tools, beside the methods marked with `@tool`; and sources such as `MCPTools`.
            code_timeout: Seconds for one call of `python` or `bash`, and for one hidden check; by default the
                class attribute, 30. All calls of one turn together have five times as long.
            tools_in: "python" or "bash": your tools are called by code in that language, and the model sees one tool,
                which runs code. "calls": the model calls them itself, beside `python`, `bash` and `final_answer`, which
                it also sees if there are no tools of yours. By default the class attribute, "python".
            code_actions: The model acts by blocks of code in its text, and sees no tool; False by default.
            max_code_calls: Calls of tools that the code may make in one episode, 100 by default.
            options: The other options of `ToolEnv`; `tool_timeout` is for the tools that you add.

        Raises:
            TypeError: `code_executor` is neither an executor nor a pool, `code_timeout` is not a number, or an option
                is unknown.
            EngineError: no executor is given, and this machine has neither Docker nor bubblewrap.
            ValueError: the executor is started already, or an option is out of its range.
        """
        executor = _own_executor() if code_executor is None else code_executor
        what = "code_executor must be an executor such as DockerExecutor()"
        super().__init__(executor, tools, Executor, what, **options)
        self._set_options(tools_in=tools_in, code_actions=code_actions, max_code_calls=max_code_calls)
        self.code_timeout = check_timeout(self.code_timeout if code_timeout is None else code_timeout, "code_timeout")
        self.min_step_seconds = (SLOW_CALLS + 1) * self.code_timeout  # a turn, whose last call begins in time

    def box_for(self, task: Mapping[str, Any]) -> Executor:
        """Return the executor that the boxes of this task's episodes are made like; override it to choose another.

        By default the row's `image`, if it has one, replaces that of `code_executor`.
        """
        return self._prototype if task.get("image") is None else self._prototype.variant(image=task["image"])

    # The tools. The box keeps their time itself, and calls of one turn wait for one another.

    @tool(timeout=math.inf)
    async def python(self, code: str) -> str:
        """Run Python code in a session that lasts: variables, functions and imports stay for the next call.

        The result is what the code prints, then the value of its last expression, then any error. Code that takes too
        long is stopped.

        Args:
            code: The Python code to run.
        """
        return await self._run("python", code)

    @tool(timeout=math.inf)
    async def bash(self, command: str) -> str:
        """Run a command in a Bash session that lasts: the working directory and variables stay for the next call.

        The result is what the command prints, and its exit code if that is not 0. It sees the same files as Python. A
        command that takes too long is stopped; it cannot ask for input.

        Args:
            command: The command, or several lines of them.
        """
        return await self._run("bash", command)

    @tool(final=True, replay="run")
    async def final_answer(self, answer: str) -> str:
        """Give the final answer, which ends the task.

        Args:
            answer: The final answer. If the task asks for files, a word on what they do is enough.
        """
        self.given_answer = answer
        return "The task is over."

    def _seconds_left(self) -> float:
        """Return the time limit of a call; many slow calls in one turn would run into the `step_timeout`."""
        left = self._turn_ends - time.perf_counter()
        if left <= 0:
            raise ValueError(f"not run, the calls of this turn took {SLOW_CALLS * self.code_timeout:g} s; try again")
        return min(left, self.code_timeout)

    async def _run(self, language: Language, code: str) -> str:
        result = await self._execute(language, code, self._seconds_left())
        if not result.ok:
            self.metrics["code_errors"] = self.metrics.get("code_errors", 0.0) + 1.0
        return describe(result, language)

    # Grading.

    @property
    def grade_in_replay(self) -> bool:  # type: ignore[override]
        return type(self).agrade is CodeEnv.agrade and not self._verdict(self.task)  # it needs no box

    async def agrade(self, stop: StopReason) -> float | None:
        """Return the reward of an episode, however it ended; override it for tasks that are graded in another way.

        With `checks` in the row, each of them runs in a box that the agent never touched, with the row's files and
        the submission, in sessions and a workspace of its own. The reward is 1 if all pass, else 0. The metric
        `checks_passed` is the share that passed. A check is one of

            {"run": "from solution import add\\nadd(2, 3)", "value": "5"}  # repr() of the last expression
            {"run": "import solution\\nsolution.main()", "stdout": "5\\n"}
            {"bash": "python solution.py 2 3", "stdout": "5\\n", "exit_code": 0}

        Only the code enters the box; the expected output is compared outside. Without `checks` the final answer is
        compared with the row's `answer`; an episode without a final answer gets 0. If an override raises an exception,
        the episode fails.

        Raises:
            ConfigurationError: the row has neither `checks` nor `answer`, or its checks are wrong.
        """
        try:
            checks = self._verdict(self.task)
            if checks:
                reward = await self._check(checks)
            else:
                reward = float(self.given_answer is not None and same_answer(self.given_answer, self.task["answer"]))
        finally:
            await self._give_back()
        self.metrics["success"] = reward
        return reward

    async def _check(self, checks: Sequence[HiddenCheck]) -> float:
        results = await run_checks(checks, self.fresh_box, self._fill, self.code_timeout)
        log_checks_that_cannot_run(results, submit_of(self.task))
        self.report["checks"] = [result.report() for result in results]
        passed = sum(result.passed for result in results)
        self.metrics["checks_passed"] = passed / len(checks)
        return float(passed == len(checks))

    @contextlib.asynccontextmanager
    async def fresh_box(self, files: Mapping[str, str | bytes] = MappingProxyType({})) -> AsyncIterator[Executor]:
        """Lend a box that no agent ever touched, for `agrade`. It holds the row's files, these files, and those that
        the row's `submit` names, as the agent left them. A file that is missing, or is a link or no regular file, is
        not there. All are handed in as data, without their mode.

        The agent's own box is given back first, for good: were it kept, episodes that hold all boxes of a pool would
        wait for one another for ever. So read what you need of `self.box` before. An episode that goes on to use it
        fails.
        """
        if self._handed_in is None:
            self._handed_in = await hand_in(self.box, self.task)
        started = time.perf_counter()
        await self._give_back()
        async with contextlib.AsyncExitStack() as lease:
            box = await self._borrow(lease, fresh=True, priority=True)  # others wait for this episode to end
            waited = time.perf_counter() - started
            self.metrics["grading_lease_seconds"] = self.metrics.get("grading_lease_seconds", 0.0) + waited
            await self._fill(box, files)
            yield box

    def _verdict(self, task: Mapping[str, Any]) -> tuple[HiddenCheck, ...]:
        """Return the row's checks, or none if there is an answer; anything else is refused."""
        kept = size_of(self._template.limits.max_output)
        return checks_of(task, type(self).__name__, max_output=kept)

    async def _fill(self, box: Executor, files: Mapping[str, str | bytes]) -> None:
        assert self._handed_in is not None
        await put_files(box, self.task, files, self._handed_in)

    # The environment.

    async def astep(self, action: Message) -> StepResult:
        self._turn_ends = time.perf_counter() + SLOW_CALLS * self.code_timeout
        return await super().astep(action)

    async def _acquire(self) -> None:
        await super()._acquire()
        self._turn_ends = time.perf_counter() + SLOW_CALLS * self.code_timeout  # for a reset_task that calls a tool

    async def _prepare(self, task: Mapping[str, Any]) -> None:
        await super()._prepare(task)
        if type(self).agrade is CodeEnv.agrade:
            self._verdict(task)
        submit_of(task)  # raises now if the row is wrong, before a box or a turn is spent on it
        files_of(task)
        log_near_columns(task)
        self.given_answer, self._handed_in = None, None
        self.metrics["code_errors"] = 0.0


DefaultEnv = CodeEnv
"""Another name of `CodeEnv`. The proposal that this project grew from spells it `DefaultEnv(code_executor=...)`."""
