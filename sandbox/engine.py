"""The container engine: docker-py's blocking calls in a bounded number of threads.

Boxes share one `Engine` where many are made (a pool); a box on its own opens one for itself. What is started by a call
that is cancelled is removed as soon as the engine has answered, so a cancelled start leaves nothing behind.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import logging
import os
import socket
import urllib.parse
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar

from .cancellation import finish
from .errors import EngineError, ImageError
from .owner import LABEL

if TYPE_CHECKING:
    from docker import APIClient

Result = TypeVar("Result")
Pull = Literal["never", "missing", "always"]

logger = logging.getLogger("gymnast.sandbox")

CALL_SECONDS = 30.0  # for one answer of the engine
CLOSE_SECONDS = 10.0  # for what is still being removed when the engine is closed

INSTALL = (
    "On Debian or Ubuntu: `apt-get install docker.io`, then `systemctl start docker` (or run `dockerd`); "
    "elsewhere see https://docs.docker.com/engine/install/. DOCKER_HOST names another engine."
)


@dataclass(kw_only=True, slots=True, frozen=True)
class Launched:
    """A running container, and the socket that its standard streams are attached to."""

    container: str
    socket: socket.socket
    warnings: tuple[str, ...]  # measures that the engine refused


@dataclass(kw_only=True, slots=True, frozen=True)
class Image:
    """What is asked about an image before a container is made of it."""

    id: str
    volumes: list[str]
    labels: dict[str, str]
    size: int  # bytes


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
        self._api: APIClient | None = None

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
        self._threads = concurrent.futures.ThreadPoolExecutor(self.creators + 8, thread_name_prefix="gymnast-engine")
        self._api = await self.call(_connect, self._threads._max_workers)

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
        jobs, threads, api = self._jobs, self._threads, self._api
        self._jobs, self._threads, self._api = set(), None, None
        if jobs:
            await asyncio.wait([asyncio.wrap_future(job) for job in jobs], timeout=CLOSE_SECONDS)
        if threads is not None:
            threads.shutdown(wait=False)
        if api is not None:
            api.close()

    @property
    def api(self) -> APIClient:
        """docker-py's client, for calls in a thread."""
        if self._api is None:
            raise EngineError("the engine is not open: use `async with Engine() as engine`")
        return self._api

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
            found = None if pull == "always" else await self.call(self._inspect, name)
            if found is None and pull != "never":
                await self.call(self._pull, name)
                found = await self.call(self._inspect, name)
        if found is None:
            raise ImageError(f"the engine has no image {name!r}, and pull='never' forbids fetching it")
        return found

    def _inspect(self, name: str) -> Image | None:
        from docker.errors import ImageNotFound

        try:
            answer = self.api.inspect_image(name)
        except ImageNotFound:
            return None
        config = answer.get("Config") or {}
        return Image(
            id=answer["Id"],
            volumes=sorted(config.get("Volumes") or {}),
            labels=config.get("Labels") or {},
            size=answer["Size"],
        )

    def _pull(self, name: str) -> None:
        from docker.errors import APIError

        logger.info("fetching the image %s", name)
        try:
            lines = list(self.api.pull(name, tag=None if ":" in name else "latest", stream=True, decode=True))
        except APIError as error:
            raise ImageError(f"the image {name!r} could not be fetched: {error.explanation}") from error
        if lines and "error" in lines[-1]:
            raise ImageError(f"the image {name!r} could not be fetched: {lines[-1]['error']}")

    # Containers.

    async def launch(self, name: str, config: dict[str, Any]) -> Launched:
        """Create, attach and start a container; if this is cancelled, the container goes as soon as it has come.

        Raises:
            EngineError: the engine refused, with its reason.
        """
        async with self._turns:
            job = self.submit(self._launch, name, config)
            try:
                return await asyncio.wrap_future(job)
            except asyncio.CancelledError:
                if not job.cancelled():
                    self.submit(self._discard, job)
                raise

    def _launch(self, name: str, config: dict[str, Any]) -> Launched:
        made = self.api.create_container_from_config(config, name)
        attached = None
        try:
            attached = _attach(self.api, made["Id"])
            self.api.start(made["Id"])
        except BaseException:
            if attached is not None:
                attached.close()
            self.remove_now(made["Id"])
            raise
        return Launched(container=made["Id"], socket=attached, warnings=tuple(made.get("Warnings") or ()))

    def _discard(self, launch: concurrent.futures.Future[Launched]) -> None:
        if launch.exception() is None:
            launch.result().socket.close()
            self.remove_now(launch.result().container)

    async def remove(self, container: str) -> None:
        """Remove a container, running or not, and wait until it is gone; it may be gone already.

        Raises:
            EngineError: the engine refused or does not answer.
        """
        await self.call(self.remove_now, container)

    def remove_soon(self, container: str) -> None:
        """Remove a container in the background; `close` waits for it."""
        self.submit(self._remove_or_log, container)

    def remove_now(self, container: str) -> None:
        """As `remove`, for a caller that may block."""
        from docker.errors import APIError, NotFound

        try:
            self.api.remove_container(container, force=True, v=True)
        except NotFound:
            pass
        except APIError as error:
            if error.status_code != 409:
                raise
            # Somebody else, or the engine itself, is removing it.
            with contextlib.suppress(NotFound):
                self.api.wait(container, condition="removed", timeout=int(CALL_SECONDS))

    def _remove_or_log(self, container: str) -> None:
        try:
            self.remove_now(container)
        except Exception as error:
            logger.warning("container %.12s was not removed; it ends by itself: %s", container, error)

    def containers(self) -> list[dict[str, Any]]:
        """The containers that boxes were made of, by any process, in any state; blocks."""
        return self.api.containers(all=True, filters={"label": LABEL})

    # Threads.

    def submit(self, function: Callable[..., Result], *args: Any) -> concurrent.futures.Future[Result]:
        """Start a blocking function in a thread, its errors as ours; `close` waits for it."""
        if self._threads is None:
            raise EngineError("the engine is not open: use `async with Engine() as engine`")
        jobs, job = self._jobs, self._threads.submit(_translate, function, *args)
        jobs.add(job)
        job.add_done_callback(jobs.discard)
        return job

    async def call(self, function: Callable[..., Result], *args: Any) -> Result:
        """Await a blocking function that uses `api`, its errors as ours."""
        return await asyncio.wrap_future(self.submit(function, *args))


