"""Calls between synchronous and asynchronous code.

- `run_in_thread` awaits a blocking function.
- `call_function` awaits any function that a user wrote.
- `watch_blocking` awaits a coroutine function, and logs if it blocks the event loop.
- `within` awaits with a time limit.
- `run_in_loop` runs a coroutine for a synchronous caller.
"""

from __future__ import annotations

import _thread
import asyncio
import concurrent.futures
import contextlib
import contextvars
import inspect
import logging
import os
import threading
import time
import types
from collections.abc import Callable, Coroutine, Generator
from functools import partial
from typing import Any, TypeVar

BLOCKING_SECONDS = 0.3  # a coroutine that blocks the event loop for longer is logged

logger = logging.getLogger("gymnast.envs")
_logged: set[types.CodeType] = set()  # functions that were logged for blocking the event loop

Result = TypeVar("Result")


async def run_in_thread(function: Callable[..., Result], /, *args: Any, **kwargs: Any) -> Result:
    """Await a blocking function in a new daemon thread, and raise here what it raises, `SystemExit` included.

    On cancellation the function is abandoned: its thread runs on, and its result is thrown away.

    A thread pool would not do. With a bounded number of threads, one hung tool holds up every other, and the
    interpreter waits for the threads of the standard library's pool at exit. `threading.Thread.start` would not do
    either: it waits until the new thread has run, which holds up the event loop while another thread computes.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Result] = loop.create_future()
    call = partial(contextvars.copy_context().run, partial(function, *args, **kwargs))

    def settle(result: Any, error: BaseException | None) -> None:
        if future.done():  # abandoned
            return
        if error is None:
            future.set_result(result)
        elif isinstance(error, StopIteration):  # a future refuses it
            future.set_exception(RuntimeError(f"{function!r} raised StopIteration"))
        else:
            future.set_exception(error)

    def work() -> None:
        try:
            outcome = call(), None
        except BaseException as error:
            outcome = None, error
        with contextlib.suppress(RuntimeError):  # the loop is closed, and the call was abandoned
            loop.call_soon_threadsafe(settle, *outcome)

    _thread.start_new_thread(work, ())
    return await future


def call_function(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Coroutine[Any, Any, Any]:
    """Call a function that a user wrote: await a coroutine function, run any other in a thread, since it may block.

    If a function in a thread returns an awaitable, that is awaited too: it may be a lambda around a coroutine function.
    """
    if inspect.iscoroutinefunction(function):
        return watch_blocking(function, *args, **kwargs)
    return _call_blocking(function, *args, **kwargs)


async def watch_blocking(function: Callable[..., Coroutine[Any, Any, Result]], /, *args: Any, **kwargs: Any) -> Result:
    """Await a coroutine function, and log once if it blocks the event loop, which all episodes share, for too long."""
    return await _watched(function(*args, **kwargs), function)


@types.coroutine
def _watched(coroutine: Coroutine[Any, Any, Result], function: Any) -> Generator[Any, Any, Result]:
    value, error = None, None
    while True:
        started = time.perf_counter()
        try:
            waits_for = coroutine.send(value) if error is None else coroutine.throw(error)
        except StopIteration as done:
            return done.value
        finally:
            held = time.perf_counter() - started
            if held > BLOCKING_SECONDS:
                _log_blocking(function, held)
        value = error = None
        try:
            value = yield waits_for
        except GeneratorExit:
            coroutine.close()
            raise
        except BaseException as thrown:  # a cancellation, or the error of what it waits for
            error = thrown


def _log_blocking(function: Any, seconds: float) -> None:
    while isinstance(function, partial):
        function = function.func
    code: types.CodeType = inspect.unwrap(getattr(function, "__func__", function)).__code__
    is_ours = code.co_filename.startswith(os.path.dirname(__file__) + os.sep)  # then the machine was busy
    if code not in _logged and not is_ours:
        _logged.add(code)
        logger.warning(
            "%s (%s:%d) is `async def`, but blocked the event loop, and so every episode, for %.1f s: use `await` for "
            "everything that waits, or make it a plain `def`, which runs in a thread. This is logged once.",
            code.co_qualname,
            code.co_filename,
            code.co_firstlineno,
            seconds,
        )


async def _call_blocking(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    result = await run_in_thread(function, *args, **kwargs)
    return await result if inspect.isawaitable(result) else result


async def within(seconds: float | None, message: str, call: Coroutine[Any, Any, Result]) -> Result:
    """Await a call for this many seconds at most; None = no limit.

    Raises:
        TimeoutError: the time is over; it says the message and the seconds, as in `... within step_timeout=600 s`.
    """
    deadline = asyncio.timeout(seconds)
    try:
        async with deadline:
            return await call
    except TimeoutError:
        if not deadline.expired():
            raise
        raise TimeoutError(f"{message}={seconds:g} s") from None


def being_cancelled() -> bool:
    """Whether this task is being cancelled, as opposed to user code that raised CancelledError by itself."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def run_in_loop(coroutine: Coroutine[Any, Any, Result]) -> Result:
    """Run a coroutine for a synchronous caller, who may be inside another event loop (a notebook).

    All callers share one loop, which lasts as long as the process. So a client, a connection or a semaphore that one
    call leaves behind is usable in the next, in an environment's `reset` and in a round of episodes alike.

    Raises:
        RuntimeError: the caller runs on that loop itself, and would wait for itself.
    """
    global _loop
    with _lock:
        if _loop is None:
            _loop = _EventLoopThread()
        loop = _loop
    return loop.run(coroutine)


