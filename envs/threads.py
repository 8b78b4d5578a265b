"""Threads between the synchronous and the asynchronous world.

`run_in_thread` awaits a blocking function; `EventLoopThread` runs coroutines for a caller that is not asynchronous.
The standard library's thread pool has neither property that untrusted, blocking functions need: its size is bounded
(six threads on two cores: one hung tool in six would stall every other), and the interpreter waits for its threads at
exit (one hung tool would keep the program alive for ever). The threads here are unbounded, reused and daemonic.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextvars
import queue
import threading
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, TypeVar

Result = TypeVar("Result")

IDLE_SECONDS = 10.0  # a thread without work ends after this long


class _Worker(threading.Thread):
    """A reusable daemon thread; it offers itself to the idle list after each job and ends when nobody takes it."""

    def __init__(self, idle: list[_Worker], lock: threading.Lock) -> None:
        super().__init__(name="gymnast-worker", daemon=True)
        self.jobs: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._idle = idle
        self._lock = lock

    def run(self) -> None:
        while True:
            try:
                job = self.jobs.get(timeout=IDLE_SECONDS)
            except queue.Empty:
                with self._lock:
                    if self in self._idle:
                        self._idle.remove(self)
                        return
                continue  # taken at the last moment: a job is on its way
            job()
            del job
            with self._lock:
                self._idle.append(self)


_idle_workers: list[_Worker] = []
_idle_lock = threading.Lock()


def _submit(job: Callable[[], None]) -> None:
    with _idle_lock:
        worker = _idle_workers.pop() if _idle_workers else None
    if worker is None:
        worker = _Worker(_idle_workers, _idle_lock)
        worker.start()
    worker.jobs.put(job)


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

    def job() -> None:
        result, error = None, None
        try:
            result = call()
        except BaseException as caught:
            error = caught
        try:
            loop.call_soon_threadsafe(settle, result, error)
        except RuntimeError:
            pass  # the loop is closed, so nobody waits for an abandoned call any more

    _submit(job)
    return await future


class EventLoopThread:
    """An event loop in a daemon thread, for callers that are not asynchronous; close it when done."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._task: asyncio.Task[Any] | None = None
        self._thread = threading.Thread(target=self._loop.run_forever, name="gymnast-loop", daemon=True)
        self._thread.start()

    def run(self, coroutine: Coroutine[Any, Any, Result]) -> Result:
        """Run a coroutine to its end and return its result.

        Raises:
            asyncio.CancelledError: `cancel` was called meanwhile.
            BaseException: whatever the coroutine raises. If the waiting caller is interrupted (Ctrl-C), the
                coroutine is cancelled and has finished its clean-up before the interruption goes on.
        """
        done: concurrent.futures.Future[tuple[Any, BaseException | None]] = concurrent.futures.Future()

        def start() -> None:
            self._task = self._loop.create_task(_errors_as_values(coroutine))
            self._task.add_done_callback(
                lambda task: done.set_result((None, asyncio.CancelledError()) if task.cancelled() else task.result())
            )

        self._loop.call_soon_threadsafe(start)
        try:
            result, error = done.result()
        except BaseException:
            self.cancel()
            done.result()
            raise
        finally:
            self._task = None
        if error is not None:
            raise error
        return result

    def cancel(self) -> None:
        """Cancel the coroutine that `run` is waiting for, if there is one; safe from any thread and signal handler."""

        def cancel_task() -> None:
            if self._task is not None:
                self._task.cancel()

        self._loop.call_soon_threadsafe(cancel_task)

    def close(self) -> None:
        """Stop the loop and its thread; what still runs on it is cancelled first."""
        if self._loop.is_closed():
            return
        asyncio.run_coroutine_threadsafe(_cancel_others(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


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


async def _cancel_others() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
    await asyncio.get_running_loop().shutdown_asyncgens()
