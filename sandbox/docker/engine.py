"""The container engine: blocking calls (`client.py`) in a bounded number of threads.

Many boxes share one `Engine`, as in a pool; a box on its own opens one for itself. A container whose start was
cancelled is removed as soon as the engine has answered.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import os
import secrets
import threading
from collections.abc import Callable
from typing import Any, Literal, Self, TypeVar

from ..cancellation import finish
from ..errors import EngineError, EngineLoopError, EngineUnansweredError, ImageError
from ..host.executor import CLOSE_SECONDS
from .client import PULL_SECONDS, Client, Image, Launched
from .connect import translate

Result = TypeVar("Result")
Pull = Literal["never", "missing", "always"]

logger = logging.getLogger(__name__)

# Above the ids that systems give to users, and low enough for every format of archives.
_USERS = range(200_000, 2_000_000)
_MAPPED_USERS = range(20_000, 60_000)  # where the engine maps 65536 ids to others of the host
_OTHERS = 8  # threads beside those that start containers


class Session:
    """One connection to the container engine, as long as it has users.

    Args:
        creators: containers that are started at a time.
    """

    def __init__(self, creators: int) -> None:
        self.loop = asyncio.get_running_loop()
        self.users = 0
        self.turns = asyncio.Semaphore(creators)
        self.locks: dict[str, asyncio.Lock] = {}
        self._jobs: set[concurrent.futures.Future[Any]] = set()
        self._unclaimed: set[str] = set()  # containers, by id or name, that may be there and have no user
        threads = creators + _OTHERS
        self._threads = concurrent.futures.ThreadPoolExecutor(threads, thread_name_prefix="gymnast-engine")
        self.connecting: concurrent.futures.Future[Client] = self.submit(Client, threads)

    @property
    def client(self) -> Client:
        """The blocking calls.

        Raises:
            EngineError: the connection is not there yet, or could not be made.
        """
        if not self.connecting.done():
            raise EngineError("the engine is still being connected to: wait for its open()")
        return self.connecting.result()

    def submit(self, function: Callable[..., Result], *args: Any) -> concurrent.futures.Future[Result]:
        """Start a blocking function in a thread; its errors become ours."""
        job = self._threads.submit(translate, function, *args)
        self._jobs.add(job)
        job.add_done_callback(self._jobs.discard)
        return job

    async def launch(self, name: str, config: dict[str, Any], best_effort: bool) -> Launched:
        """See `Engine.launch`."""
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

    def remove(self, container: str) -> concurrent.futures.Future[None]:
        """See `Engine.remove`."""
        return self.submit(self._remove_or_remember, container)

    async def end(self, deadline: float | None) -> None:
        """Wait for the removals that are under way, and let the threads end; from any event loop."""
        self._remove_unclaimed()
        jobs = [asyncio.wrap_future(job) for job in list(self._jobs)]
        for job in jobs:  # the caller that waits for the job gets its error
            job.add_done_callback(lambda done: done.cancelled() or done.exception())
        left = CLOSE_SECONDS if deadline is None else max(0.0, deadline - asyncio.get_running_loop().time())
        late = (await asyncio.wait(jobs, timeout=left))[1] if jobs else ()
        if late or self._unclaimed:
            logger.warning(
                "the engine is closed, and %d requests to it are unanswered; containers that may be left, and end by "
                "themselves: %s",
                len(late),
                ", ".join(self._unclaimed) or "unknown",
            )
        self._threads.shutdown(wait=False)
        self.connecting.add_done_callback(_hang_up)

    def _remove_unclaimed(self) -> None:
        for container in list(self._unclaimed):
            self._unclaimed.discard(container)
            self.remove(container)

    def _remove_or_remember(self, container: str) -> None:
        try:
            translate(self.client.remove, container)
        except EngineError as error:
            self._unclaimed.add(container)
            logger.warning("container %.20s was not removed; it ends by itself: %s", container, error)

    def _discard(self, name: str, launch: concurrent.futures.Future[Launched]) -> None:
        """Wait for a launch whose caller has gone, and remove its container."""
        error = launch.exception()
        if error is None:
            launch.result().socket.close()
            self._remove_or_remember(launch.result().container)
        elif isinstance(error, EngineUnansweredError):
            self._unclaimed.add(name)


class Engine:
    """A connection to the container engine; open it, share it, close it.

    Opening is counted: every user that opens it closes it, and the last one ends the connection. It belongs to the
    event loop in which it is opened, until its last user has closed it.

    Args:
        creators: containers that are started at a time; more than two for each core only wait for one another.
    """

    def __init__(self, *, creators: int | None = None) -> None:
        self.creators = creators or 2 * (os.cpu_count() or 1)
        self.reaped = False  # containers of dead owners have been looked for
        self._session: Session | None = None
        self._users: range | None = None  # the user ids for boxes
        self._last_user = secrets.randbelow(len(_USERS))  # other processes begin elsewhere
        self._pulled: set[str] = set()  # images that were fetched because of pull="always"

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(self, *exc_info: object) -> None:
        await self.close()

    async def open(self) -> Self:
        """Connect, unless another user has connected already.

        Raises:
            EngineError: no engine answers, or it may not be used; the message says what to do.
            EngineLoopError: the engine is open in another event loop.
        """
        if self._session is None:
            self._session = Session(self.creators)
        session = self._session
        if session.loop is not asyncio.get_running_loop():
            raise EngineLoopError(
                "this Engine was opened in another event loop and is still open there: close what uses it (clones "
                "share the Engine of their executor), or make an Engine for each loop"
            )
        session.users += 1
        try:
            # Others may wait for the connection too, and they are not cancelled when this task is.
            await asyncio.shield(asyncio.wrap_future(session.connecting))
        except BaseException:
            await finish(self.close())
            raise
        return self

    async def close(self, deadline: float | None = None) -> None:
        """Undo one `open`; the last one waits for the removals that are under way, and lets the threads end.

        Args:
            deadline: the time of the event loop until which it waits; None for 15 seconds.
        """
        session = self.session
        session.users -= 1
        if not session.users:
            self._session = None  # at once: the engine may be opened anew while this waits
            await finish(session.end(deadline))

    @property
    def session(self) -> Session:
        """What is open.

        Raises:
            EngineError: the engine is not open.
        """
        if self._session is None:
            raise EngineError("the engine is not open: use `async with Engine() as engine`")
        return self._session

    @property
    def client(self) -> Client:
        """The blocking calls, to be made by `call`."""
        return self.session.client

    # Images.

    def lock(self, name: str) -> asyncio.Lock:
        """Held while an image of this name is fetched or built."""
        return self.session.locks.setdefault(name, asyncio.Lock())

    async def image(self, name: str, pull: Pull) -> Image:
        """Find an image, and fetch it from its registry if `pull` says so; one fetch of an image at a time.

        "always" fetches it once for this engine, however many boxes are made.

        Raises:
            ImageError: it is not there, and may not or could not be fetched.
            EngineError: the engine does not answer.
        """
        async with self.lock(name):
            outdated = pull == "always" and name not in self._pulled
            found = None if outdated else await self.call(self.client.inspect, name)
            if found is None and pull != "never":
                await self.talk(PULL_SECONDS, self.client.pull, name)
                self._pulled.add(name)
                found = await self.call(self.client.inspect, name)
        if found is None:
            raise ImageError(f"the engine has no image {name!r}, and pull='never' forbids fetching it")
        return found

    # Containers.

    async def new_user(self) -> int:
        """A user id that no other box of this `Engine` has, nor any ordinary user of the host.

        Raises:
            EngineError: the engine does not answer.
        """
        if self._users is None:
            self._users = _MAPPED_USERS if await self.call(self.client.maps_users) else _USERS
        users = self._users
        self._last_user += 1
        return users[self._last_user % len(users)]

    async def launch(self, name: str, config: dict[str, Any], *, best_effort: bool = False) -> Launched:
        """Create, attach and start a container; if this fails or is cancelled, the container is removed.

        Raises:
            EngineError: the engine refused, with its reason, or does not answer; or it does not hold one of the
                limits, unless `best_effort`.
        """
        return await self.session.launch(name, config, best_effort)

    def remove(self, container: str) -> concurrent.futures.Future[None]:
        """Begin to remove a container, running or not; the job ends when it is gone, as it may be already.

        If it is still there after that, a warning names it, and this engine tries again later, at the latest when it is
        closed.
        """
        return self.session.remove(container)

    # Threads.

    def submit(self, function: Callable[..., Result], *args: Any) -> concurrent.futures.Future[Result]:
        """Start a blocking function in a thread; its errors become ours, and `close` waits for it."""
        return self.session.submit(function, *args)

    async def call(self, function: Callable[..., Result], *args: Any) -> Result:
        """Await a blocking function that uses `client`; its errors become ours."""
        return await asyncio.wrap_future(self.submit(function, *args))

    async def talk(self, silence: float, function: Callable[..., Result], *args: Any) -> Result:
        """Await a blocking function whose answer may take minutes, with a `Line` to the engine as its first argument.

        It is given up after `silence` seconds in which the engine sends nothing. When this is cancelled it hangs up at
        once, and neither `close` nor the end of the program waits for the thread.
        """
        line = self.client.line(silence)
        job: concurrent.futures.Future[Result] = concurrent.futures.Future()
        job.set_running_or_notify_cancel()  # from here on it cannot be cancelled

        def work() -> None:
            try:
                job.set_result(translate(function, line, *args))
            except BaseException as error:
                job.set_exception(error)
            finally:
                line.close()

        threading.Thread(target=work, name="gymnast-line", daemon=True).start()
        try:
            return await asyncio.wrap_future(job)
        except asyncio.CancelledError:
            line.hang_up()
            raise


def _hang_up(connecting: concurrent.futures.Future[Client]) -> None:
    if not connecting.cancelled() and connecting.exception() is None:
        connecting.result().api.close()
