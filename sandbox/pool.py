"""ExecutorPool: warm boxes that are lent to one episode after another, each as clean as new.

- `ExecutorPool`: the way in: `async with pool.lease() as box`.
- `pool_of`: the pool that belongs to an executor.

Who gets which box is decided in `pool_stock.py`, and what happens to a box in `pool_boxes.py`; a `Stock` lives from one
opening of the pool to its closing, in one event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any, Self

from .base import Executor, check_timeout
from .cancellation import finish
from .errors import PoolLoopError, SandboxClosedError
from .pool_boxes import StockOptions
from .pool_statistics import PoolStatistics, Tally
from .pool_stock import Stock

HOP_SECONDS = 0.5  # between two looks whether an event loop that is to close a pool still runs


class ExecutorPool:
    """Lends boxes that are made from a recipe, and cleans them in between.

        pool = ExecutorPool(DockerExecutor(), max_boxes=128)
        async with pool, pool.lease() as box:
            await box.python("6 * 7")

    A lease takes about a millisecond where an idle box is there. It waits its turn where all are leased, behind those
    that came before, and never gets a box that has not just shown a sign of life. A box is closed and replaced where
    it cannot be trusted to be clean: it ran out of memory, had to be killed, was tampered with, or was still running
    a call. The pool belongs to the event loop that it is opened in, until it is closed.

    Args:
        executor: how boxes are made; it is cloned and never started itself.
        max_boxes: boxes at a time, of all recipes together. Where there are fewer than episodes, episodes wait.
        warm: idle boxes to keep in advance, of `executor`, while the pool is in use.
        max_uses: leases that a box serves.
        reuse: False gives every lease a new box, for code that does not trust other code.
        lease_timeout: seconds that a lease waits for a box.
        idle: seconds after which an unused box is closed; a pool that nobody uses shrinks to nothing.

    Raises:
        ValueError: a number is out of range, or `executor` was started.
        TypeError: `executor` is no executor, or a time is no number.
    """

    def __init__(
        self,
        executor: Executor,
        *,
        max_boxes: int = 64,
        warm: int = 1,
        max_uses: int = 64,
        reuse: bool = True,
        lease_timeout: float = 300.0,
        idle: float = 300.0,
    ) -> None:
        self.recipe = check_recipe(executor)
        if max_boxes < 1:
            raise ValueError(f"max_boxes must be at least 1, got {max_boxes}")
        if not 0 <= warm <= max_boxes:
            raise ValueError(f"warm must be from 0 to max_boxes={max_boxes}, got {warm}")
        if max_uses < 1:
            raise ValueError(f"max_uses must be at least 1, got {max_uses}")
        self.lease_timeout = check_timeout(lease_timeout, "lease_timeout")
        self._options = StockOptions(
            max_boxes=max_boxes, warm=warm, max_uses=max_uses, reuse=reuse, idle=check_timeout(idle, "idle")
        )
        self._tally = Tally()
        self._stock: Stock | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closing: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(self, *exc_info: object) -> None:
        await self.close()

    @property
    def statistics(self) -> PoolStatistics:
        """What there is, and what was counted since the pool was made."""
        if self._stock is not None:
            return self._stock.statistics()
        return self._tally.picture(boxes=0, idle=0, leased=0, waiting=0, creating=0)

    async def open(self) -> Self:
        """Make the warm boxes; the first lease would do so too. On failure nothing is left behind.

        Raises:
            EngineError, ImageError, SandboxTimeoutError: a box could not be made.
            PoolLoopError: the pool is open in another event loop.
        """
        opened = self._stock is None
        stock = self._stock_here()
        try:
            await stock.warm_up()
        except BaseException:
            if opened:
                await finish(self.close())
            raise
        return self

    @contextlib.asynccontextmanager
    async def lease(
        self,
        executor: Executor | None = None,
        *,
        timeout: float | None = None,
        unused: bool = False,
        ahead: bool = False,
    ) -> AsyncIterator[Executor]:
        """Borrow a clean box for the length of an `async with`; the pool starts and closes it.

        Calls after that raise `SandboxClosedError`. A box that still runs a call then is closed.

        Args:
            executor: another recipe than the pool's own.
            timeout: seconds to wait for a box, instead of `lease_timeout`.
            unused: True for a box that no lease has had before, for code that must not meet what other code may have
                done to a box. It is made for this lease, so it takes as long as a new box.
            ahead: True to be served before the leases that do not say so, for whoever finishes what others wait for.

        Raises:
            SandboxTimeoutError: there was no box in time; the message says who has them.
            EngineError, ImageError: the box could not be made.
            SandboxClosedError: the pool was closed meanwhile.
            PoolLoopError: the pool is open in another event loop.
        """
        recipe = self.recipe if executor is None else check_recipe(executor)
        patience = self.lease_timeout if timeout is None else check_timeout(timeout)
        stock = self._stock_here()
        box, leased = await stock.acquire(recipe, patience, unused=unused, ahead=ahead)
        try:
            yield leased
        finally:
            stock.release(box)

    def _stock_here(self) -> Stock:
        """The stock of the running event loop; this opens the pool."""
        loop = asyncio.get_running_loop()
        if self._stock is None:
            self._stock, self._loop = Stock(self.recipe, self._options, self._tally), loop
        elif self._loop is not loop:
            raise PoolLoopError(
                "an ExecutorPool belongs to the event loop that it was opened in, and this is another: "
                "use one pool for each loop, or `await pool.close()` before the next loop begins"
            )
        elif self._closing is not None:
            raise SandboxClosedError("the pool is being closed")
        return self._stock

    async def close(self) -> None:
        """Close all boxes, leased ones too, and wait until they are gone; from any event loop, and more than once.

        The pool may be opened again afterwards, in another event loop too.
        """
        await finish(self._close())

    async def _close(self) -> None:
        loop = self._loop
        if loop is asyncio.get_running_loop():
            await self._close_here()
        elif loop is not None:
            if loop.is_running():
                await _hop(self._close_here, loop)
            if self._loop is loop and self._stock is not None:  # it has ended without closing the pool
                await self._stock.abandon()
                self._stock = self._loop = self._closing = None

    async def _close_here(self) -> None:
        if self._stock is None:
            return
        if self._closing is None:
            self._closing = asyncio.ensure_future(self._shut_down(self._stock))
        await asyncio.shield(self._closing)

    async def _shut_down(self, stock: Stock) -> None:
        await stock.shut_down()
        self._stock = self._loop = self._closing = None


def pool_of(executor: Executor) -> ExecutorPool:
    """The pool that belongs to a recipe: made with default arguments when it is first asked for, and kept on it."""
    if executor._pool is None:
        executor._pool = ExecutorPool(executor)
    return executor._pool


def check_recipe(executor: Executor) -> Executor:
    """The executor, if boxes can be cloned from it.

    Raises:
        TypeError: it is no executor.
        ValueError: it was started.
    """
    if not isinstance(executor, Executor):
        raise TypeError(f"a pool makes boxes from an Executor, such as DockerExecutor(), got {executor!r}")
    if executor.state != "new":
        raise ValueError("a pool makes its boxes itself: give it an executor that was not started")
    return executor


async def _hop(close: Callable[[], Coroutine[Any, Any, None]], loop: asyncio.AbstractEventLoop) -> None:
    """Run a coroutine function in another event loop, for as long as that runs."""
    there = asyncio.run_coroutine_threadsafe(close(), loop)
    here = asyncio.wrap_future(there)
    while not here.done() and loop.is_running():
        await asyncio.wait([here], timeout=HOP_SECONDS)
    if here.done() and not here.cancelled():
        here.result()
