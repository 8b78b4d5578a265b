"""CodeEnv: an environment for agents that write code, which runs in a sandbox."""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any

from ..sandbox.base import ExecutionResult, Executor, check_timeout, size_of
from ..sandbox.errors import EngineLoopError, PoolLoopError, SandboxClosedError
from ..sandbox.pool import ExecutorPool, pool_of
from ..sandbox.supervised import SupervisedExecutor
from .calling import breaking
from .code_files import files_of, not_handed_in, submit_of
from .code_grading import Check, require_verdict, same_answer
from .code_results import Language, describe
from .core import BrokenEnvironmentError, ConfigurationError, Message, StepResult
from .threads import being_cancelled, call_function
from .tool_env import ToolEnv
from .tools import Tool, tool


class CodeEnv(ToolEnv):
    """An environment with a box: the model runs Python and Bash in it, and ends the episode with `final_answer`.

        environment = CodeEnv(DockerExecutor(limits=Limits(memory="256m", workspace="64m", tmp="32m")))
        rows = [{"prompt": "How many lines has data.csv?", "files": {"data.csv": "a\\nb\\n"}, "answer": 2}]

    A row may have, besides what a `ToolEnv` reads:

    - `files`: what the workspace holds before the first turn: text or bytes by relative path.
    - `answer`: the right final answer; a number is compared as a number, exactly.
    - `submit` and `checks`: files that the agent hands in, by relative path, and hidden checks of them (see `grade`).

    Each episode has a box of its own, leased from the pool until the episode ends. Add tools as in any `ToolEnv`; an
    asynchronous one may use the box, `self.box`. A box that is lost, or that cannot be had, is never the model's fault:
    the episode fails, and has no reward.
    """

    code_timeout: float = 30.0

    _pool: ExecutorPool
    _task: Mapping[str, Any]
    _box: Executor | None = None
    _lease: contextlib.AsyncExitStack | None = None  # gives the box back
    _handed_in: dict[str, bytes] | None = None  # read from the agent's box before that was given back
    _lease_seconds: float = 0.0

    def __init__(
        self,
        code_executor: Executor | ExecutorPool,
        tools: Sequence[Callable[..., Any] | Tool] = (),
        *,
        code_timeout: float = code_timeout,
        **options: Any,
    ) -> None:
        """Make the environment.

        Args:
            code_executor: An executor that is not started: boxes are made like it, and all copies of the environment
                lease them from one pool, `pool_of(executor)`. Or a pool, to choose its size or to share it.
            tools: Plain functions as tools, beside the methods marked with `@tool`.
            code_timeout: Seconds for one call of `python` or `bash`, and for one hidden check.
            options: The other options of `ToolEnv`; `tool_timeout` is for the tools that you add.

        Raises:
            TypeError: `code_executor` is neither, `code_timeout` is no number, or an option of `ToolEnv` is wrong.
            ValueError: the executor is started already, or an option is out of its range.
        """
        super().__init__(tools, **options)
        if not isinstance(code_executor, Executor | ExecutorPool):
            raise TypeError(
                f"code_executor must be an executor such as DockerExecutor(), or an ExecutorPool, got {code_executor!r}"
            )
        self._pool = code_executor if isinstance(code_executor, ExecutorPool) else pool_of(code_executor)
        self.code_timeout = self.min_step_seconds = check_timeout(code_timeout, "code_timeout")

    @property
    def box(self) -> Executor:
        """This episode's box; for tools, `reset_task` and `grade`.

        Raises:
            SandboxClosedError: there is none now: the episode has not begun or is over, or `fresh_box` took its place.
        """
        if self._box is None:
            raise SandboxClosedError(
                f"{type(self).__name__} has no box now: it has one from reset until the episode ends, or until "
                f"fresh_box() is entered, which belongs into grade() or a final tool"
            )
        return self._box

    # The tools. The box keeps their time itself, and calls of one turn wait for one another.

    @tool(timeout=math.inf)
    async def python(self, code: str) -> str:
        """Run Python code in a session that lasts: variables, functions and imports stay for the next call.

        The result is what the code prints, then the value of its last expression, then any error. Code that takes too
        long is stopped.

        Args:
            code: The Python code to run.
        """
        return self._told(await self.box.python(code, timeout=self.code_timeout), "python")

    @tool(timeout=math.inf)
    async def bash(self, command: str) -> str:
        """Run a command in a Bash session that lasts: the working directory and variables stay for the next call.

        The result is what the command prints, and its exit code if that is not 0. It sees the same files as Python. A
        command that takes too long is stopped; it cannot ask for input.

        Args:
            command: The command, or several lines of them.
        """
        return self._told(await self.box.bash(command, timeout=self.code_timeout), "bash")

    @tool(final=True, timeout=math.inf)
    async def final_answer(self, answer: str) -> str:
        """Give the final answer, which ends the task.

        Args:
            answer: The final answer. If the task asks for files, a word on what they do is enough.
        """
        self.reward = reward = await self._graded(answer)
        self.metrics["success"] = float(reward >= 1.0)
        return f"The task is over; the reward is {reward:g}."

    def _told(self, result: ExecutionResult, language: Language) -> str:
        if not result.ok:
            self.metrics["code_errors"] = self.metrics.get("code_errors", 0.0) + 1.0
        return describe(result, language)

    # Grading.

    async def grade(self, task: Mapping[str, Any], answer: str) -> float:
        """The reward of a final answer; override it for tasks that are graded in another way.

        With `checks` in the row, each of them runs in a box that the agent never touched, with the row's files and
        what was handed in, in sessions and a workspace of its own; the reward is 1 if all pass, else 0, and the metric
        `checks_passed` says how many did. A check is one of

            {"run": "from solution import add\\nadd(2, 3)", "value": "5"}  # repr() of the last expression
            {"run": "import solution\\nsolution.main()", "stdout": "5\\n"}
            {"bash": "python solution.py 2 3", "stdout": "5\\n", "exit_code": 0}

        Only the code enters the box; what is expected is compared outside. Without `checks` the answer is compared
        with the row's `answer`. An override may be synchronous; it runs in a thread then. Whatever it raises makes the
        episode fail.

        Raises:
            ConfigurationError: the row says nothing of what is right, or its checks are wrong.
        """
        checks = self._verdict(task)
        if not checks:
            return float(same_answer(answer, task["answer"]))
        passed = 0
        async with self.fresh_box(task) as box:
            for place, check in enumerate(checks):
                if place:
                    await box.reset()
                    await self._fill(box, task)
                passed += await check.passes(box, self.code_timeout)
        self.metrics["checks_passed"] = passed / len(checks)
        return float(passed == len(checks))

    @contextlib.asynccontextmanager
    async def fresh_box(self, task: Mapping[str, Any]) -> AsyncIterator[Executor]:
        """A box that no agent ever touched, for `grade` or a final tool: it holds the row's files, and those that the
        row's `submit` names, with what the agent left in them. One that is missing, or is a link or no regular file,
        is not there. All are handed in as data, without their mode.

        The agent's own box is given back first, for good: were it kept, episodes that hold all boxes of a pool would
        wait for one another for ever. So read what you need of `self.box` before. An episode that goes on to use it
        fails.
        """
        if self._handed_in is None:
            self._handed_in = await self._hand_in(task, self.box)
        started = time.perf_counter()
        await self._give_back()
        async with contextlib.AsyncExitStack() as lease:
            box = await self._borrow(lease, unused=True, ahead=True)  # ahead: others wait for this episode to end
            waited = time.perf_counter() - started
            self.metrics["grading_lease_seconds"] = self.metrics.get("grading_lease_seconds", 0.0) + waited
            await self._fill(box, task)
            yield box

    def _verdict(self, task: Mapping[str, Any]) -> tuple[Check, ...]:
        """The row's checks, or none if there is an answer; anything else is refused."""
        recipe = self._pool.recipe
        kept = size_of(recipe.limits.max_output) if isinstance(recipe, SupervisedExecutor) else None
        return require_verdict(task, type(self).__name__, max_output=kept)

    async def _graded(self, answer: str) -> float:
        try:
            return float(await call_function(self.grade, self._task, answer))
        except GeneratorExit:
            raise
        except BaseException as error:  # SystemExit of a grader is no verdict either
            if breaking(error) is not None or (isinstance(error, asyncio.CancelledError) and being_cancelled()):
                raise
            problem = f"{type(self).__name__}.grade() raised {type(error).__name__}: {error}"
            raise BrokenEnvironmentError(problem) from error

    async def _hand_in(self, task: Mapping[str, Any], box: Executor) -> dict[str, bytes]:
        handed_in: dict[str, bytes] = {}
        for path in submit_of(task):
            with not_handed_in():  # missing, or a trap such as a link
                handed_in[path] = await box.read_file(path)
        return handed_in

    async def _fill(self, box: Executor, task: Mapping[str, Any]) -> None:
        """Write the row's files and what was handed in; of a file that is to be handed in, that version alone."""
        assert self._handed_in is not None
        submit = submit_of(task)
        given = {path: data for path, data in files_of(task).items() if path not in submit}
        for path, data in given.items():
            await box.write_file(path, data)
        for path, data in self._handed_in.items():
            with not_handed_in():  # it does not fit beside the row's files
                await box.write_file(path, data)

    # The environment.

    async def areset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[list[Message], dict[str, Any]]:
        await self._give_back()
        try:
            messages, info = await super().areset(seed=seed, options=options)
        except BaseException:
            await self._give_back()
            raise
        # Of the reset alone: a step's result must depend on nothing but the seed and the actions.
        info["metrics"]["lease_seconds"] = self._lease_seconds
        return messages, info

    async def astep(self, action: Message) -> StepResult:
        result = await super().astep(action)
        if result.terminated:
            await self._give_back()
        return result

    async def aclose(self) -> None:
        self._over = True
        await self._give_back()
        await super().aclose()

    async def _prepare(self, task: Mapping[str, Any]) -> None:
        if type(self).grade is CodeEnv.grade:
            self._verdict(task)
        submit_of(task)  # for its errors: a mistake in a row is met before any box or turn is spent on it
        files = files_of(task)
        self._task, self._handed_in = task, None
        self.metrics.update(success=0.0, code_errors=0.0)
        if task.get("checks") is not None:
            self.metrics["checks_passed"] = 0.0
        await self._take_box()
        for path, data in files.items():
            await self.box.write_file(path, data)

    async def _take_box(self) -> None:
        started = time.perf_counter()
        lease = contextlib.AsyncExitStack()
        self._box = await self._borrow(lease)
        self._lease = lease
        self._lease_seconds = time.perf_counter() - started

    async def _give_back(self) -> None:
        """End the lease, if there is one: exactly once.

        A pool waits for nothing when a lease ends, so no cancellation can come in between, and neither can another
        lease between this and the one that `fresh_box` asks for.
        """
        lease, self._lease, self._box = self._lease, None, None
        if lease is not None:
            await lease.aclose()

    async def _borrow(self, lease: contextlib.AsyncExitStack, *, unused: bool = False, ahead: bool = False) -> Executor:
        try:
            return await lease.enter_async_context(self._pool.lease(unused=unused, ahead=ahead))
        except EngineLoopError as error:
            raise ConfigurationError(str(error)) from error
        except PoolLoopError as error:
            raise ConfigurationError(
                "the pool is open in another event loop than that in which the episodes are played: do not open it "
                "yourself before play() or train(), the first episode does; or close it with `await pool.close()`"
            ) from error


DefaultEnv = CodeEnv
"""The name that the original proposal of this project gave to the environment with a code executor."""
