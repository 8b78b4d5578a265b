"""Decoding requests together, from their prompts to their last tokens."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import DynamicCache, PreTrainedModel

from ..models.internals import (
    append_rows,
    drop_columns,
    has_plain_cache,
    is_plain,
    keep_rows,
    row_of,
    stack,
    token_bytes,
)
from ..models.output_head import known_options
from .contract import Generation, GenerationRequest, settle
from .kept_caches import KeptCache, KeptCaches
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
    num_cached: int = 0  # prompt tokens that were not computed
    uniform: float = field(init=False)  # of the next token; it stays if memory runs out before there is one

    def __post_init__(self) -> None:
        self.uniform = self.random.random()


class Decoding:
    """Rows that are decoded together. They leave as they finish, and the rows of another decoding may join.

    `cache` is filled with the columns on the left of `inputs`, or empty. `inputs` are the tensors of the next forward
    pass, one row for each of `rows`: `input_ids` (B, N), after the prefill (B, 1); `attention_mask` (B, all tokens so
    far); `position_ids` (B, N) or (3, B, N). `kept` keeps the caches of rows that are answered; None: they are not
    kept.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        cache: DynamicCache,
        inputs: dict[str, Tensor],
        weight_version: int,
        kept: KeptCaches | None,
    ) -> None:
        self.model: Any = model
        self.cache = cache
        self.inputs = inputs
        self.weight_version = weight_version
        self.rows: list[Row] = []
        self._kept = kept
        self._has_plain_cache = has_plain_cache(model)
        self._options = {"use_cache": True} | known_options(model, logits_to_keep=1)

    def begin(self, groups: Sequence[Sequence[Row]]) -> None:
        """Prefill, and sample the first token of each row. The rows of a group have one row of the inputs in common."""
        logits_BV = self._forward()
        self.rows = [row for rows in groups for row in rows]
        shared = [index for index, rows in enumerate(groups) for _ in rows]
        if len(shared) > len(groups):
            indices = torch.tensor(shared, device=self.model.device)
            keep_rows(self.cache, indices)
            logits_BV = logits_BV[indices]
            names = ("attention_mask", "position_ids")  # all that later steps read
            self.inputs = {name: self.inputs[name][..., indices, :] for name in names}
        self._sample(logits_BV)

    def step(self) -> None:
        """Sample one token for each row, and drop the rows that are done. Afterwards `rows` may be empty."""
        self._sample(self._forward())

    def _forward(self) -> Tensor:
        return self.model(**self.inputs, past_key_values=self.cache, **self._options).logits[:, -1].float()

    def _sample(self, logits_BV: Tensor) -> None:
        tokens_B, logprobs_B = sample(logits_BV, [row.uniform for row in self.rows], self.rows[0].request.sampling)
        tokens = zip(tokens_B.tolist(), logprobs_B.tolist(), strict=True)
        for index, (row, (token, logprob)) in enumerate(zip(self.rows, tokens, strict=True)):
            if not row.answer.done():
                self._take(index, row, token, logprob)
        alive = self._alive()
        if not alive:
            self.rows = []
            return
        self.inputs = {
            "input_ids": tokens_B[:, None],
            "attention_mask": nn.functional.pad(self.inputs["attention_mask"], (0, 1), value=1),
            "position_ids": self.inputs["position_ids"][..., -1:] + 1,
        }
        if len(alive) <= SPARSE * len(self.rows):
            self._keep(alive)

    @property
    def columns(self) -> int:
        """The number of tokens that each row is padded to."""
        return self.inputs["attention_mask"].shape[1]

    @property
    def can_join(self) -> bool:
        """Whether these rows, after their prefill, may be joined with rows of another length."""
        return self._has_plain_cache and is_plain(self.cache)

    def bytes_of_padding(self, other: Decoding) -> float:
        """Return the bytes of keys and values that only fill rows, if the rows of both were in one decoding."""
        lengths = [len(row.seen_ids) + len(row.token_ids) for row in self.rows + other.rows]
        return (len(lengths) * max(lengths) - sum(lengths)) * token_bytes(self.cache)

    def join(self, other: Decoding) -> None:
        """Take over the rows of another decoding. Both are prefilled, and both `can_join`."""
        for decoding in (self, other):
            decoding._keep(decoding._alive())
        self.rows = self.rows + other.rows
        append_rows(self.cache, other.cache)
        masks = [decoding.inputs["attention_mask"][..., None] for decoding in (self, other)]
        ids_and_positions = ("input_ids", "position_ids")
        self.inputs = {name: torch.cat([self.inputs[name], other.inputs[name]], -2) for name in ids_and_positions}
        self.inputs["attention_mask"] = stack(*masks)[..., 0]

    def _take(self, index: int, row: Row, token: int, logprob: float) -> None:
        if not math.isfinite(logprob):
            raise FloatingPointError(f"the model's logits are not finite: log-probability {logprob} of token {token}")
        row.token_ids.append(token)
        row.logprobs.append(logprob)
        row.uniform = row.random.random()
        texts = row.request.stop_texts
        stopped = token in row.request.stop_ids or (texts is not None and texts.end_with(row.token_ids))
        if not stopped and len(row.token_ids) < row.request.max_tokens:
            return
        generation = Generation(
            token_ids=row.token_ids,
            logprobs=row.logprobs,
            finish="stop" if stopped else "length",
            prompt_ids=row.seen_ids,
            weight_version=self.weight_version,
            num_cached=row.num_cached,
            waiting_seconds=row.waiting_seconds,
        )
        self._keep_cache(index, row)  # before the answer, after which the next turn may come
        settle(row.answer, generation)

    def _keep_cache(self, index: int, row: Row) -> None:
        """Keep the keys and values of a complete row for the next turn of its session, if there is memory for them."""
        if self._kept is None or row.request.session is None or not self.can_join:
            return
        try:
            columns = self.inputs["attention_mask"][index].nonzero()[:, 0]
            layers = row_of(self.cache, index, columns)
        except torch.OutOfMemoryError:
            self._kept.clear()
            return
        ids = row.seen_ids + row.token_ids[:-1]  # the last token's keys are computed by the next turn
        self._kept.put(row.request.session, KeptCache(ids, layers, self.weight_version))

    def _alive(self) -> list[int]:
        return [index for index, row in enumerate(self.rows) if not row.answer.done()]

    def _keep(self, alive: list[int]) -> None:
        """Keep only these rows, and drop the columns on the left that are padding in all of them."""
        indices = torch.tensor(alive, dtype=torch.long, device=self.model.device)
        self.rows = [self.rows[index] for index in alive]
        keep_rows(self.cache, indices)
        self.inputs = {name: values[..., indices, :] for name, values in self.inputs.items()}
        if self.can_join:
            mask_BL = self.inputs["attention_mask"]
            # The cache is one column shorter.
            first = int(mask_BL.argmax(1).min()) if alive else mask_BL.shape[1] - 1
            self.inputs["attention_mask"] = mask_BL[:, first:]
            drop_columns(self.cache, first)
