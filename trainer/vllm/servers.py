"""VLLMServerGenerator: samples with one or several vLLM servers."""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import math
import secrets
import weakref
from collections.abc import Sequence
from functools import cache
from typing import Any

from torch import Tensor
from transformers import PreTrainedModel

from ...envs.runtime.threads import run_in_loop, run_in_thread
from ...sandbox.cancellation import finish
from ..generation.contract import Generation, GenerationError, GenerationRequest, Generator, check_request
from ..models.images import ImageEncoder
from ..models.named_weights import check_loadable
from ..models.sharding import is_sharded
from . import sampling_options
from .fleet import Fleet
from .lora import MERGED_WITH_PICTURES, NAME, lora_options, lora_rank
from .pictures import collapsed, content_parts
from .server import Server
from .weight_transfer import WeightTransfer, gather, rank, shared_name

GOLDEN_RATIO = (5**0.5 - 1) / 2  # its multiples modulo 1 lie evenly between 0 and 1, however many there are
LEAST_LOGPROB = -9999.0  # a server sends this for a log-probability that is not finite

logger = logging.getLogger(__name__)


class VLLMServerGenerator(Generator):
    """Samples with vLLM servers; `gymnast serve vllm MODEL` starts one.

    The requests of a lost server go to the others, with their seeds. Several training processes share the servers, and
    rank 0 loads the weights: a LoRA adapter as an adapter, if vLLM can compute it and all servers take it, or else
    merged. A pickled copy asks the same servers from another process, and never loads any. vLLM applies `min_p` before
    `top_k` and `top_p`, which matters when they are combined.

    Args:
        urls: The servers, such as `["http://gpu1:8000", "http://gpu2:8000"]`.
        max_model_len: Most tokens of prompt and answer together.
        timeout: Seconds to wait for a server that starts or restarts.
        group_port: Port of this machine that servers connect to for new weights; 0 takes any free one.
        seeded: Whether each request has its own seed; without, the same request may get another answer.
        images: Makes the tokens of pictures; None for a model that is shown text only.
        place: Where in the list of servers this process begins, from 0 to 1, so that processes do not all fill the
            same ones; by default a place that follows from its rank. Answers do not depend on it.

    Raises:
        ConfigurationError: a server does not answer in time, is too old, takes too few tokens, lacks an option, has
            another backend for pictures than the trainer, or expands them to other tokens than the model's processor.
    """

    is_shared = True

    def __init__(
        self,
        urls: Sequence[str],
        *,
        max_model_len: int,
        timeout: float = 240.0,
        group_port: int = 0,
        seeded: bool = True,
        images: ImageEncoder | None = None,
        place: float | None = None,
    ) -> None:
        self._image_id = None if images is None else images.placeholder_id
        self._seeded = seeded
        self._options = {"max_model_len": max_model_len, "timeout": timeout, "seeded": seeded}
        self._run = shared_name()
        self._model: PreTrainedModel | None = None
        self._gathered: dict[str, Tensor] | None = None  # all weights of a sharded model, in rank 0
        self._version = self._loads = 0
        self._takes_adapters: bool | None = None  # decided at the first adapter
        self._lora_rank: int | None = None  # of the adapter that is sent as an adapter
        self._vocab_size: int | None = None
        self._may_send = False  # True while the model does not change
        self._transfer = WeightTransfer(group_port)
        # One event loop talks to the servers, whichever loop a request comes from.
        place = rank() * GOLDEN_RATIO % 1 if place is None else place
        run_in_loop(self._open(urls, max_model_len=max_model_len, timeout=timeout, images=images, place=place))

    async def _open(self, urls: Sequence[str], **options: Any) -> None:
        self._loop = asyncio.get_running_loop()
        self._sending = asyncio.Lock()
        weakly = weakref.ref(self)  # a strong reference would keep this generator alive

        async def restore(server: Server) -> bool:
            generator = weakly()
            return generator is not None and await generator._restore(server)

        self._fleet = Fleet(urls, restore=restore, **options)
        try:
            await self._fleet.open()
        except BaseException as error:
            await self._fleet.close()
            if isinstance(error, ExceptionGroup):
                raise error.exceptions[0] from None
            raise
        # Also for a generator that nobody closes.
        self._finalizer = weakref.finalize(self, _hang_up, self._fleet, self._transfer, self._loop)

    async def generate(self, request: GenerationRequest) -> Generation:
        """Generate one answer; on cancellation the server drops the request."""
        if self._vocab_size is None:
            raise GenerationError("no weights were loaded; call load_weights first")
        check_request(request, self._vocab_size, takes_images=self._image_id is not None)
        version, prompt = self._version, request.prompt
        body: dict[str, Any] = {
            "token_ids": collapsed(prompt, self._image_id),
            "return_token_ids": True,
            "sampling_params": sampling_options(request, seeded=self._seeded),
        }
        if prompt.images:
            body["content_parts"] = await run_in_thread(content_parts, prompt.pictures)
        if request.stop_texts is not None:
            body["sampling_params"] |= {"stop": list(request.stop_texts.texts), "detokenize": True}
        if self._lora_rank is not None:
            body["model"] = NAME
        if asyncio.get_running_loop() is self._loop:
            answer = await self._fleet.ask(body, request.session)
        else:
            asking = asyncio.run_coroutine_threadsafe(self._fleet.ask(body, request.session), self._loop)
            answer = await asyncio.wrap_future(asking)
        [choice] = answer["choices"]
        logprobs = [token["logprob"] for token in choice["logprobs"]["content"]]
        return Generation(
            token_ids=choice["token_ids"],
            logprobs=[logprob if logprob > LEAST_LOGPROB else -math.inf for logprob in logprobs],
            finish=choice["finish_reason"],
            prompt_ids=answer["prompt_token_ids"],
            weight_version=version,
            num_cached=(answer["usage"]["prompt_tokens_details"] or {}).get("cached_tokens") or 0,
        )

    def load_weights(self, model: PreTrainedModel, version: int) -> None:
        """Send the model's weights to all servers, with LoRA only the changed ones, and empty their prefix caches.

        Every training process calls it; rank 0 sends.

        Raises:
            GenerationError: a server refused the weights, or no server was there in time.
            ConfigurationError: the model is quantised, or a server needs NCCL and the model is not on a GPU.
        """
        check_loadable(model)
        self._gathered = gather(model) if is_sharded(model) else None
        self._lora_rank = self._rank_to_send(model)
        self._model, self._version = model, version
        self._loads += 1  # one version may have several weights, for example after a checkpoint is loaded
        run_in_loop(self._load(f"{self._run}-{self._loads}-{version}"))
        self._vocab_size = model.config.get_text_config().vocab_size

    @property
    def servers_present(self) -> list[str]:
        """The URLs of the servers that are not known to be away."""
        return [server.url for server in self._fleet.present()]

    @property
    def weights(self) -> tuple[str | None, int, int | None, int | None]:
        """Names the weights that were loaded last, for the `follow` of copies."""
        return self._fleet.label, self._version, self._vocab_size, self._lora_rank

    def follow(self, weights: tuple[str, int, int, int | None]) -> None:
        """Sample with these weights from now on, which the original has loaded; called before a copy samples."""
        label, self._version, self._vocab_size, self._lora_rank = weights
        if label != self._fleet.label:
            run_in_loop(self._follow(label))

    async def _follow(self, label: str) -> None:
        self._fleet.relabel(label, dict.fromkeys(self._fleet.present()))

    def __reduce__(self) -> Any:
        urls = tuple(server.url for server in self._fleet.servers)
        return _follower, (urls, tuple(self._options.items()), self._image_id)

    def wake(self) -> None:
        self._may_send = rank() == 0

    def sleep(self) -> None:
        self.weights_will_change()

    def weights_will_change(self) -> None:
        """Let a server that returns now wait for the next weights."""
        self._may_send = False
        run_in_loop(self._await_senders())

    def close(self) -> None:
        self._may_send = False
        closing = self._finalizer()
        if closing is not None:  # not closed before
            closing.result()

    def _rank_to_send(self, model: PreTrainedModel) -> int | None:
        """Return the rank of an adapter to be sent as an adapter; None if it must be merged, or there is none."""
        largest = None if is_sharded(model) else lora_rank(model)  # files cannot be written from parts of weights
        if largest is not None and self._takes_adapters is None:
            lacking = [server.url for server in self._fleet.servers if server.lora_rank < largest]
            self._takes_adapters = not lacking and self._image_id is None
            if self._image_id is not None and rank() == 0:
                logger.warning(MERGED_WITH_PICTURES)
            elif lacking and rank() == 0:
                logger.warning(
                    "the adapter is merged into the weights for the vLLM servers, which rounds weights of 16 bits. To "
                    "send the adapter itself, start each server by gymnast serve vllm with --enable-lora "
                    "--max-lora-rank %d, and with one API server; these servers lack it: %s",
                    lora_options(largest)["max_lora_rank"],
                    ", ".join(lacking),
                )
            elif rank() == 0:
                logger.info("the vLLM servers get the adapter as an adapter")
        return largest if self._takes_adapters else None

    async def _load(self, label: str) -> None:
        servers = self._fleet.present()
        if rank() != 0:
            await self._follow(label)
            return
        self._may_send = True
        async with self._sending:
            outcomes = await self._send(servers, label)
        self._fleet.relabel(label, outcomes)
        for error in outcomes.values():
            if isinstance(error, GenerationError):
                raise error
        await self._fleet.next_replica()  # an error if there is none

    async def _restore(self, server: Server) -> bool:
        """Send the current weights to a server that returned. Return False if the model may be in training."""
        async with self._sending:
            label = self._fleet.label
            if not self._may_send or label is None:
                return False
            [error] = (await self._send([server], label)).values()
        if error is not None:
            raise error
        return label == self._fleet.label

    async def _send(self, servers: Sequence[Server], label: str) -> dict[Server, Exception | None]:
        if not servers:
            return {}
        assert self._model is not None
        # Not to be cancelled: the model must not change while it is read, nor a server be left with half an update.
        return await finish(
            self._transfer.send(self._model, servers, label, gathered=self._gathered, lora_rank=self._lora_rank)
        )

    async def _await_senders(self) -> None:
        async with self._sending:
            pass


@cache  # each round sends a copy of the policy to a rollout worker, which should keep its connections
def _follower(urls: tuple[str, ...], options: tuple[tuple[str, Any], ...], image_id: int | None) -> VLLMServerGenerator:
    """Return the copy of a generator in another process; it may not send weights.

    It begins at a random place, since copies do not know one another, nor how many there are.
    """
    generator = VLLMServerGenerator(urls, place=secrets.SystemRandom().random(), **dict(options))
    generator._image_id = image_id
    return generator


def _hang_up(
    fleet: Fleet, transfer: WeightTransfer, loop: asyncio.AbstractEventLoop
) -> concurrent.futures.Future[None]:
    async def close() -> None:
        await fleet.close()
        transfer.close()

    closing = asyncio.run_coroutine_threadsafe(close(), loop)
    try:
        asyncio.get_running_loop()
    except RuntimeError:  # not inside a loop: waiting inside one could block the loop that has to close
        concurrent.futures.wait([closing], timeout=10)
    return closing
