"""Threads between the synchronous and the asynchronous world.

`run_in_thread` awaits a blocking function, `call_function` any function that a user wrote, and `run_in_loop` runs a
coroutine for a caller that is not asynchronous.
The standard library's thread pool has neither property that untrusted, blocking functions need: its size is bounded
(six threads on two cores: one hung tool in six would stall every other), and the interpreter waits for its threads at
exit (one hung tool would keep the program alive for ever). The threads here are unbounded, reused and daemonic.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import contextvars
import inspect
import os
import queue
import threading
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, TypeVar

Result = TypeVar("Result")

IDLE_SECONDS = 10.0  # a thread without work ends after this long

Job = Callable[[], Callable[[], None]]
"""What a worker does; it returns how to tell whoever waits, which is called once the worker is free again."""


class _Worker(threading.Thread):
    """A reusable daemon thread; it offers itself to the idle list after each job and ends when nobody takes it."""

    def __init__(self, pool: _Pool) -> None:
        super().__init__(name="gymnast-worker", daemon=True)
        self.jobs: queue.SimpleQueue[Job] = queue.SimpleQueue()
        self._pool = pool

    def run(self) -> None:
        while True:
            try:
                job = self.jobs.get(timeout=IDLE_SECONDS)
            except queue.Empty:
                with self._pool.lock:
                    if self in self._pool.idle:
                        self._pool.idle.remove(self)
                        return
                continue  # taken at the last moment: a job is on its way
            tell = job()
            with self._pool.lock:
                self._pool.idle.append(self)
            tell()
            del job, tell  # they hold the result, which nobody here needs while this thread waits


class _Pool:
    """The idle workers, and the event loop for synchronous callers; a forked child starts afresh."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.idle: list[_Worker] = []
        self.loop: EventLoopThread | None = None

    def submit(self, job: Job) -> None:
        with self.lock:
            worker = self.idle.pop() if self.idle else None
        if worker is None:
            worker = _Worker(self)
            worker.start()
        worker.jobs.put(job)


_pool = _Pool()
os.register_at_fork(after_in_child=lambda: _pool.__init__())  # threads do not survive a fork


async def run_in_thread(function: Callable[..., Result], /, *args: Any, **kwargs: Any) -> Result:
    """Await a blocking function in a thread of its own; whatever it raises, `SystemExit` included, is raised here.

    On cancellation the function is abandoned: its thread runs on, and its result is thrown away.
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

    def tell(result: Any, error: BaseException | None) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits for an abandoned call any more
            loop.call_soon_threadsafe(settle, result, error)

    def job() -> Callable[[], None]:
        try:
            return partial(tell, call(), None)
        except BaseException as error:
            return partial(tell, None, error)

    _pool.submit(job)
    return await future


def call_function(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Coroutine[Any, Any, Any]:
    """Call what a user wrote: awaited when it is a coroutine function, in a thread when it is not, since it may block.

    What a blocking one returns is awaited where it can be: it may be a lambda around a coroutine function.
    """
    if inspect.iscoroutinefunction(function):
        return function(*args, **kwargs)
    return _call_blocking(function, *args, **kwargs)


async def _call_blocking(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    result = await run_in_thread(function, *args, **kwargs)
    return await result if inspect.isawaitable(result) else result


def being_cancelled() -> bool:
    """Whether this task was asked to stop, as opposed to code that raised CancelledError by itself."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def run_in_loop(coroutine: Coroutine[Any, Any, Result]) -> Result:
    """Run a coroutine for a synchronous caller, who may stand inside another event loop (a notebook).

    All callers share one loop, which lasts as long as the process: what one call leaves behind (a client, a
    connection, a semaphore) is usable in the next, be it an environment's `reset` or the playing of a whole round.

    Raises:
        RuntimeError: the caller runs on that loop itself, and would wait for itself.
    """
    with _pool.lock:
        if _pool.loop is None:
            _pool.loop = EventLoopThread()
        loop = _pool.loop
    return loop.run(coroutine)


class EventLoopThread:
    """An event loop in a daemon thread, for callers that are not asynchronous; see `run_in_loop`."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="gymnast-loop", daemon=True)
        self._thread.start()

    def run(self, coroutine: Coroutine[Any, Any, Result]) -> Result:
        """Run a coroutine to its end and return its result.

        Raises:
            asyncio.CancelledError: its task was cancelled meanwhile.
            RuntimeError: it is called from the loop itself.
            BaseException: whatever the coroutine raises. If the waiting caller is interrupted (Ctrl-C), the
                coroutine is cancelled and has finished its clean-up before the interruption goes on.
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
            result, error = done.result()
        except BaseException:
            self._loop.call_soon_threadsafe(lambda: task is not None and task.cancel())
            done.result()
            raise
        if error is not None:
            raise error
        return result


async def _errors_as_values(
    coroutine: Coroutine[Any, Any, Result],
) -> tuple[Result | None, BaseException | None]:
    """The result or the error: a `SystemExit` that left a task would be raised in the loop's thread and end it."""
    try:
        return await coroutine, None
    except asyncio.CancelledError:
        raise
    except BaseException as caught:
        return None, caught
