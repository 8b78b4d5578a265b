"""ExecutorPool: warm boxes that are lent to one episode after another, each as clean as new.

`scheduler.py` decides which lease gets which box, and `boxes.py` makes, cleans and closes the boxes. A `Scheduler`
lives from the opening of the pool to its closing.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import warnings
import weakref
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any, Self, TypeVar, overload

from ..base import Executor
from ..box import Box
from ..cancellation import finish
from ..errors import PoolLoopError, SandboxClosedError
from ..keywords import checks_keywords
from ..lifecycle import Sandbox
from ..limits import check_timeout, count_of
from .scheduler import Scheduler
from .states import PoolOptions, PoolStatistics

Kind = TypeVar("Kind", bound=Sandbox)

_DROPPED = "an ExecutorPool was dropped while it was open: use `async with pool`, or `await pool.close()`"

_pools: weakref.WeakKeyDictionary[Sandbox, ExecutorPool] = weakref.WeakKeyDictionary()  # see `pool_of`


@checks_keywords()
class ExecutorPool:
    """Lends boxes that are clones of a template, and cleans them in between.

        pool = ExecutorPool(DockerExecutor(), max_boxes=128)
        async with pool, pool.lease() as box:
            await box.python("6 * 7")

    A lease takes about a millisecond if a box is idle. Otherwise it waits for its turn: first come, first served, but a
    box that comes free may first serve leases of its own image that stand near the front. A lease whose image is being
    fetched or built takes no turn. A box must answer a ping before it is lent. A box that may not be clean is closed
    and replaced: one that ran out of memory, had to be killed, was tampered with, or still runs a call.

    The pool belongs to the event loop that first leases from it, until it is closed. `asyncio.run` closes the pool
    when its loop ends. A pool that is dropped while it is open is closed too if its loop runs, with a
    `ResourceWarning`.

    Args:
        executor: the template, an `Executor` or a `Box`; it is cloned and never started itself. A used box of a `Box`
            is replaced, not reset.
        max_boxes: the most boxes at a time, of all templates together. Further leases wait.
        warm: idle boxes like `executor` to keep in advance while the pool is in use.
        max_uses: the most leases that a box serves.
        reuse: False gives every lease a new box, for code of people who do not trust one another.
        lease_timeout: seconds that a lease waits for a box.
        idle: seconds after which an idle box is closed. An unused pool has no boxes in the end.

    Raises:
        ValueError: a number is out of range, or `executor` was started.
        TypeError: `executor` is not an executor, or an argument is not a number.
    """

    def __init__(
        self,
        executor: Sandbox,
        *,
        max_boxes: int = 64,
        warm: int = 1,
        max_uses: int = 64,
        reuse: bool = True,
        lease_timeout: float = 300.0,
        idle: float = 300.0,
    ) -> None:
        self.template = check_template(executor)
        if count_of(max_boxes, "max_boxes") < 1:
            raise ValueError(f"max_boxes must be at least 1, got {max_boxes}")
        if not 0 <= count_of(warm, "warm") <= max_boxes:
            raise ValueError(f"warm must be from 0 to max_boxes={max_boxes}, got {warm}")
        if count_of(max_uses, "max_uses") < 1:
            raise ValueError(f"max_uses must be at least 1, got {max_uses}")
        self.lease_timeout = check_timeout(lease_timeout, "lease_timeout")
        self._options = PoolOptions(
            max_boxes=max_boxes, warm=warm, max_uses=max_uses, reuse=reuse, idle=check_timeout(idle, "idle")
        )
        self._counters = PoolStatistics()
        self._scheduler: Scheduler | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._life: AsyncGenerator[None, None] | None = None  # closes the boxes at its end
        self._dropped: weakref.finalize[[str, type[Warning]], ExecutorPool] | None = None  # warns
        self._is_users = True  # False for a pool that nobody but its executor knows, and that goes with it

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(self, *exc_info: object) -> None:
        await self.close()

    @property
    def statistics(self) -> PoolStatistics:
        """The numbers of this moment, and the counts since the pool was made."""
        numbers = copy.deepcopy(self._counters)
        if self._scheduler is not None:
            self._scheduler.fill_in(numbers)
        return numbers

    async def open(self) -> Self:
        """Make the warm boxes, as the first lease would. On failure nothing is left behind.

        Raises:
            EngineError, ImageError, SandboxTimeoutError: a box could not be made.
            PoolLoopError: the pool is open in another event loop.
        """
        opened = self._scheduler is None
        scheduler = await self._scheduler_here()
        try:
            await scheduler.warm_up()
        except BaseException:
            if opened:
                await self.close()
            raise
        return self

    async def prepare(self, *executors: Sandbox, wait: bool = True) -> None:
        """Fetch or build the images of leases to come, while other leases go on. A lease does so itself otherwise.

        It opens the pool.

        Args:
            executors: the templates of these leases.
            wait: False to return at once; the pool goes on, and logs a failure.

        Raises:
            EngineError, ImageError: one of them could not be prepared; the others are.
            SandboxClosedError: the pool was closed meanwhile.
            PoolLoopError: the pool is open in another event loop.
        """
        scheduler = await self._scheduler_here()
        await scheduler.preparations.prepare(map(check_template, executors), wait=wait)

    @overload
    def lease(
        self, executor: Box, *, timeout: float | None = None, fresh: bool = False, priority: bool = False
    ) -> AbstractAsyncContextManager[Box]: ...

    @overload
    def lease(
        self,
        executor: Executor | None = None,
        *,
        timeout: float | None = None,
        fresh: bool = False,
        priority: bool = False,
    ) -> AbstractAsyncContextManager[Executor]: ...

    @contextlib.asynccontextmanager
    async def lease(
        self,
        executor: Sandbox | None = None,
        *,
        timeout: float | None = None,
        fresh: bool = False,
        priority: bool = False,
    ) -> AsyncIterator[Sandbox]:
        """Borrow a clean box for the length of an `async with`; the pool starts and closes it.

        After the lease, calls raise `SandboxClosedError`. A box that still runs a call then is closed.

        Args:
            executor: another template than the pool's own; name the template of a pool of boxes, so that type checkers
                know what is lent.
            timeout: seconds to wait for a box, instead of `lease_timeout`.
            fresh: True for a box that no lease has had, for code that must not depend on anything that other code did.
                It is made for the lease.
            priority: True to be served before leases without priority, for code whose end frees a box or an episode.

        Raises:
            SandboxTimeoutError: no box was free in time; the message says how many are leased and for how long.
            EngineError, ImageError: the box could not be made.
            SandboxLostError, SandboxFileError: the template's files could not be written.
            SandboxClosedError: the pool was closed while the lease waited.
            PoolLoopError: the pool is open in another event loop.
        """
        loop = asyncio.get_running_loop()
        template = self.template if executor is None else check_template(executor)
        patience = self.lease_timeout if timeout is None else check_timeout(timeout)
        scheduler = await self._scheduler_here()
        box, leased = await scheduler.acquire(template, patience, fresh=fresh, priority=priority)
        try:
            await leased.begin()
            yield leased
        finally:
            if asyncio.get_running_loop() is loop:
                scheduler.release(box)
            else:  # a synchronous `close` ends the lease from the loop that runs coroutines for such methods
                loop.call_soon_threadsafe(scheduler.release, box)

    async def _scheduler_here(self) -> Scheduler:
        """Return the scheduler, which must be the running event loop's. Opens the pool."""
        loop = asyncio.get_running_loop()
        if self._scheduler is None:
            self._scheduler, self._loop = Scheduler(self.template, self._options, self._counters), loop
            self._life = _until_closed(self._scheduler, weakref.WeakMethod(self._forget))
            if self._is_users:
                self._dropped = weakref.finalize(self, warnings.warn, _DROPPED, ResourceWarning)
                self._dropped.atexit = False
            await anext(self._life)  # this returns at once; from now on the loop knows the generator
        elif self._loop is not loop:
            raise PoolLoopError(
                "an ExecutorPool belongs to the event loop that first leased from it, and this is another loop: "
                "use one pool for each loop, or `await pool.close()` before the next loop begins"
            )
        elif self._scheduler.closing:
            raise SandboxClosedError("the pool is being closed")
        return self._scheduler

    async def close(self) -> None:
        """Close all boxes, leased ones too, and wait until they are gone; the pool may be opened again afterwards.

        This may be called more than once, and from another event loop while the pool's own runs. A program that is not
        asynchronous plays its episodes in a background loop, and closes the pool with `asyncio.run(pool.close())`.

        Raises:
            PoolLoopError: the pool's event loop does not run any more, so its boxes cannot be closed. They end with
                their connections, or with this process.
        """
        loop = self._loop
        if loop is None or loop is asyncio.get_running_loop():
            await self._end()
        elif loop.is_running():
            await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(self._end(), loop))
        else:
            self._forget()
            raise PoolLoopError(
                "the event loop of this pool has ended without closing it: close a pool in its own loop, "
                "or run that loop with asyncio.run, which does so"
            )

    async def _end(self) -> None:
        scheduler, life = self._scheduler, self._life
        if scheduler is not None and life is not None:
            try:
                await finish(scheduler.shut_down())
            finally:
                if scheduler.closed:  # else the loop is at its end, has cancelled even this, and ends `life` next
                    with contextlib.suppress(RuntimeError):  # the loop is ending it already
                        await life.aclose()

    def _forget(self) -> None:
        self._scheduler = self._loop = self._life = None
        if self._dropped is not None:
            self._dropped.detach()


