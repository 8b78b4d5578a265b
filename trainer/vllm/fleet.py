"""Fleet: vLLM servers that hold the same weights, some of which may be away.

The first request of a session goes to the replica with the fewest requests, and among these to the one with the fewest
sessions. The later ones go there, too, because that replica has their prefix in its cache. A server has one replica, or
several with `--data-parallel-size`. An unreachable server is left out and probed every second. It takes part again once
it has the current weights.

Each process counts its own requests only. So that processes that share the servers do not all fill the first ones, each
begins at another place of their list.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import aiohttp

from ...envs.core import ConfigurationError
from ..generation.contract import GenerationError
from ..models.images import ImageEncoder
from .server import START, Replica, Server, ServerGoneError

PROBE_SECONDS = 1.0  # between two probes of a server that is away
IDLE_SECONDS = 2.0  # to keep an idle connection; servers close it after five seconds, even if a request is on its way
ATTEMPTS = 5  # give up after this many servers fail; the request itself may crash them

logger = logging.getLogger(__name__)


class Fleet:
    """Routes requests to servers. All methods belong to one event loop.

    The arguments are as in `VLLMServerGenerator` and `Server.check`. `restore` sends the current weights to a server
    that returned, and returns False if that must wait.
    """

    def __init__(
        self,
        urls: Sequence[str],
        *,
        max_model_len: int,
        timeout: float,
        restore: Callable[[Server], Awaitable[bool]],
        images: ImageEncoder | None = None,
        place: float = 0.0,
    ) -> None:
        if not urls:
            raise ConfigurationError("vllm_server_urls is empty; give at least one, such as http://localhost:8000")
        cleaned = dict.fromkeys(map(_clean, urls))
        connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=IDLE_SECONDS)
        self._session = aiohttp.ClientSession(connector=connector)
        self.servers = [Server(url, self._session) for url in cleaned]
        self.label: str | None = None  # answers must come from the weights with this label
        self._needs = max_model_len, images
        self._timeout = timeout
        self._restore = restore
        self._place = place
        self._homes: WeakKeyDictionary[object, Replica] = WeakKeyDictionary()  # of sessions
        self._searches: dict[Server, asyncio.Task[None]] = {}
        self._found = asyncio.Event()
        self._closed = False

    async def open(self) -> None:
        """Wait for every server and check its options; a ConfigurationError of a server comes in an ExceptionGroup."""
        async with asyncio.TaskGroup() as tasks:
            for server in self.servers:
                tasks.create_task(self._await_start(server))

    async def ask(self, body: Mapping[str, Any], session: object | None = None) -> dict[str, Any]:
        """Send a request to a server with the current weights; return its answer, or raise a GenerationError."""
        trouble = ""
        for _ in range(ATTEMPTS):
            replica = await self.next_replica(session)
            label = self.label
            replica.in_flight += 1
            try:
                return await replica.server.generate(body, label, replica.index)
            except ServerGoneError as error:
                trouble = str(error)
            finally:
                replica.in_flight -= 1
            self._lose(replica.server, trouble)
        raise GenerationError(f"{ATTEMPTS} servers were lost while they answered this request; the last: {trouble}")

    def present(self) -> list[Server]:
        """Return the servers that are not known to be away."""
        return [server for server in self.servers if server not in self._searches]

    def relabel(self, label: str, outcomes: Mapping[Server, Exception | None]) -> None:
        """Accept only answers from the weights with this label, which these servers got, or failed to get."""
        self.label = label
        for server, error in outcomes.items():
            if error is None:
                server.label = label
            else:
                self._lose(server, str(error))
        self._found.set()

    async def close(self) -> None:
        """Stop probing and close the connections. Waiting requests fail."""
        self._closed = True
        searches = list(self._searches.values())
        for task in searches:
            task.cancel()
        await asyncio.gather(*searches, return_exceptions=True)
        self._found.set()
        await self._session.close()

    async def next_replica(self, session: object | None = None) -> Replica:
        """Return the session's replica if it has the current weights, or else another; wait if there is none.

        Raise a GenerationError if no server has the weights in time, or the fleet is closed.
        """
        try:
            async with asyncio.timeout(self._timeout):
                while True:
                    if self._closed:
                        raise GenerationError("the generator is closed")
                    ready = [
                        replica for server in self.servers if server.label == self.label for replica in server.replicas
                    ]
                    if ready:
                        home = None if session is None else self._homes.get(session)
                        return home if home in ready else self._settle(session, home, ready)
                    self._found.clear()
                    await self._found.wait()
        except TimeoutError as error:
            troubles = "; ".join(server.trouble for server in self.servers)
            raise GenerationError(f"no vLLM server answered within {self._timeout:g} s: {troubles}") from error

    def _settle(self, session: object | None, home: Replica | None, ready: list[Replica]) -> Replica:
        """Choose a replica for a session that has no home, or whose home is away: the one with the fewest requests.

        Of several, the one with the fewest sessions: a session that waits for a tool comes back to its replica.
        """
        ready.sort(key=lambda replica: replica.index)  # neighbours in the list are of different servers
        first = int(self._place * len(ready))
        chosen = min(ready[first:] + ready[:first], key=lambda replica: (replica.in_flight, len(replica.sessions)))
        if session is not None:
            if home is not None:
                home.sessions.discard(session)
            chosen.sessions.add(session)
            self._homes[session] = chosen
        return chosen

    def _lose(self, server: Server, trouble: str) -> None:
        server.label, server.trouble = None, trouble
        if server not in self._searches and not self._closed:
            self._searches[server] = asyncio.get_running_loop().create_task(self._search(server))
            logger.warning("lost a vLLM server, %d of %d are left: %s", len(self.present()), len(self.servers), trouble)

    async def _search(self, server: Server) -> None:
        """Probe a server until it takes part again."""
        while True:
            await asyncio.sleep(PROBE_SECONDS)
            try:
                await server.check_health()
                if await server.weights() != self.label:
                    await server.check(*self._needs)  # it may have restarted with other options
                    if not await self._restore(server):
                        continue
                await server.check_update()  # check this last, because the label changes before an update has ended
            except (ServerGoneError, GenerationError, ConfigurationError) as error:
                server.trouble = str(error)
                continue
            del self._searches[server]
            logger.warning("%s is back; %d of %d are there", server.url, len(self.present()), len(self.servers))
            server.label = self.label
            self._found.set()
            return

    async def _await_start(self, server: Server) -> None:
        try:
            async with asyncio.timeout(self._timeout):
                while True:
                    try:
                        await server.check_health()
                        break
                    except ServerGoneError as error:
                        if not server.trouble:
                            logger.warning("waiting up to %g s for a vLLM server: %s", self._timeout, error)
                        server.trouble = str(error)
                    await asyncio.sleep(PROBE_SECONDS)
        except TimeoutError as error:
            raise ConfigurationError(
                f"no vLLM server answered at {server.url} within {self._timeout:g} s ({server.trouble}); {START}"
            ) from error
        try:
            await server.check(*self._needs)
        except (ServerGoneError, GenerationError) as error:
            raise ConfigurationError(f"{server.url} cannot be used for training: {error}; {START}") from error


def _clean(url: str) -> str:
    """Return the address without a final slash or /v1; raise ConfigurationError if it is not one of HTTP."""
    if not re.match(r"https?://[^/]+", url):
        raise ConfigurationError(f"a vLLM server's address is like http://host:8000, got {url!r}")
    return url.rstrip("/").removesuffix("/v1")
