"""Server: one vLLM server, its HTTP calls, and the check that it has the needed options."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from io import BytesIO
from typing import Any
from weakref import WeakSet

import aiohttp
from yarl import URL

from ...envs.core import ConfigurationError
from ..generation.contract import GenerationError
from ..models.images import ImageEncoder, backend_of
from . import check_version
from .adapter_endpoint import PATH as ADAPTER
from .over_tcp import BACKEND
from .pictures import check_expansion, collapsed, content_parts, probe

CONNECT_SECONDS = 10.0
HEALTH_SECONDS = 10.0  # a server that takes longer to answer a health check is away
FIRST_SECONDS = 120.0  # for the first token, while the server may still compile
ONE_TOKEN = {
    "token_ids": [0],
    "sampling_params": {"allowed_token_ids": [0], "max_tokens": 1, "logprobs": 0, "detokenize": False},
}
RANK = "X-data-parallel-rank"  # the header that chooses a replica
START = "start it with `gymnast serve vllm MODEL`, or see that program for the options it needs"


class ServerGoneError(Exception):
    """A server cannot be reached, or ended while it worked on a request."""


@dataclass(slots=True, eq=False)
class Replica:
    """One copy of the model in a server, with a prefix cache of its own. The counts are those of this process."""

    server: Server
    index: int  # its rank, with `--data-parallel-size`
    in_flight: int = 0  # requests
    sessions: WeakSet[object] = field(default_factory=WeakSet)  # its length takes no loop over the sessions


class Server:
    """One server and its state.

    All methods raise `ServerGoneError` if there is no answer, and `GenerationError` if the answer is an error.
    """

    def __init__(self, url: str, session: aiohttp.ClientSession) -> None:
        self.url = url
        self.replicas = [Replica(self, 0)]
        self.label: str | None = None  # names its weights; None while it is away
        self.backend = BACKEND  # how it receives weights
        self.lora_rank = 0  # the largest rank of an adapter that it loads; 0 if it loads none
        self.image_backend: str | None = None  # of pictures; None if the server does not name it
        self.base: tuple[str, tuple[int, ...]] | None = None  # its weights' label, and the version of the base weights
        self.trouble = ""  # why it is away
        self._session = session

    async def get(self, path: str) -> Any:
        """Return the JSON that the server answers within `HEALTH_SECONDS`."""
        return self._read(path, *await self._exchange("GET", path, timeout=HEALTH_SECONDS))

    async def post(
        self,
        path: str,
        body: Mapping[str, Any] | bytes | None = None,
        *,
        timeout: float | None = None,
        headers: Mapping[str, str] | None = None,
        **query: str,
    ) -> Any:
        """Return the JSON that the server answers, and wait for it while the server's health checks pass.

        The body is sent as JSON, or as it is if it is bytes.
        """
        content: dict[str, Any] = {"data": BytesIO(body)} if isinstance(body, bytes) else {"json": body}
        content |= {"params": query, "headers": headers}
        call = asyncio.ensure_future(self._exchange("POST", path, timeout=timeout, **content))
        try:
            while not (await asyncio.wait([call], timeout=HEALTH_SECONDS))[0]:
                await self.check_health()
            status, data = call.result()
        finally:
            call.cancel()  # no effect once it has ended
        if status >= 500:
            await self.check_health()  # the engine behind the server may have died
        return self._read(path, status, data)

    async def generate(self, body: Mapping[str, Any], label: str | None, replica: int) -> dict[str, Any]:
        """Return the answer of a replica to a request for tokens.

        Raises:
            ServerGoneError: also if the server has other weights than those with this label: it was restarted since its
                last update.
        """
        answer: Any = None
        several = len(self.replicas) > 1  # vLLM itself would choose a replica for each request anew
        try:
            answer = await self.post("inference/v1/generate", body, headers={RANK: str(replica)} if several else None)
            found = {span["version"] for span in answer["choices"][0]["weight_versions"] or []}
        except GenerationError as error:
            found = {await self.weights()}
            if found == {label} == {self.label}:
                raise
            if found == {label}:  # another request has found it restarted, and it has been given its weights since
                raise ServerGoneError(f"{self.url} had been restarted: {error}") from error
        if found == {label}:
            return answer
        weights = f"the weights {found}" if found else "unlabelled weights"
        raise ServerGoneError(f"{self.url} answered with {weights} instead of {label!r}")

    async def weights(self) -> str | None:
        """Return the label of its weights."""
        return (await self.get("weight_info")).get("weight_version")

    async def has_base(self, version: tuple[int, ...]) -> bool:
        """Return whether it has these base weights of an adapter since the last update, and was not restarted."""
        try:
            return self.base is not None and self.base == (await self.weights(), version)
        except (ServerGoneError, GenerationError):  # the update will fail, too, and say so
            return False

    async def load_adapter(self, adapter: bytes, label: str) -> None:
        """Replace its adapter (`packed_adapter`), and give the weights this label."""
        await self.post(ADAPTER, adapter)
        await self.post("update_weight_version", {"new_version": label})

    async def check_health(self) -> None:
        """Raise ServerGoneError if the server is not healthy."""
        try:
            await self.get("health")
        except GenerationError as error:
            raise ServerGoneError(str(error)) from error

    async def own_address(self) -> str:
        """Return this machine's address as the server reaches it."""
        url = URL(self.url)
        try:
            _, writer = await asyncio.open_connection(url.host, url.port)
        except OSError as error:
            raise ServerGoneError(f"{self.url}: {error}") from error
        writer.close()
        return writer.get_extra_info("sockname")[0]

    async def check(self, max_model_len: int, images: ImageEncoder | None) -> None:
        """Raise a ConfigurationError if training cannot use the server; find its replicas and how it receives weights.

        `images` encodes the trainer's pictures, which the server must show alike; None without pictures.
        """
        check_version(self.url, (await self.get("version"))["version"])
        length = (await self.get("v1/models"))["data"][0]["max_model_len"]
        if length < max_model_len:
            raise ConfigurationError(
                f"{self.url} takes {length} tokens (--max-model-len), but episodes may have {max_model_len}: "
                f"set max_model_len={length}, or start the server with more"
            )
        await self.check_update()
        await self._check_answer()
        count = await self._count_replicas()
        if count != len(self.replicas):
            self.replicas = [Replica(self, index) for index in range(count)]
        await self._ask_endpoint()
        if images is not None:
            await self._check_pictures(images)
        self.backend = await self._find_backend()

    async def check_update(self) -> None:
        """Raise ConfigurationError after half an update: vLLM would mix the weights of two updates."""
        if (await self.get("is_paused"))["is_paused"]:
            raise ConfigurationError(f"{self.url} was left in the middle of an update of its weights: start it again")

    async def _check_answer(self) -> None:
        """Let one token be allowed: under the distribution that is sampled from, its log-probability is 0."""
        [choice] = (await self.post("inference/v1/generate", ONE_TOKEN, timeout=FIRST_SECONDS))["choices"]
        if choice["logprobs"]["content"][0]["logprob"] != 0:
            raise ConfigurationError(
                f"{self.url} reports other log-probabilities than those it samples from "
                f"(--logprobs-mode processed_logprobs is missing); {START}"
            )

    async def _check_pictures(self, images: ImageEncoder) -> None:
        """Compare the backend of the pixels, and the tokens of two pictures."""
        backend, sent = backend_of(images.processor), probe(images)
        if backend and self.image_backend and backend != self.image_backend:
            raise ConfigurationError(
                f"{self.url} makes the pixels of pictures with {self.image_backend!r}, and the trainer with "
                f"{backend!r}, which rounds otherwise: start the server with --mm-processor-kwargs "
                f"'{json.dumps({'backend': backend})}'"
            )
        ids, parts = collapsed(sent, images.placeholder_id), content_parts(sent.pictures)
        body = ONE_TOKEN | {"token_ids": ids, "content_parts": parts, "return_token_ids": True}
        try:
            found = (await self.post("inference/v1/generate", body))["prompt_token_ids"]
        except ServerGoneError as error:
            raise ServerGoneError(f"it was lost while it was shown a picture: {error}") from error
        except GenerationError as error:
            found = error
        check_expansion(sent, found, f"the vLLM server {self.url}")

    async def _count_replicas(self) -> int:
        """Ask for a replica that does not exist: the error says how many there are behind this address."""
        try:
            await self.post("inference/v1/generate", ONE_TOKEN, headers={RANK: str(10**6)})
        except GenerationError as error:
            found = re.search(r"out of range \[0, (\d+)\)", str(error))
            if found is None:
                raise
            return int(found[1])
        return 1

    async def _find_backend(self) -> str:
        """Return the server's backend: ours accepts an empty set-up, and vLLM's names itself in its error."""
        try:
            await self.post("init_weight_transfer_engine", {"init_info": {}})
        except GenerationError as error:
            if "NCCLWeightTransferEngine" in str(error):
                return "nccl"
            raise ConfigurationError(f"{self.url} cannot be given new weights: {error}; {START}") from error
        return BACKEND

    async def _ask_endpoint(self) -> None:
        try:
            found = await self.get(ADAPTER)
        except GenerationError as error:
            if "answered 404" not in str(error):
                raise
            found = {"max_lora_rank": 0, "image_backend": None}  # it was started without our program
        self.lora_rank, self.image_backend = found["max_lora_rank"], found["image_backend"]

    async def _exchange(self, method: str, path: str, *, timeout: float | None, **options: Any) -> tuple[int, bytes]:
        limits = aiohttp.ClientTimeout(total=timeout, sock_connect=CONNECT_SECONDS)
        try:
            async with self._session.request(method, f"{self.url}/{path}", timeout=limits, **options) as response:
                return response.status, await response.read()
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise ServerGoneError(f"{self.url}/{path}: {type(error).__name__} {error}") from error

    def _read(self, path: str, status: int, data: bytes) -> Any:
        """Return the JSON of an answer; raise GenerationError with the server's message if it is an error."""
        if status < 400:
            try:
                return json.loads(data) if data else None
            except ValueError as error:  # from a proxy between us and the server
                raise GenerationError(f"{self.url}/{path} answered no JSON: {data[:200]!r}") from error
        try:
            message = json.loads(data)["error"]["message"]
        except (ValueError, KeyError, TypeError):  # not in vLLM's form
            message = " ".join(data.decode(errors="replace").split())[:200]
        raise GenerationError(f"{self.url}/{path} answered {status}: {message}")
