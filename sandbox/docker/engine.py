"""The container engine: blocking calls (`client.py`) in a bounded number of threads.

Many boxes can share one `Engine`, as in a pool; a box on its own opens one for itself.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import os
import secrets
import threading
from collections.abc import Callable
from typing import Any, Self, TypeVar

from ..box_image import Pull
from ..cancellation import finish
from ..errors import EngineError, EngineLoopError, EngineUnansweredError, ImageError
from ..host.supervised import CLOSE_SECONDS
from ..images.image import ImageFacts
from .client import PULL_SECONDS, Client, Launched
from .connect import map_errors

Result = TypeVar("Result")

logger = logging.getLogger(__name__)

# User ids for boxes. No ordinary user of a host has one of these, as far as the usual allocators go: /etc/subuid begins
# at 100,000 and ends at 600,100,000, systemd's containers end at 1,879,048,191, SSSD and FreeIPA at 2,000,200,000. Some
# programs read an id as a signed number, which ends at 2,147,483,647.
_USERS = range(2_001_000_000, 2_147_000_000)
_MAPPED_USERS = range(20_000, 60_000)  # where the engine maps 65536 ids to others of the host
_OTHERS = 8  # threads for other calls than the start of containers
_PREPARATIONS = 2  # images that are fetched or built at a time


class EngineConnection:
    """One connection to the container engine, from the first `Engine.open` to the last `Engine.close`."""

    def __init__(self, creators: int) -> None:
        self.loop = asyncio.get_running_loop()
        self.users = 0
        self.turns = asyncio.Semaphore(creators)
        self.preparations = asyncio.Semaphore(_PREPARATIONS)
        self.locks: dict[str, asyncio.Lock] = {}
        self._jobs: set[concurrent.futures.Future[Any]] = set()
        self._unclaimed: set[str] = set()  # containers, by id or name, that no box uses and that may still exist
        threads = creators + _OTHERS
        self._threads = concurrent.futures.ThreadPoolExecutor(threads, thread_name_prefix="gymnast-engine")
        self.connecting: concurrent.futures.Future[Client] = self.submit(Client, threads)

    @property
    def client(self) -> Client:
        """The blocking calls; EngineError if there is no connection."""
        if not self.connecting.done():
            raise EngineError("the engine is not connected yet: await its open() first")
        return self.connecting.result()

    def submit(self, function: Callable[..., Result], *args: Any) -> concurrent.futures.Future[Result]:
        """Start a blocking function in a thread. Its errors become ours, and `Engine.close` waits for it."""
        job = self._threads.submit(map_errors, function, *args)
        self._jobs.add(job)
        job.add_done_callback(self._jobs.discard)
        return job

    async def launch(self, name: str, config: dict[str, Any], best_effort: bool) -> Launched:
        """Create, attach and start a container; if this fails or is cancelled, the container is removed.

        EngineError if the engine refused or does not answer, or, unless `best_effort`, does not hold one of the limits.
        """
        async with self.turns:
            job = self.submit(self.client.launch, name, config, best_effort)
            try:
                launched = await asyncio.wrap_future(job)
            except asyncio.CancelledError:
                if not job.cancelled():
                    self.submit(self._discard, name, job)
                raise
            except EngineUnansweredError:
                self._unclaimed.add(name)
                raise
        self._remove_unclaimed()  # the engine answers
        return launched

    def remove(self, container: str, *, is_silent: bool = False) -> concurrent.futures.Future[None]:
        """Begin to remove a container; the job ends when it is gone. A silent one gets no time to end by itself.

        If the removal fails, a warning says so. It is tried again later, at the latest when the engine is closed.
        """
        return self.submit(self._remove_or_remember, container, is_silent)

    async def end(self, deadline: float | None) -> None:
        """Wait for the removals under way, and let the threads end. Works from any event loop."""
        self._remove_unclaimed()
        jobs = [asyncio.wrap_future(job) for job in list(self._jobs)]
        for job in jobs:  # errors are for the callers of the jobs
            job.add_done_callback(lambda done: done.cancelled() or done.exception())
        left = CLOSE_SECONDS if deadline is None else max(0.0, deadline - asyncio.get_running_loop().time())
        late = (await asyncio.wait(jobs, timeout=left))[1] if jobs else ()
        if late or self._unclaimed:
            logger.warning(
                "the engine is closed with %d unanswered requests; containers that may be left, until they end: %s",
                len(late),
                ", ".join(self._unclaimed) or "unknown",
            )
        self._threads.shutdown(wait=False)
        self.connecting.add_done_callback(_hang_up)

    def _remove_unclaimed(self) -> None:
        for container in list(self._unclaimed):
            self._unclaimed.discard(container)
            self.remove(container)

    def _remove_or_remember(self, container: str, is_silent: bool = False) -> None:
        try:
            map_errors(self.client.remove, container, is_silent)
        except EngineError as error:
            self._unclaimed.add(container)
            logger.warning("container %.20s was not removed; it ends by itself: %s", container, error)

    def _discard(self, name: str, launch: concurrent.futures.Future[Launched]) -> None:
        """Wait for a launch that was cancelled, and remove its container."""
        error = launch.exception()
        if error is None:
            launch.result().socket.close()
            self._remove_or_remember(launch.result().container)
        elif isinstance(error, EngineUnansweredError):
            self._unclaimed.add(name)


class Engine:
    """A connection to the container engine that several boxes can share.

    Each user opens it and closes it; the last `close` ends the connection. Until then it belongs to the event loop in
    which it was opened.

    Args:
        creators: containers to start at a time. More than two for each core gain nothing.
    """

    def __init__(self, *, creators: int | None = None) -> None:
        self.creators = creators or 2 * (os.cpu_count() or 1)
        self.reaped = False  # whether containers of dead owners have been removed
        self._connection: EngineConnection | None = None
        self._users: range | None = None  # the user ids for boxes
        self._last_user = secrets.randbelow(len(_USERS))  # random, so that other processes use other ids
        self._pulled: set[str] = set()  # images that pull="always" has fetched

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(self, *exc_info: object) -> None:
        await self.close()

    async def open(self) -> Self:
        """Connect, unless another user has done so.

        Raises:
            EngineError: no engine answers, or this user may not use it; the message says what to do.
            EngineLoopError: the engine is open in another event loop.
        """
        if self._connection is None:
            self._connection = EngineConnection(self.creators)
        connection = self._connection
        if connection.loop is not asyncio.get_running_loop():
            raise EngineLoopError(
                "this Engine was opened in another event loop and is still open there: close what uses it (clones "
                "share the Engine of their executor), or make an Engine for each loop"
            )
        connection.users += 1
        try:
            # Other tasks may wait for the same connection: do not cancel it with this one.
            await asyncio.shield(asyncio.wrap_future(connection.connecting))
        except BaseException:
            await finish(self.close())
            raise
        return self

    async def close(self, deadline: float | None = None) -> None:
        """Undo one `open`. The last `close` waits for the removals under way, and lets the threads end.

        It waits until the deadline, by the event loop's clock, or for 15 seconds.
        """
        connection = self.connection
        connection.users -= 1
        if not connection.users:
            self._connection = None  # now, as the engine may be opened again while this waits
            await finish(connection.end(deadline))

    @property
    def connection(self) -> EngineConnection:
        """The connection; EngineError if the engine is not open."""
        if self._connection is None:
            raise EngineError("the engine is not open: use `async with Engine() as engine`")
        return self._connection

    @property
    def client(self) -> Client:
        """The blocking calls, for `call`."""
        return self.connection.client

    # Images.

    def lock(self, name: str) -> asyncio.Lock:
        """The lock for fetching or building an image of this name."""
        return self.connection.locks.setdefault(name, asyncio.Lock())

    async def image(self, name: str, pull: Pull) -> ImageFacts:
        """Find an image, and fetch it from its registry if `pull` says so. "always" fetches it once for this `Engine`.

        ImageError if the engine does not have it, and it may not or could not be fetched.
        """
        async with self.lock(name):
            outdated = pull == "always" and name not in self._pulled
            found = None if outdated else await self.call(self.client.inspect, name)
            if found is None and pull != "never":
                async with self.connection.preparations:
                    await self.talk(PULL_SECONDS, self.client.pull, name)
                self._pulled.add(name)
                found = await self.call(self.client.inspect, name)
        if found is None:
            raise ImageError(f"the engine has no image {name!r}, and pull='never' forbids fetching it")
        return found

    # Containers.

    async def new_user(self) -> int:
        """Return a user id that no other box of this `Engine` has.

        On an engine that maps users, it stands for an id that the host has set aside for this engine. Otherwise it is
        above every range from which a host usually gives ids to users and containers.
        """
        if self._users is None:
            self._users = _MAPPED_USERS if await self.call(self.client.maps_users) else _USERS
        users = self._users
        self._last_user += 1
        return users[self._last_user % len(users)]

    async def launch(self, name: str, config: dict[str, Any], *, best_effort: bool = False) -> Launched:
        """See `EngineConnection.launch`."""
        return await self.connection.launch(name, config, best_effort)

    # Threads.

    async def call(self, function: Callable[..., Result], *args: Any) -> Result:
        """Run a blocking function that uses `client` in a thread; its errors become ours."""
        return await asyncio.wrap_future(self.connection.submit(function, *args))

    async def talk(self, silence: float, function: Callable[..., Result], *args: Any) -> Result:
        """Run a blocking function whose answer may take minutes; its first argument is a `StreamConnection`.

        The function fails after `silence` seconds in which the engine sends nothing. Cancelling this hangs up at once.
        Neither `close` nor the end of the program waits for the thread.
        """
        stream = self.client.open_stream(silence)
        job: concurrent.futures.Future[Result] = concurrent.futures.Future()
        job.set_running_or_notify_cancel()  # from here on it cannot be cancelled

        def work() -> None:
            try:
                job.set_result(map_errors(function, stream, *args))
            except BaseException as error:
                job.set_exception(error)
            finally:
                stream.close()

        threading.Thread(target=work, name="gymnast-stream", daemon=True).start()
        try:
            return await asyncio.wrap_future(job)
        except asyncio.CancelledError:
            stream.hang_up()
            raise


def _hang_up(connecting: concurrent.futures.Future[Client]) -> None:
    if not connecting.cancelled() and connecting.exception() is None:
        connecting.result().api.close()
