"""WebSocketEnvironments: environments on machines that run `gymnast serve environments`."""

from __future__ import annotations

import asyncio
import concurrent.futures
import itertools
import logging
import os
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import aiohttp

from ...envs.core import ConfigurationError
from ...envs.runtime.threads import run_in_loop
from ..hosting.link import HostLink, HostLostError, check_version
from ..hosting.remote_environments import RemoteEnvironments
from .server import HEARTBEAT_SECONDS, TOKEN_VARIABLE
from .wire import MAX_BYTES, from_text, to_text

CONNECT_SECONDS = 10.0
RETRY_SECONDS = 5.0  # between two attempts to connect to a host that was lost

logger = logging.getLogger("gymnast.cluster")


class WebSocketLink(HostLink):
    """The way to one server. Its state belongs to the event loop that `run_in_loop` uses.

    When the connection ends, the server counts as lost until a task in the background has connected again.
    """

    def __init__(self, url: str, token: str, heartbeat: float) -> None:
        super().__init__(url)
        self._headers = {"Authorization": f"Bearer {token}"}
        self._heartbeat = heartbeat
        self._connection: _Connection | None = None
        self._connections: dict[int, _Connection] = {}  # of each episode: a new one does not know it
        self._reconnecting: asyncio.Task[None] | None = None
        self._is_closed = False
        self.loop: asyncio.AbstractEventLoop | None = None

    async def _ask(self, method: str, episode: int, *arguments: Any) -> Any:
        call = self._ask_here(method, episode, *arguments)
        if self.loop is None or self.loop is asyncio.get_running_loop():
            return await call
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(call, self.loop))

    async def connect(self) -> list[str | None]:
        """Connect now, and return the names of the server's environments.

        Raises:
            HostLostError: it does not answer.
            ConfigurationError: it refuses the token, is no server of ours, or has another version.
        """
        self.loop = asyncio.get_running_loop()
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS)
        session = aiohttp.ClientSession(headers=self._headers, timeout=timeout)
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                names = await _facts(self.name, session)
                socket = await session.ws_connect(
                    f"{self.name}/calls", heartbeat=self._heartbeat, max_msg_size=MAX_BYTES
                )
        except BaseException as error:
            await session.close()
            if isinstance(error, aiohttp.ClientError | OSError | TimeoutError):
                raise HostLostError(f"{self.name}: {error or type(error).__name__}") from error
            raise
        self._connection = _Connection(self.name, session, socket, self._lose)
        self.is_lost = False
        return names

    async def close(self) -> None:
        self._is_closed = True
        if self._reconnecting is not None:
            self._reconnecting.cancel()
        if self._connection is not None:
            await self._connection.close()

    async def _ask_here(self, method: str, episode: int, *arguments: Any) -> Any:
        connection = self._connections.get(episode, self._connection)
        if connection is None:
            raise HostLostError(f"{self.name} does not answer; the next attempt is within {RETRY_SECONDS:g} s")
        self._connections[episode] = connection
        try:
            return await connection.ask(method, episode, arguments)
        finally:
            if method == "close":
                del self._connections[episode]

    def _lose(self) -> None:
        self._connection, self.is_lost = None, True
        if not self._is_closed:
            self._reconnecting = asyncio.create_task(self._reconnect())

    async def _reconnect(self) -> None:
        refusal = ""
        while self.is_lost:
            await asyncio.sleep(RETRY_SECONDS)
            try:
                await self.connect()
            except HostLostError:
                continue
            except ConfigurationError as error:  # such as another version, which only a person can change
                if str(error) != refusal:
                    refusal = str(error)
                    logger.warning("the host %s is back, but it cannot be used: %s", self.name, refusal)


