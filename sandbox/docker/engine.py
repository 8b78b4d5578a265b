"""The container engine: blocking calls (`client.py`) in a bounded number of threads.

Boxes share one `Engine` where many are made (a pool); a box on its own opens one for itself. What is started by a call
that is cancelled is removed as soon as the engine has answered, so a cancelled start leaves nothing behind; what comes
after nobody waits for the answer any more is looked for, and removed too.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import os
import threading
import time
from collections.abc import Callable
from typing import Any, Literal, Self, TypeVar

from .cancellation import finish
from .client import Client, Image, Launched, translate
from .errors import EngineError, EngineLoopError, EngineUnansweredError, ImageError

Result = TypeVar("Result")
Pull = Literal["never", "missing", "always"]

logger = logging.getLogger("gymnast.sandbox")

_OTHERS = 8  # threads beside those that start containers
CLOSE_SECONDS = 10.0  # for what is still being removed when the engine is closed
LATE_SECONDS = 60.0  # in which a container may come after the answer to its request was given up
_LOOK_SECONDS = 1.0  # between two looks for it


class Session:
    """One connection to the container engine, for as long as it has users in one event loop.

    Args:
        creators: containers that are started at a time.
    """

    def __init__(self, creators: int) -> None:
        self.loop = asyncio.get_running_loop()
        self.users = 0
        self.turns = asyncio.Semaphore(creators)
        self.locks: dict[str, asyncio.Lock] = {}
        self._jobs: set[concurrent.futures.Future[Any]] = set()
        self._late: dict[str, float] = {}  # containers that may yet come, by name, and until when they are looked for
        self._late_lock = threading.Lock()
        self._ended = threading.Event()
        threads = creators + _OTHERS
        self._threads = concurrent.futures.ThreadPoolExecutor(threads, thread_name_prefix="gymnast-engine")
        self.connecting: concurrent.futures.Future[Client] = self.submit(Client, threads)

    @property
    def client(self) -> Client:
        """The blocking calls.

        Raises:
            EngineError: there is no connection yet, or none could be had.
        """
        if not self.connecting.done():
            raise EngineError("the engine is still being connected to: wait for its open()")
        return self.connecting.result()

    def submit(self, function: Callable[..., Result], *args: Any) -> concurrent.futures.Future[Result]:
        """Start a blocking function in a thread, its errors as ours."""
        job = self._threads.submit(translate, function, *args)
        self._jobs.add(job)
        job.add_done_callback(self._jobs.discard)
        return job

    def remove_late(self, name: str) -> None:
        """Remove a container that may yet come, in the background; from any thread.

        One thread looks for all of them, as those of a stalled engine would soon take up all threads.
        """
        with self._late_lock:
            self._late[name] = time.monotonic() + LATE_SECONDS
            begin = len(self._late) == 1
        if not begin:
            return
        if self._ended.is_set():
            self._remove_latecomers()  # its threads take nothing new, and this is one of them
        else:
            self.submit(self._remove_latecomers)

    def _remove_latecomers(self) -> None:
        while True:
            ended = self._ended.wait(_LOOK_SECONDS)  # then this is the last look
            came = self._remove_those_that_came(list(self._late))
            now = time.monotonic()
            with self._late_lock:
                self._late = {
                    name: until for name, until in self._late.items() if not ended and name not in came and now < until
                }
                if not self._late:
                    return

    def _remove_those_that_came(self, names: list[str]) -> set[str]:
        came = set()
        for name in names:
            try:
                if translate(self.client.remove, name):
                    came.add(name)
            except EngineUnansweredError:
                break  # each of the others would wait as long for its answer
            except EngineError as error:
                logger.warning("container %s was not removed: %s", name, error)
        return came

    async def end(self) -> None:
        """Wait for what is still being removed, and let the threads end; from any event loop."""
        jobs = [asyncio.wrap_future(job) for job in list(self._jobs)]
        if jobs:
            done, _ = await asyncio.wait(jobs, timeout=CLOSE_SECONDS)
            for job in done:
                if not job.cancelled():
                    job.exception()  # whoever waits for it is told by himself
        self._ended.set()
        self._threads.shutdown(wait=False)
        self.connecting.add_done_callback(_hang_up)


class Engine:
    """A connection to the container engine; open it, share it, close it.

    Opening is counted: whoever opens it closes it, and the last one out ends the connection. It serves one event loop
    at a time; users that an earlier loop has left behind, closed or stopped, do not stand in the way of the next.

    Args:
        creators: containers that are started at a time; more than two for each core only wait for one another.
        direct: whether to speak to boxes without the engine in between where that can be done, which is on the
            engine's own machine, as root.

    Raises:
        TypeError: `direct` is no bool.
    """

    def __init__(self, *, creators: int | None = None, direct: bool = True) -> None:
        if not isinstance(direct, bool):
            raise TypeError(f"direct must be True (where it can be done) or False (never), got {direct!r}")
        self.direct = direct and os.geteuid() == 0
        self.creators = creators or 2 * (os.cpu_count() or 1)
        self.reaped = False  # somebody has looked for what dead owners left
        self._sessions: dict[asyncio.AbstractEventLoop, Session] = {}  # those with users, the last one at the end
        self._pulled: set[str] = set()  # images that were fetched because of pull="always"

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(self, *exc_info: object) -> None:
        await self.close()

    async def open(self) -> Self:
        """Connect, if nobody has yet.

        Raises:
            EngineError: no engine answers, or it may not be used; the message says what to do.
            EngineLoopError: the engine is in use in another event loop, which is running.
        """
        session = self._session_here()
        session.users += 1
        try:
            # Others may be waiting for it, who are not cancelled when this task is.
            await asyncio.shield(asyncio.wrap_future(session.connecting))
        except BaseException:
            await finish(self.close(session))
            raise
        return self

    async def close(self, session: Session | None = None) -> None:
        """Undo one `open`; the last one waits for what is still being removed, and lets the threads end.

        Args:
            session: what was `session` after that `open`, if this may be another event loop.
        """
        session = session or self.session
        assert session.users > 0, "an engine is closed as often as it was opened"
        session.users -= 1
        if not session.users:
            del self._sessions[session.loop]  # at once: somebody may open the engine anew while this waits
            await finish(session.end())

    def _session_here(self) -> Session:
        """The session of the running event loop; it is made where there is none."""
        loop = asyncio.get_running_loop()
        if loop not in self._sessions:
            if any(other.is_running() for other in self._sessions):
                raise EngineLoopError(
                    "this Engine is in use in another event loop, which is still running: make an Engine for each "
                    "loop (clones share that of their executor), or close what uses it there"
                )
            self._sessions[loop] = Session(self.creators)
        return self._sessions[loop]

    @property
    def session(self) -> Session:
        """That of the running event loop; elsewhere, as in a thread or in a later loop, the last one."""
        if not self._sessions:
            raise EngineError("the engine is not open: use `async with Engine() as engine`")
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            loop = None
        last = next(reversed(self._sessions.values()))
        return self._sessions.get(loop, last) if loop else last

    @property
    def client(self) -> Client:
        """The blocking calls, to be made by `call`."""
        return self.session.client

    # Images.

    def lock(self, name: str) -> asyncio.Lock:
        """Held while an image of this name is fetched or built."""
        return self.session.locks.setdefault(name, asyncio.Lock())

    async def image(self, name: str, pull: Pull) -> Image:
        """Find an image, fetching it from its registry if `pull` says so; one fetch of an image at a time.

        "always" fetches it once for this engine, however many boxes are made.

        Raises:
            ImageError: it is not there, and may not or could not be fetched.
            EngineError: the engine does not answer.
        """
        async with self.lock(name):
            outdated = pull == "always" and name not in self._pulled
            found = None if outdated else await self.call(self.client.inspect, name)
            if found is None and pull != "never":
                await self.call(self.client.pull, name)
                self._pulled.add(name)
                found = await self.call(self.client.inspect, name)
        if found is None:
            raise ImageError(f"the engine has no image {name!r}, and pull='never' forbids fetching it")
        return found

    # Containers.

    async def launch(self, name: str, config: dict[str, Any]) -> Launched:
        """Create, attach and start a container; if this fails or is cancelled, the container goes when it has come.

        Raises:
            EngineError: the engine refused, with its reason, or does not answer.
        """
        session = self.session
        async with session.turns:
            job = session.submit(session.client.launch, name, config)
            try:
                return await asyncio.wrap_future(job)
            except asyncio.CancelledError:
                if not job.cancelled():
                    session.submit(_discard, session, name, job)
                raise
            except EngineUnansweredError:
                session.remove_late(name)
                raise

    async def remove(self, container: str) -> None:
        """Remove a container, running or not, and wait until it is gone; it may be gone already.

        Raises:
            EngineError: the engine refused or does not answer.
        """
        await self.call(self.client.remove, container)

    def remove_soon(self, container: str) -> None:
        """Remove a container in the background; `close` waits for it."""
        self.submit(self.client.remove_or_log, container)

    # Threads.

    def submit(self, function: Callable[..., Result], *args: Any) -> concurrent.futures.Future[Result]:
        """Start a blocking function in a thread, its errors as ours; `close` waits for it."""
        return self.session.submit(function, *args)

    async def call(self, function: Callable[..., Result], *args: Any) -> Result:
        """Await a blocking function that uses `api`, its errors as ours."""
        return await asyncio.wrap_future(self.submit(function, *args))


def _discard(session: Session, name: str, launch: concurrent.futures.Future[Launched]) -> None:
    error = launch.exception()
    if error is None:
        launch.result().socket.close()
        session.client.remove(launch.result().container)
    elif isinstance(error, EngineUnansweredError):
        session.remove_late(name)


def _hang_up(connecting: concurrent.futures.Future[Client]) -> None:
    if not connecting.cancelled() and connecting.exception() is None:
        connecting.result().api.close()
