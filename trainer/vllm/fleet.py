"""Fleet: vLLM servers that hold the same weights, some of which may be away.

A request goes to the server with the fewest requests. An unreachable server is left out and probed every second. It
takes part again once it has the current weights.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...envs.core import ConfigurationError
from ..generation.contract import GenerationError
from .http_client import Client, ServerGoneError, read_json
from .over_tcp import BACKEND

OLDEST = (0, 32)  # the first version whose answers name the weights they come from
PROBE_SECONDS = 1.0  # between two probes of a server that is away
HEALTH_SECONDS = 10.0  # a server that takes longer to answer a health check is away
FIRST_SECONDS = 120.0  # for the first token, while the server may still compile
ATTEMPTS = 5  # a request that loses this many servers may be what kills them
START = "start it with `python -m gymnast.trainer.vllm.serve MODEL`, or see that program for the options it needs"


logger = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class Server:
    """The state of one server."""

    url: str
    in_flight: int = 0  # requests of this process
    label: str | None = None  # names its weights; None while it is away
    backend: str = BACKEND  # how it receives weights
    trouble: str = ""  # why it is away


class Fleet:
    """Routes requests to servers. All methods belong to one event loop.

    Args:
        urls: The servers.
        max_model_len: Most tokens of prompt and answer that requests will have.
        timeout: Seconds to wait when no server is there.
        restore: Sends the current weights to a server that returned; returns False if that must wait.
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
        self.label: str | None = None  # answers must come from the weights with this label
        self._max_model_len = max_model_len
        self._timeout = timeout
        self._restore = restore
        self.client = Client()
        self._searches: dict[Server, asyncio.Task[None]] = {}
        self._found = asyncio.Event()
        self._closed = False

    async def open(self) -> None:
        """Wait for every server and check that it has the needed options.

        Raises:
            ConfigurationError: a server lacks an option or did not answer in time.
        """
        async with asyncio.TaskGroup() as tasks:
            for server in self.servers:
                tasks.create_task(self._await_start(server))

    async def ask(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Send a request for tokens to a server with the current weights, and return the answer.

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
            self._lose(server, trouble)  # it was restarted in between
        raise GenerationError(f"{ATTEMPTS} servers were lost while they answered this request; the last: {trouble}")

    async def _watched(self, server: Server, asking: Coroutine[Any, Any, Any]) -> Any:
        """Wait for a server's answer while its health checks pass.

        Raises:
            ServerGoneError: a health check failed.
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
            task.cancel()  # no effect once it has ended

    def present(self) -> list[Server]:
        """The servers that are not known to be away."""
        return [each for each in self.servers if each not in self._searches]

    def relabel(self, label: str, outcomes: Mapping[Server, Exception | None]) -> None:
        """Accept only answers from the weights with this label from now on.

        Args:
            label: Names the weights.
            outcomes: For each server that was updated, None for success or the error.
        """
        self.label = label
        for server, error in outcomes.items():
            if error is None:
                self._has_weights(server)
            else:
                self._lose(server, str(error))

    async def wait_for_one(self) -> None:
        """Raise GenerationError if no server gets the current weights in time."""
        await self._next()

    async def close(self) -> None:
        """Stop probing and close the connections. Waiting requests fail."""
        self._closed = True
        searches = list(self._searches.values())
        for task in searches:
            task.cancel()
        await asyncio.gather(*searches, return_exceptions=True)
        self._found.set()
        await self.client.close()

    # One server.

    async def check(self, server: Server) -> None:
        """Check that training can use a server, and find out how it receives weights.

        Raises:
            ConfigurationError: training cannot use it.
            GenerationError: it does not know an endpoint.
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
        """Refuse a server with half an update: vLLM would mix the weights of two updates."""
        if (await self._get(server, "is_paused"))["is_paused"]:
            raise ConfigurationError(f"{server.url} was left in the middle of an update of its weights: start it again")

    async def _check_answer(self, server: Server) -> None:
        """Sample one token with top_k=1: under the distribution that is sampled from, its log-probability is 0."""
        sampling = {"temperature": 0.5, "top_k": 1, "max_tokens": 1, "logprobs": 0, "detokenize": False}
        body = {"token_ids": [0], "sampling_params": sampling}
        [choice] = (await self._post(server, "inference/v1/generate", body, timeout=FIRST_SECONDS))["choices"]
        if choice["logprobs"]["content"][0]["logprob"] != 0:
            raise ConfigurationError(
                f"{server.url} reports other log-probabilities than those it samples from "
                f"(--logprobs-mode processed_logprobs is missing); {START}"
            )

    async def _find_backend(self, server: Server) -> str:
        """Return the server's backend: ours accepts an empty set-up, and vLLM's names itself in its error."""
        try:
            await self._post(server, "init_weight_transfer_engine", {"init_info": {}})
        except GenerationError as error:
            if "NCCLWeightTransferEngine" in str(error):
                return "nccl"
            raise ConfigurationError(f"{server.url} cannot be given new weights: {error}; {START}") from error
        return BACKEND

    async def _get(self, server: Server, path: str) -> Any:
        return await self.client.call("GET", f"{server.url}/{path}", timeout=HEALTH_SECONDS)

    async def _post(self, server: Server, path: str, body: Mapping[str, Any], *, timeout: float | None = None) -> Any:
        url = f"{server.url}/{path}"
        status, data = await self.client.exchange("POST", url, body, timeout=timeout)
        if status >= 500:
            try:
                await self._get(server, "health")
            except GenerationError as error:  # the engine behind the server has died
                raise ServerGoneError(str(error)) from error
        return read_json(url, status, data)

    # Which servers are there.

    async def _next(self) -> Server:
        """Wait for a server with the current weights, and return the one with the fewest requests."""
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
        """Probe a server until it takes part again."""
        while True:
            await asyncio.sleep(PROBE_SECONDS)
            try:
                await self._get(server, "health")
                if (await self._get(server, "weight_info"))["weight_version"] != self.label:
                    await self.check(server)  # it may have restarted with other options
                    if not await self._restore(server):
                        continue
                await self._check_update(server)  # last: the label changes before an update has ended
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


def _clean(url: str) -> str:
    """Return the address without a final slash or /v1.

    Raises:
        ConfigurationError: it is not an HTTP address.
    """
    if not re.match(r"https?://[^/]+", url):
        raise ConfigurationError(f"a vLLM server's address is like http://host:8000, got {url!r}")
    return url.rstrip("/").removesuffix("/v1")