class _Connection:
    """One connection, and the calls that wait for its answers."""

    def __init__(
        self,
        url: str,
        session: aiohttp.ClientSession,
        socket: aiohttp.ClientWebSocketResponse,
        ended: Callable[[], None],
    ) -> None:
        self.trouble = ""  # why it has ended
        self._url = url
        self._session = session
        self._socket = socket
        self._numbers = itertools.count()
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._ended = ended
        self._reader = asyncio.create_task(self._read())

    async def ask(self, method: str, episode: int, arguments: Sequence[Any]) -> Any:
        """Ask the server, and wait for its answer; a HostLostError if the connection ends before."""
        number = next(self._numbers)
        text = to_text({"number": number, "method": method, "episode": episode, "arguments": list(arguments)})
        if self.trouble:
            raise HostLostError(self.trouble)
        answer = self._waiting[number] = asyncio.get_running_loop().create_future()
        try:
            await self._socket.send_str(text)
            return await answer
        except ConnectionError as error:
            raise HostLostError(f"{self._url}: {error}") from error
        finally:
            self._waiting.pop(number, None)

    async def close(self) -> None:
        await self._socket.close()
        await asyncio.wait([self._reader])
        await self._session.close()

    async def _read(self) -> None:
        trouble = "it hung up"
        try:
            async for message in self._socket:
                if message.type is not aiohttp.WSMsgType.TEXT:
                    break
                reply = from_text(message.data)
                waiting = self._waiting.get(reply["number"])
                if waiting is not None and not waiting.done():
                    waiting.set_result(reply["result"])
            if isinstance(self._socket.exception(), Exception):
                trouble = f"it did not answer a ping ({self._socket.exception()!r})"
        except (ValueError, TypeError, KeyError) as error:
            trouble = f"it sent no message of ours ({error})"
        finally:
            self.trouble = f"{self._url}: {trouble}"
            self._ended()
            for waiting in self._waiting.values():
                if not waiting.done():
                    waiting.set_exception(HostLostError(self.trouble))
            await self._session.close()


async def _facts(url: str, session: aiohttp.ClientSession) -> list[str | None]:
    """Return the names of the server's environments, after a look at its version."""
    async with session.get(f"{url}/facts") as response:
        if response.status == 401:
            raise ConfigurationError(f"{url} refused the token: {TOKEN_VARIABLE} must be the same there and here")
        if response.status >= 500:  # a proxy answers so while the server starts again
            raise HostLostError(f"{url} answered with status {response.status}")
        try:
            facts = await response.json()
            theirs, names = facts["version"], facts["environments"]
        except (aiohttp.ContentTypeError, ValueError, TypeError, KeyError) as error:
            raise ConfigurationError(f"{url} is no server of `gymnast serve environments`") from error
    check_version(url, theirs)
    return names


class WebSocketEnvironments(RemoteEnvironments):
    """Environments on machines that run `gymnast serve environments`; valid wherever `environment=` is.

        trainer = GRPOTrainer(model, environment=WebSocketEnvironments(["ws://10.0.0.7:8760"]), ...)

    Each episode goes to the server with the fewest episodes. If a server is lost, or its connection, exactly its
    episodes fail, and `on_failure` decides about them. It gets new episodes when it is back. Rows and messages may hold
    text, numbers, bytes, lists and dicts.

    Args:
        urls: The servers; all have the same environments.
        token: The secret of the servers; by default the environment variable GYMNAST_CLUSTER_TOKEN.
        heartbeat: Seconds between two pings; a server that does not answer one in half that time is lost.

    Raises:
        ConfigurationError: a server cannot be reached, refuses the token, or has another version of gymnast.
    """

    def __init__(self, urls: Sequence[str], *, token: str | None = None, heartbeat: float = HEARTBEAT_SECONDS) -> None:
        if isinstance(urls, str) or not urls:
            raise ValueError(f"urls must be a list such as ['ws://10.0.0.7:8760'], got {urls!r}")
        if wrong := [url for url in urls if not url.startswith(("ws://", "wss://"))]:
            raise ValueError(f"the address of a server of environments begins with ws:// or wss://, got {wrong[0]!r}")
        token = os.environ.get(TOKEN_VARIABLE) if token is None else token
        if not token:
            raise ConfigurationError(f"set {TOKEN_VARIABLE} to the secret of the servers, or give token=")
        links = [WebSocketLink(url.rstrip("/"), token, heartbeat) for url in urls]
        self._finalizer = weakref.finalize(self, _hang_up, links)
        try:
            super().__init__(run_in_loop(_connect_all(links)), links)
        except BaseException as error:
            self.close()
            if isinstance(error, HostLostError):
                raise ConfigurationError(f"no server of environments answers: {error}") from error
            raise

    def close(self) -> None:
        """Hang up; the servers close the environments."""
        self._finalizer()


async def _connect_all(links: Sequence[WebSocketLink]) -> list[str | None]:
    found = [await link.connect() for link in links]
    for link, names in zip(links, found, strict=True):
        if names != found[0]:
            raise ConfigurationError(f"{link.name} has the environments {names}, and {links[0].name} has {found[0]}")
    return found[0]


def _hang_up(links: Sequence[WebSocketLink]) -> None:
    async def close() -> None:
        await asyncio.gather(*(link.close() for link in links))

    loops = [link.loop for link in links if link.loop is not None]
    if loops:
        closing = asyncio.run_coroutine_threadsafe(close(), loops[0])
        try:
            asyncio.get_running_loop()
        except RuntimeError:  # not inside a loop: waiting inside one could block the loop that has to close
            concurrent.futures.wait([closing], timeout=CONNECT_SECONDS)
