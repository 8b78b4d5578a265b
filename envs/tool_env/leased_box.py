"""An environment whose episodes have a box each, leased from a pool."""

from __future__ import annotations

import contextlib
import inspect
import time
from collections.abc import Hashable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Generic, TypeVar, cast

from ...sandbox.base import Executor
from ...sandbox.box import Box
from ...sandbox.errors import EngineLoopError, PoolLoopError, SandboxClosedError, SandboxError
from ...sandbox.pool import ExecutorPool, pool_of
from ..core import ConfigurationError, Message
from ..tools.sources import ToolLike
from .tool_env import ToolEnv

Leased = TypeVar("Leased", Executor, Box)


class LeasedBoxEnv(ToolEnv, Generic[Leased]):
    """The part of `CodeEnv` and `TaskEnv` that leases boxes and gives them back."""

    task: Mapping[str, Any] = MappingProxyType({})  # this episode's row

    _pool: ExecutorPool
    _prototype: Leased
    _template: Leased  # of this episode's boxes
    _box: Leased | None = None
    _lease: contextlib.AsyncExitStack  # gives the box back, and before that ends its programs
    _lease_seconds: float = 0.0

    def __init__(
        self, lender: Any, tools: Sequence[ToolLike], kind: type[Leased], what: str, size: int | None = None, /,
        **options: Any,
    ) -> None:  # fmt: skip
        """Make the environment.

        Args:
            lender: A box of this kind that is not started, or a pool of them.
            tools, options: Those of `ToolEnv`.
            kind: The class of the boxes.
            what: The argument that has the lender, and its kind, for errors.
            size: That of a pool that is made; None for the pool's default.
        """
        if misplaced := sorted(set(options) & set(inspect.signature(ExecutorPool).parameters)):
            pool = f"{type(self).__name__}(ExecutorPool(..., {misplaced[0]}=...))"
            raise TypeError(f"{misplaced[0]} is an option of the pool: {pool}")
        super().__init__(tools, **options)
        if not isinstance(lender, kind | ExecutorPool):
            raise TypeError(f"{what}, or an ExecutorPool, got {lender!r:.200}")
        how = {} if size is None else {"max_boxes": size, "warm": 0}
        self._pool = lender if isinstance(lender, ExecutorPool) else pool_of(lender, **how)
        if not isinstance(self._pool.template, kind):
            wrong = type(self._pool.template).__name__
            raise TypeError(f"the pool of a {type(self).__name__} lends instances of {kind.__name__}, not {wrong}")
        self._prototype = self._template = cast(Leased, self._pool.template)
        self._lease = contextlib.AsyncExitStack()

    @property
    def box(self) -> Leased:
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

    def box_for(self, task: Mapping[str, Any]) -> Leased:
        """Return the box, not started, that this task's boxes are made like; override it to choose another."""
        return self._prototype

    async def aprepare(self, tasks: Sequence[Mapping[str, Any]]) -> None:
        templates: dict[Hashable, Leased] = {}
        for task in tasks:
            with contextlib.suppress(Exception):  # the episode of this task says what is wrong with its row
                template = self.box_for(task)
                templates[template.key] = template
        if templates.keys() - {self._prototype.key}:
            with contextlib.suppress(SandboxError):  # the first lease says what is wrong with the pool
                await self._pool.prepare(*templates.values(), wait=False)

    async def areset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[list[Message], dict[str, Any]]:
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

    async def _prepare(self, task: Mapping[str, Any]) -> None:
        await super()._prepare(task)
        try:
            self.task, self._template = task, self.box_for(task)
        except (TypeError, ValueError) as error:
            raise ConfigurationError(f"there is no box for the row {task!r:.200}: {error}") from error

    async def _acquire(self) -> None:
        started = time.perf_counter()
        self._opened.push_async_callback(self._give_back)
        self._box = await self._borrow(self._lease)
        self._lease_seconds = time.perf_counter() - started

    async def _borrow(self, lease: contextlib.AsyncExitStack, *, fresh: bool = False, priority: bool = False) -> Leased:
        try:
            leased = self._pool.lease(cast(Any, self._template), fresh=fresh, priority=priority)
            return cast(Leased, await lease.enter_async_context(leased))
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
        self._box = None
        await self._lease.aclose()
