"""VLLMServerGenerator: samples with one or several vLLM servers."""

from __future__ import annotations

import asyncio
import secrets
import weakref
from collections.abc import Sequence
from typing import Any

import torch.distributed as dist
from transformers import PreTrainedModel

from ...envs.threads import run_in_loop, run_in_thread
from ..generation.contract import Generation, GenerationError, GenerationRequest, Generator, check_request
from ..generation.named_weights import check_loadable
from .answers import check_answer
from .fleet import Fleet, Server
from .weight_transfer import WeightTransfer


class VLLMServerGenerator(Generator):
    """Samples with vLLM servers; `python -m gymnast.trainer.vllm.serve MODEL` starts one.

    Each request goes to the server with the fewest requests. The requests of a lost server go to the others, with
    their seeds. Several training processes share the servers, and rank 0 loads the weights. vLLM applies `min_p`
    before `top_k` and `top_p`, which matters when they are combined.

    Args:
        urls: The servers, such as `["http://gpu1:8000", "http://gpu2:8000"]`.
        max_model_len: Most tokens of prompt and answer together.
        timeout: Seconds to wait for a server that starts or restarts.
        group_port: Port of this machine that servers connect to for new weights; 0 takes any free one.

    Raises:
        ConfigurationError: a server does not answer in time, is too old, takes too few tokens, or lacks an option.
    """

    is_shared = True

    def __init__(self, urls: Sequence[str], *, max_model_len: int, timeout: float = 240.0, group_port: int = 0) -> None:
        self._group_port = group_port
        self._run = _shared_name()
        self._model: PreTrainedModel | None = None
        self._version = self._loads = 0
        self._vocab_size: int | None = None
        self._may_send = False  # True while the model does not change
        # One event loop talks to the servers, whichever loop a request comes from.
        run_in_loop(self._open(urls, max_model_len=max_model_len, timeout=timeout))

    async def _open(self, urls: Sequence[str], **options: Any) -> None:
        self._loop = asyncio.get_running_loop()
        self._sending = asyncio.Lock()
        weakly = weakref.ref(self)  # a strong reference would keep this generator alive

        async def restore(server: Server) -> bool:
            generator = weakly()
            return generator is not None and await generator._restore(server)

        self._fleet = Fleet(urls, restore=restore, **options)
        self._transfer = WeightTransfer(self._fleet.client, self._group_port)
        try:
            await self._fleet.open()
        except ExceptionGroup as group:
            await self._fleet.close()
            raise group.exceptions[0] from None
        except BaseException:
            await self._fleet.close()
            raise
        self._finalizer = weakref.finalize(
            self, _hang_up, self._fleet, self._loop
        )  # closes a generator that is garbage-collected

    async def generate(self, request: GenerationRequest) -> Generation:
        """Generate one answer; on cancellation the server drops the request.

        Raises:
            ValueError: the prompt is empty, max_tokens is below 1, or a token is not in the vocabulary.
            GenerationError: a server refused the request, none was there in time, or the generator is closed.
        """
        if self._vocab_size is None:
            raise GenerationError("no weights were loaded; call load_weights first")
        check_request(request, self._vocab_size)
        version = self._version
        if asyncio.get_running_loop() is self._loop:
            answer = await self._fleet.ask(_body(request))
        else:
            answer = await asyncio.wrap_future(
                asyncio.run_coroutine_threadsafe(self._fleet.ask(_body(request)), self._loop)
            )
        return _generation(answer, version)

    def load_weights(self, model: PreTrainedModel, version: int) -> None:
        """Send the model's weights to all servers and empty their prefix caches.

        Every training process calls it; rank 0 sends.

        Raises:
            GenerationError: a server refused the weights, or no server was there in time.
            ConfigurationError: the model is quantised, or a server needs NCCL and the model is not on a GPU.
        """
        check_loadable(model)
        self._model, self._version = model, version
        self._vocab_size = model.config.get_text_config().vocab_size
        self._loads += 1  # one version may have several weights, for example after a checkpoint is loaded
        run_in_loop(self._load(f"{self._run}-{self._loads}-{version}"))

    @property
    def servers_present(self) -> list[str]:
        """The URLs of the servers that are not known to be away."""
        return [each.url for each in self._fleet.present()]

    def wake(self) -> None:
        self._may_send = _is_first()

    def sleep(self) -> None:
        """Training begins: a server that returns now must wait for the next weights."""
        self._may_send = False
        run_in_loop(self._await_senders())

    def close(self) -> None:
        self._may_send = False
        self._finalizer.detach()
        run_in_loop(self._close())

    async def _load(self, label: str) -> None:
        servers = self._fleet.present()
        if not _is_first():
            self._fleet.relabel(label, dict.fromkeys(servers))
            return
        self._may_send = True
        async with self._sending:
            outcomes = await self._send(servers, label)
        self._fleet.relabel(label, outcomes)
        for error in outcomes.values():
            if isinstance(error, GenerationError):
                raise error
        await self._fleet.wait_for_one()

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
        backends = {each.url: each.backend for each in servers}
        sending = asyncio.ensure_future(run_in_thread(self._transfer.send, self._model, backends, label))
        try:
            errors = await asyncio.shield(sending)
        except asyncio.CancelledError:
            await asyncio.wait([sending])  # the model must not change while it is read
            raise
        return {each: errors[each.url] for each in servers}

    async def _await_senders(self) -> None:
        async with self._sending:
            pass

    async def _close(self) -> None:
        async with self._sending:
            await self._fleet.close()
        self._transfer.close()


def _hang_up(fleet: Fleet, loop: asyncio.AbstractEventLoop) -> None:
    closing = asyncio.run_coroutine_threadsafe(fleet.close(), loop)
    try:
        asyncio.get_running_loop()
    except RuntimeError:  # not inside a loop: waiting inside one could block the loop that has to close
        closing.result(timeout=10)


def _body(request: GenerationRequest) -> dict[str, Any]:
    sampling = request.sampling
    greedy = sampling.temperature == 0  # the other options have no effect then
    return {
        "token_ids": list(request.prompt_ids),
        "return_token_ids": True,
        "sampling_params": {
            "temperature": sampling.temperature,
            "top_p": 1.0 if greedy else sampling.top_p,
            "top_k": 0 if greedy else sampling.top_k,
            "min_p": 0.0 if greedy else sampling.min_p,
            "seed": request.seed,
            "max_tokens": request.max_tokens,
            "stop_token_ids": sorted(request.stop_ids),
            "ignore_eos": True,  # stop_token_ids holds every id that ends the answer
            "logprobs": 0,  # only the sampled token's
            "detokenize": False,
        },
    }


def _generation(answer: dict[str, Any], version: int) -> Generation:
    """Raise GenerationError if the answer is incomplete or the model's logits are not finite."""
    [choice] = answer["choices"]
    logprobs = [each["logprob"] for each in choice["logprobs"]["content"]]
    check_answer(choice["finish_reason"], logprobs)
    return Generation(
        token_ids=choice["token_ids"],
        logprobs=logprobs,
        finish=choice["finish_reason"],
        prompt_ids=answer["prompt_token_ids"],
        weight_version=version,
        num_cached=(answer["usage"]["prompt_tokens_details"] or {}).get("cached_tokens") or 0,
    )


def _is_first() -> bool:
    """Whether this is the training process that sends weights."""
    return not dist.is_initialized() or dist.get_rank() == 0


def _shared_name() -> str:
    """Return a random name of this run, the same in all its processes: labels of other runs never match."""
    names = [secrets.token_hex(4)]
    if dist.is_initialized():
        dist.broadcast_object_list(names, src=0)
    return names[0]