async def _until_closed(
    scheduler: Scheduler, forget: weakref.WeakMethod[Callable[[], None]]
) -> AsyncGenerator[None, None]:
    """Close the boxes, unless `close` has done so, when this generator is ended: by `close`, or by the event loop.

    A loop ends a generator that has been dropped, as with its pool. `asyncio.run` ends all of them at its own end.
    """
    try:
        yield
    finally:
        try:
            if not scheduler.closed:
                await finish(scheduler.shut_down())
        finally:
            if (method := forget()) is not None:
                method()


def pool_of(executor: Sandbox, **options: Any) -> ExecutorPool:
    """Return the pool that belongs to an executor. The first call makes it, with these options of `ExecutorPool`."""
    if executor not in _pools:
        # From a clone: a pool of `executor` itself would keep its key in this table alive.
        _pools[executor] = pool = ExecutorPool(check_template(executor).clone(), **options)
        pool._is_users = False
    return _pools[executor]


def check_template(executor: Kind) -> Kind:
    """Return the executor. Raises TypeError if it is not one, and ValueError if it was started."""
    if not isinstance(executor, Sandbox):
        raise TypeError(f"a pool makes boxes from an Executor or a Box, such as DockerExecutor(), got {executor!r}")
    if executor.state != "new":
        raise ValueError("a pool makes its boxes itself: give it an executor that was not started")
    return executor
