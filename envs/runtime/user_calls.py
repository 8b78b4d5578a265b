"""Calls of functions that a user wrote: they may block, take too long, or be synchronous.

- `call_function` awaits any function.
- `watch_blocking` awaits a coroutine function, and logs if it blocks the event loop.
- `within` and `TimeLimit` await with a time limit.
"""

from __future__ import annotations

import asyncio
import gc
import inspect
import logging
import math
import os
import sys
import textwrap
import time
import types
from collections.abc import Awaitable, Callable, Coroutine, Generator
from functools import cache, lru_cache, partial
from typing import Any, NamedTuple, TypeVar

if sys.platform == "linux":
    import resource

from .threads import run_in_thread

BLOCKING_SECONDS = 0.3  # a coroutine that blocks the event loop for longer is logged
LOCK_WAITS = 4  # a wait that is longer than so many of those for the interpreter's lock is a call that blocks
OUR_FOLDER = os.path.dirname(os.path.dirname(__file__)) + os.sep

logger = logging.getLogger("gymnast.envs")
_logged: set[types.CodeType] = set()  # functions that were logged for blocking the event loop

Result = TypeVar("Result")


def call_function(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Awaitable[Any]:
    """Call a function that a user wrote: await a coroutine function, run any other in a thread, since it may block.

    If a function in a thread returns an awaitable, that is awaited too: it may be a lambda around a coroutine function.
    """
    if inspect.iscoroutinefunction(function):
        return watch_blocking(function, *args, **kwargs)

    async def in_thread() -> Any:
        result = await run_in_thread(function, *args, **kwargs)
        return await result if inspect.isawaitable(result) else result

    return in_thread()


def watch_blocking(function: Callable[..., Awaitable[Result]], /, *args: Any, **kwargs: Any) -> Awaitable[Result]:
    """Call a coroutine function, and log once if it blocks the event loop, which all episodes share, for too long.

    This package's functions are not watched: they call the user's functions by `call_function`.
    """
    call = function(*args, **kwargs)
    if not isinstance(call, types.CoroutineType) or call.cr_code.co_filename.startswith(OUR_FOLDER):
        return call
    return _watched(call, function)


@types.coroutine
def _watched(coroutine: Coroutine[Any, Any, Result], function: Any) -> Generator[Any, Any, Result]:
    error: BaseException | None = None
    while True:
        started, began = time.perf_counter(), _Usage.now()
        try:
            waits_for = coroutine.send(None) if error is None else coroutine.throw(error)
        except StopIteration as done:
            return done.value
        finally:
            if time.perf_counter() - started > BLOCKING_SECONDS and (now := _Usage.now()).shows_blocking(began):
                _log_blocking(function, now.clock - began.clock)
        error = None
        try:
            yield waits_for
        except GeneratorExit:
            coroutine.close()
            raise
        except BaseException as thrown:  # a cancellation, or the error of the awaited object
            error = thrown


class _Usage(NamedTuple):
    """The use of this thread so far, to tell a function that blocks from one that did not get to run.

    The clock stands still during garbage collections: with thousands of episodes, one takes longer than a function may.
    """

    clock: float
    computing: float  # seconds of a processor, those for garbage too
    waits: int | None  # times that it slept, also for the interpreter's lock; None where the system does not count

    @classmethod
    def now(cls) -> _Usage:
        waits = resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw if sys.platform == "linux" else None
        return cls(time.perf_counter() - _garbage_clock()(), time.thread_time(), waits)

    def shows_blocking(self, began: _Usage) -> bool:
        """Return whether the thread itself computed or slept since then, for too long.

        Other threads and processes may have held the lock and the processors.
        """
        held = self.clock - began.clock
        computing = min(held, self.computing - began.computing)
        if held <= BLOCKING_SECONDS or self.waits is None or began.waits is None:
            return held > BLOCKING_SECONDS
        waits = self.waits - began.waits
        slept = waits > 0 and (held - computing) / waits > LOCK_WAITS * sys.getswitchinterval()
        return slept or computing > BLOCKING_SECONDS


@cache
def _garbage_clock() -> Callable[[], float]:
    """Return a clock that runs while this process collects garbage."""
    seconds, began = 0.0, math.inf

    def measure(phase: str, _: object) -> None:
        nonlocal seconds, began
        if phase == "start":
            began = time.perf_counter()
        else:
            seconds += max(0.0, time.perf_counter() - began)

    gc.callbacks.append(measure)
    return lambda: seconds


def _log_blocking(function: Any, seconds: float) -> None:
    while isinstance(function, partial):
        function = function.func
    code: types.CodeType = inspect.unwrap(getattr(function, "__func__", function)).__code__
    if code not in _logged:
        _logged.add(code)
        logger.warning(
            "%s (%s:%d) is `async def`, but blocked the event loop, and so every episode, for %.1f s: use `await` for "
            "everything that waits, or make it a plain `def`, which runs in a thread. This is logged once.",
            code.co_qualname,
            code.co_filename,
            code.co_firstlineno,
            seconds,
        )


def source_of(function: Callable[..., Any]) -> str | None:
    """Return the source of a user's function or method; empty for gymnast's own, None where it is not known."""
    code = getattr(inspect.unwrap(getattr(function, "__func__", function)), "__code__", None)  # a partial has none
    return "" if code is None or code.co_filename.startswith(OUR_FOLDER) else _source_of(code)


@lru_cache(maxsize=1024)
def _source_of(code: types.CodeType) -> str | None:
    try:
        return textwrap.dedent(inspect.getsource(code))
    except OSError:  # the function was typed in, pickled by value, or its file is gone
        return None


class TimeLimit:
    """Limits the seconds of one await after another in a task; infinity = no limit.

    All awaits share a single timer of the event loop, which checks whether the current await is late. A timer for each
    step would cost a tenth of a turn. Call `close` at the end.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._end = math.inf  # of the current await, in the loop's time
        self._is_late = False
        self._timer: asyncio.TimerHandle | None = None

    async def run(self, late: TimeoutError, call: Awaitable[Result]) -> Result:
        """Await a call; if it takes too long, cancel it and raise `late`."""
        if self.seconds == math.inf:
            return await call
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None
        cancellations = task.cancelling()
        self._end = loop.time() + self.seconds
        if self._timer is None:
            self._timer = loop.call_at(self._end, self._look, loop, task)
        try:
            return await call
        except asyncio.CancelledError:
            if self._is_late and task.cancelling() - 1 <= cancellations:
                raise late from None
            raise
        finally:
            self._end = math.inf
            if self._is_late:
                self._is_late = False
                task.uncancel()

    def _look(self, loop: asyncio.AbstractEventLoop, task: asyncio.Task[Any]) -> None:
        now, self._timer = loop.time(), None
        if now >= self._end:
            self._is_late = True
            task.cancel()
        elif self._end < math.inf:
            self._timer = loop.call_at(self._end, self._look, loop, task)

    def close(self) -> None:
        """Drop the timer."""
        if self._timer is not None:
            self._timer.cancel()


async def within(seconds: float, late: TimeoutError, call: Awaitable[Result]) -> Result:
    """Await a call for this many seconds at most, then cancel it and raise `late`; infinity = no limit."""
    limit = TimeLimit(seconds)
    try:
        return await limit.run(late, call)
    finally:
        limit.close()


def being_cancelled() -> bool:
    """Return whether this task is being cancelled, as opposed to user code that raised CancelledError by itself."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
