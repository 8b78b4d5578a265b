"""The container engine: blocking calls (`client.py`) in a bounded number of threads.

Boxes share one `Engine` where many are made (a pool); a box on its own opens one for itself. What is started by a call
that is cancelled is removed as soon as the engine has answered, so a cancelled start leaves nothing behind.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import logging
import os
from collections.abc import Callable
from typing import Any, Literal, Self, TypeVar

from .cancellation import finish
from .client import Client, Image, Launched, translate
from .errors import EngineError, ImageError

Result = TypeVar("Result")
Pull = Literal["never", "missing", "always"]

logger = logging.getLogger("gymnast.sandbox")

_OTHERS = 8  # threads beside those that start containers
CLOSE_SECONDS = 10.0  # for what is still being removed when the engine is closed


class Engine:
    """A connection to the container engine; open it, share it, close it.

    Opening is counted: whoever opens it closes it, and the last one out ends the connection.

    Args:
        creators: containers that are started at a time; more than two for each core only wait for one another.
    """

    def __init__(self, *, creators: int | None = None) -> None:
        self.creators = creators or 2 * (os.cpu_count() or 1)
        self.reaped = False  # somebody has looked for what dead owners left
        self._users = 0
        self._connecting: asyncio.Task[None] | None = None
        self._threads: concurrent.futures.ThreadPoolExecutor | None = None
        self._turns = asyncio.Semaphore(self.creators)
        self._jobs: set[concurrent.futures.Future[Any]] = set()
        self._locks: dict[str, asyncio.Lock] = {}
        self._client: Client | None = None

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(self, *exc_info: object) -> None:
        await self.close()

    async def open(self) -> Self:
        """Connect, if nobody has yet.

        Raises:
            EngineError: no engine answers, or it may not be used; the message says what to do.
        """
        self._users += 1
        if self._users == 1:
            self._connecting = asyncio.ensure_future(self._connect())
        assert self._connecting is not None
        try:
            await asyncio.shield(self._connecting)
        except BaseException:
            await finish(self.close())
            raise
        return self

    async def _connect(self) -> None:
        # Made anew each time: they belong to the event loop in which they are waited for.
        self._turns, self._locks = asyncio.Semaphore(self.creators), {}
        self._threads = concurrent.futures.ThreadPoolExecutor(
            self.creators + _OTHERS, thread_name_prefix="gymnast-engine"
        )
        self._client = await self.call(Client, self.creators + _OTHERS)

    async def close(self) -> None:
        """Undo one `open`; the last one waits for what is still being removed, and lets the threads end."""
        assert self._users > 0, "an engine is closed as often as it was opened"
        self._users -= 1
        if self._users:
            return
        if self._connecting is not None and not self._connecting.done():
            with contextlib.suppress(EngineError):
                await self._connecting
        # Somebody may open it again while this waits.
        jobs, threads, client = self._jobs, self._threads, self._client
        self._jobs, self._threads, self._client = set(), None, None
        if jobs:
            await asyncio.wait([asyncio.wrap_future(job) for job in jobs], timeout=CLOSE_SECONDS)
        if threads is not None:
            threads.shutdown(wait=False)
        if client is not None:
            client.api.close()

    @property
    def client(self) -> Client:
        """The blocking calls, to be made by `call`."""
        if self._client is None:
            raise EngineError("the engine is not open: use `async with Engine() as engine`")
        return self._client

    # Images.

    def lock(self, name: str) -> asyncio.Lock:
        """Held while an image of this name is fetched or built."""
        return self._locks.setdefault(name, asyncio.Lock())

    async def image(self, name: str, pull: Pull) -> Image:
        """Find an image, fetching it from its registry if `pull` says so; one fetch of an image at a time.

        Raises:
            ImageError: it is not there, and may not or could not be fetched.
            EngineError: the engine does not answer.
        """
        async with self.lock(name):
            found = None if pull == "always" else await self.call(self.client.inspect, name)
            if found is None and pull != "never":
                await self.call(self.client.pull, name)
                found = await self.call(self.client.inspect, name)
        if found is None:
            raise ImageError(f"the engine has no image {name!r}, and pull='never' forbids fetching it")
        return found

    # Containers.

    async def launch(self, name: str, config: dict[str, Any]) -> Launched:
        """Create, attach and start a container; if this is cancelled, the container goes as soon as it has come.

        Raises:
            EngineError: the engine refused, with its reason.
        """
        async with self._turns:
            client = self.client
            job = self.submit(client.launch, name, config)
            try:
                return await asyncio.wrap_future(job)
            except asyncio.CancelledError:
                if not job.cancelled():
                    self.submit(_discard, client, job)
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
        if self._threads is None:
            raise EngineError("the engine is not open: use `async with Engine() as engine`")
        jobs, job = self._jobs, self._threads.submit(translate, function, *args)
        jobs.add(job)
        job.add_done_callback(jobs.discard)
        return job

    async def call(self, function: Callable[..., Result], *args: Any) -> Result:
        """Await a blocking function that uses `api`, its errors as ours."""
        return await asyncio.wrap_future(self.submit(function, *args))


def _discard(client: Client, launch: concurrent.futures.Future[Launched]) -> None:
    if launch.exception() is None:
        launch.result().socket.close()
        client.remove(launch.result().container)
