"""Decoding: one batch of requests, from their prompts to their last tokens.

- `GenerationRequest`, `Generation`: what is asked for, and the answer.
- `Row`: a request on its way through a batch, and `Batch`, which decodes it with a transformers model.
"""

from __future__ import annotations

import asyncio
import inspect
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn
from transformers import DynamicCache, PreTrainedModel

from .sampling import Sampling, sample

SPARSE = 0.75  # a batch is packed once so few of its rows are still being decoded


@dataclass(kw_only=True, slots=True, frozen=True)
class GenerationRequest:
    """One answer that is asked for."""

    prompt_ids: Sequence[int]  # all tokens so far
    max_tokens: int  # no more than these are generated
    stop_ids: frozenset[int]  # any of them ends the answer, and is part of it
    seed: int  # not negative; the same seed gives the same answer, whatever else is in the batch
    sampling: Sampling


@dataclass(kw_only=True, slots=True, frozen=True)
class Generation:
    """One answer."""

    token_ids: list[int]  # (T,) as sampled; the stop token included
    logprobs: list[float]  # (T,) under the sampling distribution; for greedy decoding, at temperature 1
    finish: Literal["stop", "length"]  # a stop token, or max_tokens
    prompt_ids: list[int]  # the prompt as the engine saw it
    weight_version: int = 0  # optimiser steps that the weights had seen
    num_cached: int = 0  # prompt tokens that an earlier request had already computed


@dataclass(slots=True, eq=False)
class Row:
    """A request on its way through a batch."""

    request: GenerationRequest
    future: asyncio.Future[Generation]
    random: np.random.Generator  # this request's own
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    settled: bool = False  # answered, failed, or nobody waits any more

    def settle(self, result: Generation | BaseException) -> None:
        """Hand the result to the event loop that waits for it; called from the decoding thread."""
        if self.settled:
            return
        self.settled = True
        try:
            self.future.get_loop().call_soon_threadsafe(_resolve, self.future, result)
        except RuntimeError:
            return  # its event loop is closed: nobody waits


def _resolve(future: asyncio.Future[Generation], result: Generation | BaseException) -> None:
    if future.done():  # cancelled meanwhile
        return
    if isinstance(result, Generation):
        future.set_result(result)
    else:
        future.set_exception(result)


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Eval mode (no dropout, and no gradient checkpointing, which would switch off the cache), undone afterwards."""
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True


class Batch:
    """One batch from prefill to its last token; rows leave as they finish."""

    def __init__(self, model: PreTrainedModel, rows: list[Row], pad_id: int, weight_version: int = 0) -> None:
        self.model: Any = model
        self.weight_version = weight_version
        self.rows = rows
        self.cache: Any = DynamicCache(config=model.config)
        self.sampling = rows[0].request.sampling
        prompts = [list(row.request.prompt_ids) for row in rows]
        length = max(map(len, prompts))
        padding = [length - len(prompt) for prompt in prompts]
        padded = [[pad_id] * count + prompt for count, prompt in zip(padding, prompts, strict=True)]
        self.input_ids = torch.tensor(padded, device=model.device)  # (B, L); after prefill (B, 1)
        columns_L = torch.arange(length, device=model.device)
        starts_B1 = torch.tensor(padding, device=model.device)[:, None]
        self.attention_mask = (columns_L >= starts_B1).long()  # (B, all tokens so far)
        self.position_ids = (columns_L - starts_B1).clamp(min=0)  # (B, L); after prefill (B, 1)
        self.seen_ids = {
            id(row): ids[count:] for row, ids, count in zip(rows, self.input_ids.tolist(), padding, strict=True)
        }
        base = (
            self.model.get_base_model() if hasattr(model, "get_base_model") else model
        )  # PEFT's wrapper takes anything
        keep_last = "logits_to_keep" in inspect.signature(base.forward).parameters
        self.options = {"logits_to_keep": 1} if keep_last else {}

    def step(self) -> None:
        """Sample one token for each row, and drop the rows that are done; afterwards `rows` may be empty."""
        logits_BV = self._forward()
        uniforms_B = [row.random.random() for row in self.rows]
        tokens_B, logprobs_B = sample(logits_BV, uniforms_B, self.sampling)
        for row, token, logprob in zip(self.rows, tokens_B.tolist(), logprobs_B.tolist(), strict=True):
            if not row.settled:
                self._take(row, token, logprob)
        alive = [index for index, row in enumerate(self.rows) if not row.settled]
        if not alive:
            self.rows = []
            return
        self.input_ids = tokens_B[:, None]
        self.position_ids = self.position_ids[:, -1:] + 1
        self.attention_mask = nn.functional.pad(self.attention_mask, (0, 1), value=1)
        if len(alive) <= SPARSE * len(self.rows):
            self._keep(alive)

    def _forward(self) -> Tensor:
        """Next-token logits (B, V) in float32."""
        output = self.model(
            input_ids=self.input_ids,
            attention_mask=self.attention_mask,
            position_ids=self.position_ids,
            past_key_values=self.cache,
            use_cache=True,
            **self.options,
        )
        return output.logits[:, -1].float()

    def _take(self, row: Row, token: int, logprob: float) -> None:
        if not math.isfinite(logprob):
            raise FloatingPointError(f"the model's logits are not finite: log-probability {logprob} of token {token}")
        row.token_ids.append(token)
        row.logprobs.append(logprob)
        stopped = token in row.request.stop_ids
        if not stopped and len(row.token_ids) < row.request.max_tokens:
            return
        finish = "stop" if stopped else "length"
        seen = self.seen_ids[id(row)]
        row.settle(
            Generation(
                token_ids=row.token_ids,
                logprobs=row.logprobs,
                finish=finish,
                prompt_ids=seen,
                weight_version=self.weight_version,
            )
        )

    def _keep(self, alive: list[int]) -> None:
        """Go on with these rows only."""
        indices = torch.tensor(alive, device=self.input_ids.device)
        self.rows = [self.rows[index] for index in alive]
        self.cache.reorder_cache(indices)  # unlike batch_select_indices, recurrent states know it too
        self.input_ids = self.input_ids[indices]
        self.position_ids = self.position_ids[indices]
        self.attention_mask = self.attention_mask[indices]
