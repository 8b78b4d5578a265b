"""Helpers of the tests of generation: a tiny model, requests, and a view of the decoding thread."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import cache
from typing import Any

import torch
from torch import Tensor

from gymnast.envs.tokens import Tokens
from gymnast.trainer import Generation, GenerationRequest, Sampling, TransformersGenerator
from gymnast.trainer.generation.sampling import log_distribution
from gymnast.trainer.testing.tiny import make_tiny_model, make_tiny_tokenizer

PROMPTS = [[7, 8, 9], [20] * 30, [5], [40, 41, 42, 43, 44, 45, 46, 47, 48, 49, 50]]
NEVER = frozenset[int]()


@cache
def tokenizer() -> Any:
    return make_tiny_tokenizer(["x"], vocab_size=280)


@cache
def model() -> Any:
    return make_tiny_model(tokenizer(), hidden_size=32, num_layers=2)


def ask(prompt: Sequence[int] | None = None, seed: int = 0, max_tokens: int = 12, **options: Any) -> GenerationRequest:
    """Return a request. The default prompts of different seeds differ, because equal ones are computed once."""
    stop_ids = options.pop("stop_ids", NEVER)
    tokens, session = Tokens([7, 8, 9 + seed] if prompt is None else [*prompt]), options.pop("session", None)
    sampling = Sampling(**options)
    return GenerationRequest(
        prompt=tokens, max_tokens=max_tokens, stop_ids=stop_ids, seed=seed, sampling=sampling, session=session
    )


def plain_logprobs(model: Any, generation: Generation, sampling: Sampling) -> Tensor:
    """Return the log-probabilities (T,) of one forward pass without cache or padding."""
    ids = torch.tensor([generation.prompt_ids + generation.token_ids])
    with torch.no_grad():
        logits_TV = model(input_ids=ids, use_cache=False).logits[0].float()
    start = len(generation.prompt_ids)
    logprobs_TV = log_distribution(logits_TV[start - 1 : -1], sampling)
    return logprobs_TV.gather(1, ids[0, start:, None])[:, 0]


def check(model: Any, found: Sequence[Generation]) -> None:
    """Check that the log-probabilities are those of one forward pass."""
    for answer in found:
        expected = plain_logprobs(model, answer, Sampling())
        torch.testing.assert_close(torch.tensor(answer.logprobs), expected, rtol=0, atol=1e-5)


@asynccontextmanager
async def at_once(generator: TransformersGenerator) -> AsyncIterator[None]:
    """The decoding thread gets all requests that begin inside at once, even on a busy machine."""
    with generator._changed:
        yield
        for _ in range(3):  # a task, its gathering, and the requests' own tasks
            await asyncio.sleep(0)


async def begun(generator: TransformersGenerator, *requests: GenerationRequest) -> asyncio.Future[list[Generation]]:
    """Begin requests; return the future of their answers once the generator has the requests."""
    async with at_once(generator):
        return asyncio.gather(*[generator.generate(request) for request in requests])


async def answers(generator: TransformersGenerator, requests: Sequence[GenerationRequest]) -> list[Generation]:
    return await (await begun(generator, *requests))


class Steps:
    """Records the rows and columns of each forward pass, and can hold one of them until the test goes on."""

    def __init__(self, model: Any, hold_at: int | None = None) -> None:
        self.rows: list[int] = []
        self.columns: list[int] = []  # of the attention mask
        self.tokens: list[int] = []  # computed
        self.begun = asyncio.Event()
        self.go_on = threading.Event()
        self.hold_at = hold_at  # the forward pass that waits for `go_on`
        self.loop = asyncio.get_running_loop()
        self.handle = model.register_forward_pre_hook(self._count, with_kwargs=True)

    def _count(self, module: Any, args: Any, kwargs: Any) -> None:
        self.rows.append(kwargs["input_ids"].shape[0])
        self.tokens.append(kwargs["input_ids"].numel())
        self.columns.append(kwargs["attention_mask"].shape[1])
        if len(self.rows) == self.hold_at:
            go_on = self.go_on
            self.loop.call_soon_threadsafe(self.begun.set)
            assert go_on.wait(30)

    async def pause(self, at: int) -> None:
        """Wait until this forward pass begins. It goes on after `go_on` or the next pause."""
        if at != self.hold_at:
            before, self.go_on, self.begun = self.go_on, threading.Event(), asyncio.Event()
            self.hold_at = at
            before.set()
        await self.begun.wait()

    def __enter__(self) -> Steps:
        return self

    def __exit__(self, *error: object) -> None:
        self.handle.remove()


def decoding_threads() -> set[threading.Thread]:
    """Return the threads of all generators. Those of other tests may still be idle."""
    return {thread for thread in threading.enumerate() if thread.name == "gymnast-generator"}


def wait_until_closing(generator: TransformersGenerator) -> None:
    with generator._changed:
        assert generator._changed.wait_for(lambda: generator._closed, 30)
