"""Decoding: one batch of requests, from their prompts to their last tokens.

- `GenerationRequest`, `Generation`: what is asked for, and the answer.
- `Row`: a request on its way through a batch, and `Batch`, which decodes it with a transformers model; rows leave it
  when they are done, and another batch may join it.
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
from transformers.cache_utils import DynamicLayer

from .sampling import Sampling, sample

SPARSE = 0.75  # a batch is packed once so few of its rows are still being decoded
LENGTH_DEPENDENT = {"dynamic", "longrope"}  # rotary embeddings whose frequencies depend on a batch's longest row


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
    seen_ids: list[int] = field(default_factory=list)  # the prompt as the model was given it
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
    """One batch from prefill to its last token; rows leave as they finish, and those of another batch may join."""

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
        for row, ids, count in zip(rows, self.input_ids.tolist(), padding, strict=True):
            row.seen_ids = ids[count:]
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
        alive = self._alive()
        if not alive:
            self.rows = []
            return
        self.input_ids = tokens_B[:, None]
        self.position_ids = self.position_ids[:, -1:] + 1
        self.attention_mask = nn.functional.pad(self.attention_mask, (0, 1), value=1)
        if len(alive) <= SPARSE * len(self.rows):
            self._keep(alive)

    @property
    def can_join(self) -> bool:
        """Whether this batch, which has been prefilled, may be put together with one of another length.

        A window that slides and a recurrent state count a row's padding, and some rotary embeddings look at the longest
        row; they are left alone.
        """
        plain = all(type(layer) is DynamicLayer and layer.is_initialized for layer in self.cache.layers)
        return plain and not _rope_types(self.model.config) & LENGTH_DEPENDENT

    def join(self, other: Batch) -> None:
        """Take over the rows of another batch; both have been prefilled, and both `can_join`."""
        if not other.rows:
            return
        for batch in (self, other):
            batch._keep(batch._alive())
        self.rows = self.rows + other.rows
        for mine, theirs in zip(self.cache.layers, other.cache.layers, strict=True):
            mine.keys, mine.values = _stack(mine.keys, theirs.keys), _stack(mine.values, theirs.values)
            theirs.keys = theirs.values = None  # layer by layer, so that no more than one of them is held twice
        self.input_ids = torch.cat([self.input_ids, other.input_ids])
        self.position_ids = torch.cat([self.position_ids, other.position_ids])
        self.attention_mask = _stack(self.attention_mask[..., None], other.attention_mask[..., None])[..., 0]

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
        row.settle(
            Generation(
                token_ids=row.token_ids,
                logprobs=row.logprobs,
                finish="stop" if stopped else "length",
                prompt_ids=row.seen_ids,
                weight_version=self.weight_version,
            )
        )

    def _alive(self) -> list[int]:
        return [index for index, row in enumerate(self.rows) if not row.settled]

    def _keep(self, alive: list[int]) -> None:
        """Go on with these rows only, and without the columns on the left that none of them uses."""
        indices = torch.tensor(alive, dtype=torch.long, device=self.input_ids.device)
        self.rows = [self.rows[index] for index in alive]
        self.cache.reorder_cache(indices)  # unlike batch_select_indices, recurrent states know it too
        self.input_ids = self.input_ids[indices]
        self.position_ids = self.position_ids[indices]
        self.attention_mask = self.attention_mask[indices]
        if self.can_join:
            length = self.attention_mask.shape[1]
            first = int(self.attention_mask.argmax(1).min()) if alive else length - 1  # the cache is one column shorter
            self.attention_mask = self.attention_mask[:, first:]
            for layer in self.cache.layers:
                layer.keys, layer.values = layer.keys[:, :, first:], layer.values[:, :, first:]


def _stack(one: Tensor, other: Tensor) -> Tensor:
    """Rows of both, filled with zeros on the left: (B, ..., L, D) and (C, ..., M, D) to (B + C, ..., max(L, M), D)."""
    rows, length = len(one) + len(other), max(one.shape[-2], other.shape[-2])
    both = one.new_zeros(rows, *one.shape[1:-2], length, one.shape[-1])
    both[: len(one), ..., length - one.shape[-2] :, :] = one
    both[len(one) :, ..., length - other.shape[-2] :, :] = other
    return both


def _rope_types(config: Any) -> set[str]:
    """The kinds of rotary embedding that a model has; one for all layers, or one for each type of layer."""
    parameters = getattr(config.get_text_config(), "rope_parameters", None) or {}
    nested = [each for each in parameters.values() if isinstance(each, dict)]
    return {each["rope_type"] for each in nested or [parameters] if "rope_type" in each}