SIGNAL_SECONDS = 0.5  # a Ctrl-C is noticed this late at most


def _result_of(done: concurrent.futures.Future[Result]) -> Result:
    """Wait for a result. A signal that comes just before a wait is handled when that wait ends, so waits are short."""
    while not done.done():
        concurrent.futures.wait([done], timeout=SIGNAL_SECONDS)
    return done.result()


class _EventLoopThread:
    """An event loop in a daemon thread."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="gymnast-loop", daemon=True)
        self._thread.start()

    def run(self, coroutine: Coroutine[Any, Any, Result]) -> Result:
        """Run a coroutine to its end and return its result.

        Raises:
            asyncio.CancelledError: its task was cancelled meanwhile.
            RuntimeError: it is called from the loop itself.
            BaseException: the coroutine's own. If the waiting caller is interrupted (Ctrl-C), the coroutine is
                cancelled and finishes its clean-up before the interruption goes on.
        """
        if threading.current_thread() is self._thread:
            coroutine.close()
            raise RuntimeError("a synchronous method was called from asynchronous code: await its asynchronous form")
        done: concurrent.futures.Future[tuple[Any, BaseException | None]] = concurrent.futures.Future()
        task: asyncio.Task[Any] | None = None

        def start() -> None:
            nonlocal task
            task = self._loop.create_task(_errors_as_values(coroutine))
            task.add_done_callback(finish)

        def finish(task: asyncio.Task[Any]) -> None:
            done.set_result((None, asyncio.CancelledError()) if task.cancelled() else task.result())

        self._loop.call_soon_threadsafe(start)
        try:
            result, error = _result_of(done)
        except BaseException:
            self._loop.call_soon_threadsafe(lambda: task is not None and task.cancel())
            _result_of(done)
            raise
        if error is not None:
            raise error
        return result


async def _errors_as_values(
    coroutine: Coroutine[Any, Any, Result],
) -> tuple[Result | None, BaseException | None]:
    """The result or the error. A `SystemExit` that a task raises would end the loop's thread."""
    try:
        return await coroutine, None
    except asyncio.CancelledError:
        raise
    except BaseException as caught:
        return None, caught


_loop: _EventLoopThread | None = None
_lock = threading.Lock()


def _forget_loop() -> None:
    """In a forked child, which has no thread but its own."""
    global _loop, _lock
    _loop, _lock = None, threading.Lock()


os.register_at_fork(after_in_child=_forget_loop)
