"""Calls between synchronous and asynchronous code.

- `run_in_thread` awaits a blocking function.
- `run_in_loop` runs a coroutine for a synchronous caller.
"""

from __future__ import annotations

import _thread
import asyncio
import concurrent.futures
import contextlib
import contextvars
import os
import queue
import threading
from collections.abc import Callable, Coroutine
from contextvars import ContextVar
from functools import partial
from typing import Any, TypeVar

MAX_IDLE_THREADS = 64  # threads that wait for the next call; surplus threads end after their call

Result = TypeVar("Result")

Job = Callable[[], Callable[[], None]]
"""Work for a thread; it returns the function that tells the caller the result."""

_idle: list[queue.SimpleQueue[Job]] = []  # job queues of the idle threads

thread_calls: ContextVar[list[asyncio.Future[Any]] | None] = ContextVar("gymnast_thread_calls", default=None)
"""Where `run_in_thread` notes its calls; each future is done when the thread is, even if the call was abandoned."""


async def run_in_thread(function: Callable[..., Result], /, *args: Any, **kwargs: Any) -> Result:
    """Await a blocking function in a daemon thread. Its exceptions are raised here, `SystemExit` included.

    On cancellation the function is abandoned: its thread runs on, and its result is thrown away.

    `ThreadPoolExecutor` does not fit: a hung tool can block the others when threads are bounded, and the interpreter
    waits for its threads at exit.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Result] = loop.create_future()
    call = partial(contextvars.copy_context().run, partial(function, *args, **kwargs))

    def settle(result: Any, error: BaseException | None) -> None:
        if error is None:
            future.set_result(result)
        elif isinstance(error, StopIteration):  # a future cannot hold StopIteration
            future.set_exception(RuntimeError(f"{function!r} raised StopIteration"))
        else:
            future.set_exception(error)

    def work() -> Callable[[], None]:
        try:
            outcome = call(), None
        except BaseException as error:
            outcome = None, error
        return partial(_tell, loop, settle, *outcome)

    calls = thread_calls.get()
    if calls is not None:
        calls.append(future)
    _start(work)
    return await asyncio.shield(future)  # an abandoned future is settled, too: `thread_calls` may wait for it


def _tell(loop: asyncio.AbstractEventLoop, settle: Callable[..., None], *outcome: Any) -> None:
    with contextlib.suppress(RuntimeError):  # the loop is closed, and the call was abandoned
        loop.call_soon_threadsafe(settle, *outcome)


def _start(work: Job) -> None:
    """Hand work to an idle thread, or to a new one. A new one costs as much as a whole turn.

    `threading.Thread.start` would wait until the new thread has run, which holds up the event loop while another
    thread computes.
    """
    try:
        jobs = _idle.pop()
    except IndexError:
        jobs = queue.SimpleQueue()
        _thread.start_new_thread(_run_jobs, (jobs,))
    jobs.put(work)


def _run_jobs(jobs: queue.SimpleQueue[Job]) -> None:
    stays = True
    while stays:
        tell = jobs.get()()
        stays = len(_idle) < MAX_IDLE_THREADS
        if stays:
            _idle.append(jobs)  # before the caller goes on, so that its next call finds this thread
        tell()
        del tell  # `tell` keeps the result alive


def run_in_loop(coroutine: Coroutine[Any, Any, Result]) -> Result:
    """Run a coroutine for a synchronous caller, which may be inside another event loop (a notebook).

    All callers share one loop, which lasts as long as the process. So a client, a connection or a semaphore that one
    call leaves behind is usable in the next, in an environment's `reset` and in a round of episodes alike.

    Raises:
        RuntimeError: the caller runs on that loop itself, and would deadlock.
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
        """Run a coroutine to its end; return its result, or raise its exception.

        If the waiting caller is interrupted (Ctrl-C), the coroutine is cancelled and finishes its clean-up before the
        interruption goes on.
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


async def _errors_as_values(coroutine: Coroutine[Any, Any, Result]) -> tuple[Result | None, BaseException | None]:
    """Return the result or the error. A `SystemExit` that a task raises would end the loop's thread."""
    try:
        return await coroutine, None
    except asyncio.CancelledError:
        raise
    except BaseException as caught:
        return None, caught


_loop: _EventLoopThread | None = None
_lock = threading.Lock()


def _forget_threads() -> None:
    """Called in a forked child, which has no thread but its own."""
    global _loop, _lock
    _loop, _lock = None, threading.Lock()
    _idle.clear()


os.register_at_fork(after_in_child=_forget_threads)
