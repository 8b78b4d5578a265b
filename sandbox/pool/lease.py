"""LeasedExecutor: a box of a pool for as long as its lease lasts, and not a call longer."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Hashable, Iterator

from .base import DEFAULT_TIMEOUT, ExecutionResult, Executor, FileEntry, State
from .errors import SandboxClosedError


class LeasedExecutor(Executor):
    """Passes every call on to a box until the lease ends; a task that outlives the lease reaches nobody's box.

    Args:
        box: the executor that a pool lends; the pool starts and closes it.
    """

    def __init__(self, box: Executor) -> None:
        self._box = box
        self._over: str | None = None  # why there are no more calls
        self._calls = 0  # in flight
        self._resets: set[asyncio.Future[None]] = set()

    def end(self, reason: str) -> None:
        """Refuse all further calls, with a reason."""
        self._over = self._over or reason

    @property
    def busy(self) -> bool:
        """Calls have begun and not ended."""
        return self._calls > 0

    async def settle(self) -> None:
        """Call off the resets in flight, which might start a new box beside the one that is about to be closed."""
        for reset in self._resets:
            reset.cancel()
        if self._resets:
            await asyncio.wait(set(self._resets))

    @contextlib.contextmanager
    def _call(self) -> Iterator[Executor]:
        if self._over is not None:
            raise SandboxClosedError(self._over)
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

    async def python(self, code: str, *, timeout: float = DEFAULT_TIMEOUT) -> ExecutionResult:
        with self._call() as box:
            return await box.python(code, timeout=timeout)

    async def bash(self, command: str, *, timeout: float = DEFAULT_TIMEOUT) -> ExecutionResult:
        with self._call() as box:
            return await box.bash(command, timeout=timeout)

    async def write_file(self, path: str, data: bytes | str) -> None:
        with self._call() as box:
            await box.write_file(path, data)

    async def read_file(self, path: str) -> bytes:
        with self._call() as box:
            return await box.read_file(path)

    async def list_files(self, path: str = ".", *, recursive: bool = False) -> list[FileEntry]:
        with self._call() as box:
            return await box.list_files(path, recursive=recursive)

    async def ping(self, *, timeout: float = 2.0) -> None:
        with self._call() as box:
            await box.ping(timeout=timeout)

    async def reset(self) -> None:
        with self._call() as box:
            reset = asyncio.ensure_future(box.reset())
            self._resets.add(reset)
            try:
                await reset
            except asyncio.CancelledError:
                task = asyncio.current_task()
                if self._over is None or task is None or task.cancelling():
                    raise
                raise SandboxClosedError(self._over) from None  # called off by `settle`, and not this task
            finally:
                self._resets.discard(reset)

    @property
    def retire_reason(self) -> str | None:
        return self._over or self._box.retire_reason

    @property
    def lifetime(self) -> float:
        return self._box.lifetime

    @property
    def creators(self) -> int:
        return self._box.creators

    @property
    def state(self) -> State:
        return "open" if self._over is None else "closed"

    @property
    def key(self) -> Hashable:
        return self._box.key

    def clone(self) -> Executor:  # of the box: a clone is no lease
        return self._box.clone()
