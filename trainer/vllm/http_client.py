"""HTTP calls to vLLM servers: one client for requests, health checks and weight updates."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Mapping
from typing import Any

import aiohttp

from ..generation.contract import GenerationError

CONNECT_SECONDS = 10.0
UPDATE_SECONDS = 1800.0  # all weights, over a slow network


class ServerGoneError(Exception):
    """A server cannot be reached, or ended while it worked on a request."""


class Client:
    """Calls servers. It belongs to the event loop that makes it.

    All calls raise `ServerGoneError` if there is no answer, and `GenerationError` if the answer is an error.
    """

    def __init__(self) -> None:
        # Servers close idle connections after five seconds: never reuse one that is about to be closed.
        connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=2.0, socket_factory=_socket)
        self._session = aiohttp.ClientSession(connector=connector)
        self._loop = asyncio.get_running_loop()

    async def call(
        self,
        method: str,
        url: str,
        body: Mapping[str, Any] | None = None,
        *,
        query: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> Any:
        """Return the JSON that the server answers.

        Args:
            method: GET or POST.
            url: The server's address and the path.
            body: Sent as JSON.
            query: Parameters of the URL.
            timeout: Seconds for the whole call.
        """
        status, data = await self.exchange(method, url, body, query=query, timeout=timeout)
        return read_json(url, status, data)

    async def exchange(
        self,
        method: str,
        url: str,
        body: Mapping[str, Any] | None = None,
        *,
        query: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> tuple[int, bytes]:
        """Return the status and the content of the server's answer; see `call`."""
        limits = aiohttp.ClientTimeout(total=timeout, sock_connect=CONNECT_SECONDS)
        headers = {"Content-Type": "application/json"}
        data = b"" if body is None else json.dumps(body).encode()
        try:
            async with self._session.request(
                method, url, data=data, params=query, headers=headers, timeout=limits
            ) as response:
                return response.status, await response.read()
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise ServerGoneError(f"{url}: {type(error).__name__} {error}") from error

    def call_from_thread(
        self, method: str, url: str, body: Mapping[str, Any] | None = None, *, query: Mapping[str, str] | None = None
    ) -> Any:
        """Do what `call` does, from a thread other than the event loop's. Weights may take half an hour."""
        call = self.call(method, url, body, query=query, timeout=UPDATE_SECONDS)
        return asyncio.run_coroutine_threadsafe(call, self._loop).result()

    async def close(self) -> None:
        """Close all connections."""
        await self._session.close()


def read_json(url: str, status: int, data: bytes) -> Any:
    """Return the JSON that a server answered.

    Raises:
        GenerationError: the server refused or failed (with its message), or did not answer JSON.
    """
    if status < 400:
        try:
            return json.loads(data) if data else None
        except ValueError as error:  # from a proxy between us and the server
            raise GenerationError(f"{url} answered no JSON: {data[:200]!r}") from error
    try:
        message = json.loads(data)["error"]["message"]
    except (ValueError, KeyError, TypeError):  # not in vLLM's form
        message = " ".join(data.decode(errors="replace").split())[:200]
    raise GenerationError(f"{url} answered {status}: {message}")


def _socket(address: tuple[Any, ...]) -> socket.socket:
    """Make a socket that notices a dead machine: it probes after 30 s of silence and gives up 30 s later."""
    family, kind, protocol, *_ = address
    made = socket.socket(family, kind, protocol)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3)):
        if hasattr(socket, name):  # not on every system
            made.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    return made
