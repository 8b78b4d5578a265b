"""Decoding one batch of requests, from their prompts to their last tokens.

- `Row`: one request while it is decoded.
- `Batch`: decodes rows with a transformers model. Rows leave it when they are done, and another batch may join it.
"""

from __future__ import annotations

import inspect
import math
import time
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import DynamicCache, PreTrainedModel

from ..models.internals import append_rows, drop_columns, is_plain, keep_rows, rope_types, stack
from .contract import Generation, GenerationRequest, settle
from .sampling import sample

SPARSE = 0.75  # finished rows are removed when at most this share of a batch is still decoded


@dataclass(slots=True, eq=False)
class Row:
    """One request while it is decoded."""

    request: GenerationRequest
    random: np.random.Generator  # this request's own
    answer: Future[Generation] = field(default_factory=Future)  # done once it is answered, failed or cancelled
    seen_ids: list[int] = field(default_factory=list)  # the prompt as the model was given it
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    submitted: float = field(default_factory=time.perf_counter)
    waiting_seconds: float = 0.0  # until its prefill


class Batch:
    """One batch from prefill to its last token. Rows leave as they finish, and rows of another batch may join."""

    def __init__(self, model: PreTrainedModel, rows: list[Row], pad_id: int, weight_version: int = 0) -> None:
        self.model: Any = model
        self.weight_version = weight_version
        self.rows = rows
        for row in rows:
            row.waiting_seconds = time.perf_counter() - row.submitted
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
        # PEFT's wrapper takes any argument.
        base = self.model.get_base_model() if hasattr(model, "get_base_model") else model
        keep_last = "logits_to_keep" in inspect.signature(base.forward).parameters
        self.options = {"logits_to_keep": 1} if keep_last else {}

    def step(self) -> None:
        """Sample one token for each row, and drop the rows that are done. Afterwards `rows` may be empty."""
        logits_BV = self._forward()
        uniforms_B = [row.random.random() for row in self.rows]
        tokens_B, logprobs_B = sample(logits_BV, uniforms_B, self.sampling)
        for row, token, logprob in zip(self.rows, tokens_B.tolist(), logprobs_B.tolist(), strict=True):
            if not row.answer.done():
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
        """Whether this batch, after its prefill, may be joined with a batch of another length.

        Sliding windows and recurrent states depend on a row's padding, `longrope` on a batch's longest row.
        """
        return is_plain(self.cache) and "longrope" not in rope_types(self.model)

    def join(self, other: Batch) -> None:
        """Take over the rows of another batch. Both are prefilled, and both `can_join`."""
        if not other.rows:
            return
        for batch in (self, other):
            batch._keep(batch._alive())
        self.rows = self.rows + other.rows
        append_rows(self.cache, other.cache)
        self.input_ids = torch.cat([self.input_ids, other.input_ids])
        self.position_ids = torch.cat([self.position_ids, other.position_ids])
        self.attention_mask = stack(self.attention_mask[..., None], other.attention_mask[..., None])[..., 0]

    def _forward(self) -> Tensor:
        """Return next-token logits (B, V) in float32."""
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
        generation = Generation(
            token_ids=row.token_ids,
            logprobs=row.logprobs,
            finish="stop" if stopped else "length",
            prompt_ids=row.seen_ids,
            weight_version=self.weight_version,
            waiting_seconds=row.waiting_seconds,
        )
        settle(row.answer, generation)

    def _alive(self) -> list[int]:
        return [index for index, row in enumerate(self.rows) if not row.answer.done()]

    def _keep(self, alive: list[int]) -> None:
        """Keep only these rows, and drop the columns on the left that are padding in all of them."""
        indices = torch.tensor(alive, dtype=torch.long, device=self.input_ids.device)
        self.rows = [self.rows[index] for index in alive]
        keep_rows(self.cache, indices)
        self.input_ids = self.input_ids[indices]
        self.position_ids = self.position_ids[indices]
        self.attention_mask = self.attention_mask[indices]
        if self.can_join:
            length = self.attention_mask.shape[1]
            first = int(self.attention_mask.argmax(1).min()) if alive else length - 1  # the cache is one column shorter
            self.attention_mask = self.attention_mask[:, first:]
            drop_columns(self.cache, first)