def _translate(function: Callable[..., Result], *args: Any) -> Result:
    """Run a blocking call, its errors as ours."""
    import requests
    from docker.errors import APIError, DockerException

    try:
        return function(*args)
    except APIError as error:
        raise EngineError(f"the engine refused: {error.explanation or error}") from error
    except (DockerException, requests.RequestException) as error:
        raise EngineError(f"the engine does not answer: {error}") from error


def _connect(threads: int) -> APIClient:
    from docker import APIClient  # loading it takes longer than the rest of the package
    from docker.constants import DEFAULT_UNIX_SOCKET
    from docker.utils import kwargs_from_env

    settings = kwargs_from_env()
    address = settings.get("base_url") or DEFAULT_UNIX_SOCKET.replace("http+unix", "unix")
    _probe(address, tls="tls" in settings)
    # The default of ten connections would make the other threads open a new one for each call.
    return APIClient(version="auto", timeout=int(CALL_SECONDS), max_pool_size=threads, **settings)


def _probe(address: str, *, tls: bool) -> None:
    """Connect once, as docker-py's own errors are texts and leave sockets open."""
    parts = urllib.parse.urlsplit(address)
    if tls or parts.scheme not in ("unix", "tcp", "http"):
        raise EngineError(
            f"a box needs an engine at unix:// or plain tcp://, not {'TLS at ' if tls else ''}{address}; "
            "forward a remote engine's socket: ssh -L /tmp/docker.sock:/var/run/docker.sock HOST"
        )
    try:
        if parts.scheme == "unix":
            with socket.socket(socket.AF_UNIX) as probe:
                probe.settimeout(CALL_SECONDS)
                probe.connect(parts.path)
        else:
            socket.create_connection((parts.hostname, parts.port or 2375), timeout=CALL_SECONDS).close()
    except PermissionError as error:
        raise EngineError(
            f"this user may not use the container engine at {address}: add it to the group `docker` "
            "(`usermod -aG docker $USER`, then log in again), or run as root"
        ) from error
    except OSError as error:
        raise EngineError(f"no container engine answers at {address} ({error}). {INSTALL}") from error


def _attach(api: APIClient, container: str) -> socket.socket:
    """The connection to a container's streams as a socket of our own, for the event loop."""
    params = {"stdin": 1, "stdout": 1, "stderr": 1, "stream": 1}
    wrapper: Any = api.attach_socket(container, params=params)
    try:
        # docker-py closes the connection when its wrapper is collected: we keep a duplicate instead.
        attached = socket.socket(fileno=os.dup(wrapper.fileno()))
    finally:
        wrapper._response.close()
        wrapper.close()
    attached.setblocking(False)
    return attached
