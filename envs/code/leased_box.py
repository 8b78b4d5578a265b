"""An environment whose episodes have a box each, leased from a pool."""

from __future__ import annotations

import contextlib
import inspect
import time
from collections.abc import Hashable, Mapping, Sequence
from functools import cache
from types import MappingProxyType
from typing import Any

from ...sandbox.base import Executor
from ...sandbox.defaults.executor import default_executor
from ...sandbox.errors import EngineLoopError, PoolLoopError, SandboxClosedError, SandboxError
from ...sandbox.pool import ExecutorPool, pool_of
from ..core import ConfigurationError, Message
from ..tool_env.tool_env import ToolEnv
from ..tools.sources import ToolLike
from .files import files_of


@cache
def _own_executor() -> Executor:
    """Return the executor of all environments that were given none, so that their copies share one pool."""
    return default_executor()


class LeasedBoxEnv(ToolEnv):
    """The part of `CodeEnv` that leases boxes and gives them back."""

    task: Mapping[str, Any] = MappingProxyType({})  # this episode's row

    _pool: ExecutorPool
    _template: Executor  # of this episode's boxes
    _box: Executor | None = None
    _lease: contextlib.AsyncExitStack | None = None  # gives the box back
    _lease_seconds: float = 0.0

    def __init__(
        self, code_executor: Executor | ExecutorPool | None = None, tools: Sequence[ToolLike] = (), **options: Any
    ) -> None:
        """Make the environment; see `CodeEnv`."""
        misplaced = sorted(set(options) & set(inspect.signature(ExecutorPool).parameters))
        if misplaced:
            raise TypeError(
                f"{misplaced[0]} is an option of the pool: {type(self).__name__}(ExecutorPool(executor, "
                f"{misplaced[0]}=...))"
            )
        super().__init__(tools, **options)
        if code_executor is None:
            code_executor = _own_executor()
        if not isinstance(code_executor, Executor | ExecutorPool):
            raise TypeError(
                f"code_executor must be an executor such as DockerExecutor(), or an ExecutorPool, got {code_executor!r}"
            )
        self._pool = code_executor if isinstance(code_executor, ExecutorPool) else pool_of(code_executor)
        if not isinstance(self._pool.template, Executor):
            raise TypeError(
                f"the pool of a {type(self).__name__} lends executors, not {type(self._pool.template).__name__}"
            )
        self._executor = self._template = self._pool.template

    @property
    def box(self) -> Executor:
        """This episode's box; for tools, `reset_task` and `agrade`.

        Raises:
            SandboxClosedError: the episode has not begun or is over, or `fresh_box` has given the box back.
        """
        if self._box is None:
            raise SandboxClosedError(
                f"{type(self).__name__} has no box now: it has one from reset until the episode is graded, or until "
                f"fresh_box() is entered, which belongs into agrade()"
            )
        return self._box

    def box_for(self, task: Mapping[str, Any]) -> Executor:
        """Return the executor that the boxes of this task's episodes are made like; override it to choose another.

        By default the row's `image`, if it has one, replaces that of `code_executor`.
        """
        return self._executor if task.get("image") is None else self._executor.variant(image=task["image"])

    async def aprepare(self, tasks: Sequence[Mapping[str, Any]]) -> None:
        templates: dict[Hashable, Executor] = {}
        for task in tasks:
            with contextlib.suppress(Exception):  # the episode of this task says what is wrong with its row
                template = self.box_for(task)
                templates[template.key] = template
        if templates.keys() - {self._executor.key}:
            with contextlib.suppress(SandboxError):  # the first lease says what is wrong with the pool
                await self._pool.prepare(*templates.values(), wait=False)

    async def areset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[list[Message], dict[str, Any]]:
        await self._give_back()
        try:
            messages, info = await super().areset(seed=seed, options=options)
            await self._begin(messages)
        except BaseException:
            await self._give_back()
            raise
        # Only in the result of reset: the result of a step must depend on the seed and the actions alone.
        info["metrics"]["lease_seconds"] = self._lease_seconds
        return messages, info

    async def _begin(self, messages: list[Message]) -> None:
        """Make an episode ready whose first messages and tools are known."""

    async def aclose(self) -> None:
        self._over = True
        await self._give_back()
        await super().aclose()

    async def _prepare(self, task: Mapping[str, Any]) -> None:
        await super()._prepare(task)
        try:
            self._template = self.box_for(task)
        except (TypeError, ValueError) as error:
            raise ConfigurationError(f"there is no box for the row of image={task.get('image')!r}: {error}") from error

    async def _acquire(self) -> None:
        started = time.perf_counter()
        lease = contextlib.AsyncExitStack()
        self._box = await self._borrow(lease)
        self._lease, self._lease_seconds = lease, time.perf_counter() - started
        for path, data in files_of(self.task).items():
            await self.box.write_file(path, data)

    async def _borrow(
        self, lease: contextlib.AsyncExitStack, *, fresh: bool = False, priority: bool = False
    ) -> Executor:
        try:
            return await lease.enter_async_context(self._pool.lease(self._template, fresh=fresh, priority=priority))
        except EngineLoopError as error:
            raise ConfigurationError(str(error)) from error
        except PoolLoopError as error:
            raise ConfigurationError(
                "the pool is open in another event loop than that in which the episodes are played: do not open it "
                "yourself before play() or train(), the first episode does; or close it with `await pool.close()`"
            ) from error

    async def _give_back(self) -> None:
        """End the lease, if there is one: exactly once.

        The pool ends a lease without waiting. So no cancellation can come in between, and no other lease can come
        between this and the one that `fresh_box` asks for.
        """
        lease, self._lease, self._box = self._lease, None, None
        if lease is not None:
            await lease.aclose()
