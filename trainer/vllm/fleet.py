"""Fleet: vLLM servers that hold the same weights, and of which some may be away.

A request goes to the server that has the fewest. A server that cannot be reached is left out, and asked every second
whether it is back; it takes part again once it has the current weights.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
import socket
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import aiohttp

from ..envs.core import ConfigurationError
from .generation import GenerationError
from .vllm_tcp import BACKEND
from .vllm_transfer import CONNECT_SECONDS, ServerGoneError, read_answer

OLDEST = (0, 32)  # the first whose answers tell the weights that they come from
PROBE_SECONDS = 1.0  # between two looks at a server that is away
HEALTH_SECONDS = 10.0  # a server that takes longer for the least of answers is away
FIRST_SECONDS = 120.0  # for one token, while the server may still compile
ATTEMPTS = 5  # servers that one request may lose before it is suspected of ending them
START = "start it with `python -m gymnast.trainer.vllm_serve MODEL`, or see that program for the options it needs"


logger = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class Server:
    """A server, and what is known of it."""

    url: str
    in_flight: int = 0  # requests of this process
    label: str | None = None  # of the weights that it has; None while it is away
    backend: str = BACKEND  # how it takes weights
    trouble: str = ""  # why it is away


class Fleet:
    """Servers behind one door. All methods belong to one event loop.

    Args:
        urls: The servers.
        max_model_len: Tokens of prompt and answer that will be asked for.
        timeout: Seconds to wait for a server when there is none.
        restore: Brings the current weights to a server that came back without them; False if that must wait.
    """

    def __init__(
        self,
        urls: Sequence[str],
        *,
        max_model_len: int,
        timeout: float,
        restore: Callable[[Server], Awaitable[bool]],
    ) -> None:
        self.servers = [Server(_clean(url)) for url in dict.fromkeys(urls)]
        if not self.servers:
            raise ConfigurationError("vllm_server_urls is empty; give at least one, such as http://localhost:8000")
        self.label: str | None = None  # of the weights that answers must come from
        self._max_model_len = max_model_len
        self._timeout = timeout
        self._restore = restore
        # Servers close idle connections after five seconds: never take one that is about to be closed.
        connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=2.0, socket_factory=_socket)
        self._session = aiohttp.ClientSession(connector=connector)
        self._searches: dict[Server, asyncio.Task[None]] = {}
        self._found = asyncio.Event()
        self._closed = False

    async def open(self) -> None:
        """Wait until every server is there, and check that it can do what is needed.

        Raises:
            ConfigurationError: it cannot, or there was none in time.
        """
        async with asyncio.TaskGroup() as tasks:
            for server in self.servers:
                tasks.create_task(self._await_start(server))

    async def ask(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """The answer of one server that has the current weights, to a request for tokens.

        Raises:
            GenerationError: the server refused, or no server was there in time.
        """
        trouble = ""
        for _ in range(ATTEMPTS):
            server = await self._next()
            label = self.label
            server.in_flight += 1
            try:
                answer = await self._watched(server, self._post(server, "inference/v1/generate", body))
            except ServerGoneError as error:
                trouble = str(error)
                self._lose(server, trouble)
                continue
            finally:
                server.in_flight -= 1
            found = {span["version"] for span in answer["choices"][0]["weight_versions"] or []}
            if found == {label}:
                return answer
            trouble = f"{server.url} answered with the weights {found or 'of no name'} instead of {label!r}"
            self._lose(server, trouble)  # it was started again behind our back
        raise GenerationError(f"{ATTEMPTS} servers were lost while they answered this request; the last: {trouble}")

    async def _watched(self, server: Server, asking: Coroutine[Any, Any, Any]) -> Any:
        """What a server answers, as long as it says that it is well.

        Raises:
            ServerGoneError: it does not.
        """
        task = asyncio.ensure_future(asking)
        try:
            while not (await asyncio.wait([task], timeout=HEALTH_SECONDS))[0]:
                try:
                    await self._get(server, "health")
                except GenerationError as error:
                    raise ServerGoneError(str(error)) from error
            return task.result()
        finally:
            task.cancel()  # which does nothing to one that has ended

    def present(self) -> list[Server]:
        """The servers that are not known to be away."""
        return [each for each in self.servers if each not in self._searches]

    def relabel(self, label: str, outcomes: Mapping[Server, Exception | None]) -> None:
        """Answers must come from the weights of this label from now on; these servers have got them, or failed to."""
        self.label = label
        for server, error in outcomes.items():
            if error is None:
                self._has_weights(server)
            else:
                self._lose(server, str(error))

    async def wait_for_one(self) -> None:
        """Raises: GenerationError: no server has the current weights, nor gets them in time."""
        await self._next()

    async def close(self) -> None:
        """Stop looking for servers, and hang up; requests that still wait fail."""
        self._closed = True
        searches = list(self._searches.values())
        for task in searches:
            task.cancel()
        await asyncio.gather(*searches, return_exceptions=True)
        self._found.set()
        await self._session.close()

    # One server.

    async def check(self, server: Server) -> None:
        """See whether a server can be trained with, and how it takes weights.

        Raises:
            ConfigurationError: it cannot.
            GenerationError: it does not even know what it is asked.
            ServerGoneError: it is away.
        """
        version = (await self._get(server, "version"))["version"]
        if tuple(int(part) for part in re.findall(r"\d+", version)[:2]) < OLDEST:
            raise ConfigurationError(
                f"{server.url} runs vLLM {version}; gymnast needs {OLDEST[0]}.{OLDEST[1]} or newer"
            )
        length = (await self._get(server, "v1/models"))["data"][0]["max_model_len"]
        if length < self._max_model_len:
            raise ConfigurationError(
                f"{server.url} takes {length} tokens (--max-model-len), but episodes may have {self._max_model_len}: "
                f"set max_model_len={length}, or start the server with more"
            )
        await self._check_update(server)
        await self._check_answer(server)
        server.backend = await self._find_backend(server)

    async def _check_update(self, server: Server) -> None:
        """Weights that came halfway cannot be completed: vLLM would mix those of two updates."""
        if (await self._get(server, "is_paused"))["is_paused"]:
            raise ConfigurationError(f"{server.url} was left in the middle of an update of its weights: start it again")

    async def _check_answer(self, server: Server) -> None:
        """One token, of which there is one choice: the log-probability of what was sampled from is zero."""
        sampling = {"temperature": 0.5, "top_k": 1, "max_tokens": 1, "logprobs": 0, "detokenize": False}
        body = {"token_ids": [0], "sampling_params": sampling}
        [choice] = (await self._post(server, "inference/v1/generate", body, timeout=FIRST_SECONDS))["choices"]
        if choice["logprobs"]["content"][0]["logprob"] != 0:
            raise ConfigurationError(
                f"{server.url} reports other log-probabilities than those it samples from "
                f"(--logprobs-mode processed_logprobs is missing); {START}"
            )

    async def _find_backend(self, server: Server) -> str:
        """How the server takes weights: ours has nothing to agree on beforehand, and vLLM's names itself."""
        try:
            await self._post(server, "init_weight_transfer_engine", {"init_info": {}})
        except GenerationError as error:
            if "NCCLWeightTransferEngine" in str(error):
                return "nccl"
            raise ConfigurationError(f"{server.url} cannot be given new weights: {error}; {START}") from error
        return BACKEND

    async def _get(self, server: Server, path: str) -> Any:
        return read_answer(*await self._request("GET", server, path, None, HEALTH_SECONDS))

    async def _post(self, server: Server, path: str, body: Mapping[str, Any], *, timeout: float | None = None) -> Any:
        url, status, data = await self._request("POST", server, path, json.dumps(body).encode(), timeout)
        if status >= 500:
            try:
                await self._get(server, "health")
            except GenerationError as error:  # the engine behind the server has died
                raise ServerGoneError(str(error)) from error
        return read_answer(url, status, data)

    async def _request(
        self, method: str, server: Server, path: str, body: bytes | None, timeout: float | None
    ) -> tuple[str, int, bytes]:
        """What was asked, and the status and the content of the answer."""
        url = f"{server.url}/{path}"
        limits = aiohttp.ClientTimeout(total=timeout, sock_connect=CONNECT_SECONDS)
        headers = {"Content-Type": "application/json"}
        try:
            async with self._session.request(method, url, data=body, headers=headers, timeout=limits) as response:
                return url, response.status, await response.read()
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise ServerGoneError(f"{server.url}: {type(error).__name__} {error}") from error

    # Who is there.

    async def _next(self) -> Server:
        """The server with the fewest requests, once there is one."""
        try:
            async with asyncio.timeout(self._timeout):
                while True:
                    if self._closed:
                        raise GenerationError("the generator is closed")
                    if self.label is None:
                        raise GenerationError("no weights were loaded; call load_weights first")
                    ready = [each for each in self.servers if each.label == self.label]
                    if ready:
                        return min(ready, key=lambda each: each.in_flight)
                    self._found.clear()
                    await self._found.wait()
        except TimeoutError as error:
            troubles = "; ".join(each.trouble for each in self.servers)
            raise GenerationError(f"no vLLM server answered within {self._timeout:g} s: {troubles}") from error

    def _has_weights(self, server: Server) -> None:
        server.label = self.label
        self._found.set()

    def _lose(self, server: Server, trouble: str) -> None:
        server.label, server.trouble = None, trouble
        if server not in self._searches and not self._closed:
            left = len(self.present()) - 1
            logger.warning("lost a vLLM server, %d of %d are left: %s", left, len(self.servers), trouble)
            task = asyncio.get_running_loop().create_task(self._search(server))
            self._searches[server] = task

    async def _search(self, server: Server) -> None:
        """Until the server takes part again."""
        while True:
            await asyncio.sleep(PROBE_SECONDS)
            try:
                await self._get(server, "health")
                if (await self._get(server, "weight_info"))["weight_version"] != self.label:
                    await self.check(server)  # it may have been started again, with other options
                    if not await self._restore(server):
                        continue
                await self._check_update(server)  # last: an update says its label before it has ended
            except (ServerGoneError, GenerationError, ConfigurationError) as error:
                server.trouble = str(error)
                continue
            del self._searches[server]
            logger.warning("%s is back; %d of %d are there", server.url, len(self.present()), len(self.servers))
            self._has_weights(server)
            return

    async def _await_start(self, server: Server) -> None:
        deadline = asyncio.get_running_loop().time() + self._timeout
        told = False
        while True:
            try:
                await self._get(server, "health")
                break
            except (ServerGoneError, GenerationError) as error:
                if asyncio.get_running_loop().time() > deadline:
                    raise ConfigurationError(
                        f"no vLLM server answered at {server.url} within {self._timeout:g} s ({error}); {START}"
                    ) from error
                if not told:
                    logger.warning("waiting up to %g s for a vLLM server: %s", self._timeout, error)
                    told = True
            await asyncio.sleep(PROBE_SECONDS)
        try:
            await self.check(server)
        except (ServerGoneError, GenerationError) as error:
            raise ConfigurationError(f"{server.url} is no server to train with: {error}; {START}") from error


def _socket(address: tuple[Any, ...]) -> socket.socket:
    """A socket that notices when the other machine has lost its power: half a minute of silence, and as long again."""
    family, kind, protocol, *_ = address
    made = socket.socket(family, kind, protocol)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3)):
        if hasattr(socket, name):  # not on every system
            made.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    return made


def _clean(url: str) -> str:
    """Without a final slash.

    Raises:
        ConfigurationError: it is no address of a server.
    """
    if not re.match(r"https?://[^/]+", url):
        raise ConfigurationError(f"a vLLM server's address is like http://host:8000, got {url!r}")
    return url.rstrip("/").removesuffix("/v1")
