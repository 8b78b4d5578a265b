"""A leased box of a pool, usable until its lease ends: `LeasedExecutor` or `LeasedBox`."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Generic, TypeVar, cast

from ..base import Executor
from ..box import Box, Process
from ..box_image import BoxImage
from ..errors import PoolLoopError, SandboxClosedError
from ..lifecycle import RetireReason, Sandbox, State

Kind = TypeVar("Kind", bound=Sandbox)
Method = TypeVar("Method", bound=Callable[..., Any])


def _passed_on(method: Method) -> Method:
    """Return the method of a lease that calls this method of its box."""

    @functools.wraps(method, updated=())  # without the mark of an abstract method
    async def call(lease: Lease[Any], *arguments: Any, **options: Any) -> Any:
        with lease._call() as box:
            return await getattr(box, method.__name__)(*arguments, **options)

    return cast(Method, call)


class Lease(Sandbox, Generic[Kind]):
    """Passes calls on to a box until its lease ends. A task that outlives the lease cannot reach the box any more.

    Args:
        box: the box that a pool lends; the pool starts and closes it.
    """

    def __init__(self, box: Kind) -> None:
        self._box = box
        self.limits = box.limits
        self._loop = asyncio.get_running_loop()
        self._over: str | None = None  # why further calls are refused
        self._calls = 0  # in flight
        self._resets: set[asyncio.Future[None]] = set()

    async def begin(self) -> None:
        """Make the box ready for its lease."""

    def end(self, reason: str) -> None:
        """Refuse further calls; the first reason stays."""
        self._over = self._over or reason

    @property
    def busy(self) -> bool:
        """Whether a call is in flight."""
        return self._calls > 0

    async def settle(self) -> None:
        """Cancel the resets in flight, which could start a new box after the pool has closed this one."""
        for reset in self._resets:
            reset.cancel()
        if self._resets:
            await asyncio.wait(set(self._resets))

    @contextlib.contextmanager
    def _call(self) -> Iterator[Kind]:
        if self._over is not None:
            raise SandboxClosedError(self._over)
        if asyncio.get_running_loop() is not self._loop:
            raise PoolLoopError(
                "this box was leased in another event loop: a synchronous method, such as step(), was called there; "
                "write its asynchronous form, such as astep()"
            )
        self._calls += 1
        try:
            yield self._box
        finally:
            self._calls -= 1

    async def start(self) -> None:
        raise SandboxClosedError(self._over or "a leased box is started already: use it as it is")

    async def close(self) -> None:
        if self._over is None:
            raise SandboxClosedError("a leased box is closed by its pool: leave the `async with pool.lease()` instead")

    ping = _passed_on(Sandbox.ping)

    async def reset(self) -> None:
        with self._call() as box:
            reset = asyncio.ensure_future(self._reset(box))
            self._resets.add(reset)
            try:
                await reset
            except asyncio.CancelledError:
                task = asyncio.current_task()
                if self._over is None or task is None or task.cancelling():
                    raise
                raise SandboxClosedError(self._over) from None  # `settle` cancelled the reset, and nobody this task
            finally:
                self._resets.discard(reset)

    async def _reset(self, box: Kind) -> None:
        await box.reset()

    @property
    def retire_reason(self) -> RetireReason | None:
        return RetireReason("lease over", self._over) if self._over else self._box.retire_reason

    @property
    def state(self) -> State:
        return "open" if self._over is None else "closed"

    @property
    def key(self) -> Hashable:
        return self._box.key


class LeasedExecutor(Lease[Executor], Executor):
    """See `Lease`. The workspace holds `files` after `begin` and `reset`; the executor of the pool has no files."""

    def __init__(self, box: Executor, files: Mapping[str, bytes]) -> None:
        super().__init__(box)
        self._files = files
        self._offer: tuple[str, Callable[[bytes], Awaitable[bytes]]] | None = None

    async def begin(self) -> None:
        for path, data in self._files.items():
            await self.write_file(path, data)

    python = _passed_on(Executor.python)
    bash = _passed_on(Executor.bash)
    write_file = _passed_on(Executor.write_file)
    read_file = _passed_on(Executor.read_file)
    list_files = _passed_on(Executor.list_files)

    async def offer(self, functions: str, answer: Callable[[bytes], Awaitable[bytes]]) -> None:
        with self._call() as box:
            await box.offer(functions, answer)
        self._offer = functions, answer

    async def _reset(self, box: Executor) -> None:
        await box.reset()
        await self.begin()
        if self._offer is not None:
            await self.offer(*self._offer)

    def clone(self) -> Executor:  # of the box: a clone is not leased
        clone = self._box.clone()
        clone.files = self._files
        return clone


class LeasedBox(Lease[Box], Box):
    """See `Lease`."""

    def __init__(self, box: Box) -> None:
        super().__init__(box)
        self.capabilities = box.capabilities

    exec = _passed_on(Box.exec)
    write_file = _passed_on(Box.write_file)
    read_file = _passed_on(Box.read_file)
    copy_in = _passed_on(Box.copy_in)
    copy_out = _passed_on(Box.copy_out)

    @contextlib.asynccontextmanager
    async def _within(self, enter: Callable[[Box], AbstractAsyncContextManager[Any]]) -> AsyncIterator[Any]:
        with self._call() as box:
            async with enter(box) as entered:
                yield entered

    def open(self, command: str | Sequence[str], **options: Any) -> AbstractAsyncContextManager[Process]:
        return self._within(lambda box: box.open(command, **options))

    def snapshot(self) -> AbstractAsyncContextManager[BoxImage]:
        return self._within(lambda box: box.snapshot())

    def variant(self, **options: Any) -> Box:  # of the box: a variant is not leased
        return self._box.variant(**options)


def lease_of(box: Sandbox, template: Sandbox) -> LeasedExecutor | LeasedBox:
    """Return the lease of a pool's box for a user of the template."""
    if isinstance(box, Box):
        return LeasedBox(box)
    assert isinstance(box, Executor) and isinstance(template, Executor)  # noqa: PT018
    return LeasedExecutor(box, template.files)
