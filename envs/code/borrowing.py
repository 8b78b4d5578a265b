"""How a `CodeEnv` borrows a box from its pool."""

from __future__ import annotations

import contextlib

from ...sandbox.base import Executor
from ...sandbox.errors import EngineLoopError, PoolLoopError
from ...sandbox.pool import ExecutorPool
from ..core import ConfigurationError


async def borrow_box(
    pool: ExecutorPool, lease: contextlib.AsyncExitStack, *, fresh: bool = False, priority: bool = False
) -> Executor:
    """Return a box of the pool, which the end of the lease gives back."""
    try:
        return await lease.enter_async_context(pool.lease(fresh=fresh, priority=priority))
    except EngineLoopError as error:
        raise ConfigurationError(str(error)) from error
    except PoolLoopError as error:
        raise ConfigurationError(
            "the pool is open in another event loop than that in which the episodes are played: do not open it "
            "yourself before play() or train(), the first episode does; or close it with `await pool.close()`"
        ) from error
