"""Decoding requests together, from their prompts to their last tokens."""

from __future__ import annotations

import math
import time
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import nn
from transformers import DynamicCache, PreTrainedModel

from ...envs.tokens import Tokens
from ..models.images import ImageEncoder, positions
from ..models.internals import append_rows, drop_columns, is_plain, keep_rows, rope_types, stack
from ..models.output_head import known_options
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


class Decoding:
    """Rows that are decoded together. They leave as they finish, and the rows of another decoding may join."""

    def __init__(
        self,
        model: PreTrainedModel,
        rows: list[Row],
        pad_id: int,
        weight_version: int = 0,
        images: ImageEncoder | None = None,
    ) -> None:
        self.model: Any = model
        self.weight_version = weight_version
        self.rows = rows
        for row in rows:
            row.waiting_seconds = time.perf_counter() - row.submitted
        self.cache: Any = DynamicCache(config=model.config)
        self.sampling = rows[0].request.sampling
        prompts = [row.request.prompt.ids for row in rows]
        length = max(map(len, prompts))
        padding = [length - len(prompt) for prompt in prompts]
        padded = [[pad_id] * count + prompt for count, prompt in zip(padding, prompts, strict=True)]
        ids_BL = torch.tensor(padded, device=model.device)
        columns_L = torch.arange(length, device=model.device)
        starts_B1 = torch.tensor(padding, device=model.device)[:, None]
        mask_BL = (columns_L >= starts_B1).long()
        # Tensors of the next forward pass, one row for each of `rows`: `input_ids` (B, L), after the prefill (B, 1);
        # `attention_mask` (B, all tokens so far); `position_ids` (B, L) or (3, B, L), after the prefill (B, 1).
        self.inputs = {"input_ids": ids_BL, "attention_mask": mask_BL}
        if images is not None:
            self.inputs = images.inputs(ids_BL, mask_BL, [row.request.prompt.pictures for row in rows])
        self.inputs["position_ids"] = positions(model, self.inputs)
        for row, ids, count in zip(rows, ids_BL.tolist(), padding, strict=True):
            row.seen_ids = ids[count:]
        self.options = {"use_cache": True} | known_options(model, logits_to_keep=1)

    def step(self) -> None:
        """Sample one token for each row, and drop the rows that are done. Afterwards `rows` may be empty."""
        output = self.model(**self.inputs, past_key_values=self.cache, **self.options)
        logits_BV = output.logits[:, -1].float()
        uniforms_B = [row.random.random() for row in self.rows]
        tokens_B, logprobs_B = sample(logits_BV, uniforms_B, self.sampling)
        for row, token, logprob in zip(self.rows, tokens_B.tolist(), logprobs_B.tolist(), strict=True):
            if not row.answer.done():
                self._take(row, token, logprob)
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
    def can_join(self) -> bool:
        """Whether these rows, after their prefill, may be joined with rows of another length.

        Sliding windows and recurrent states depend on a row's padding, `longrope` on the longest row.
        """
        return is_plain(self.cache) and "longrope" not in rope_types(self.model)

    def join(self, other: Decoding) -> None:
        """Take over the rows of another decoding. Both are prefilled, and both `can_join`."""
        if not other.rows:
            return
        for decoding in (self, other):
            decoding._keep(decoding._alive())
        self.rows = self.rows + other.rows
        append_rows(self.cache, other.cache)
        masks = [decoding.inputs["attention_mask"][..., None] for decoding in (self, other)]
        ids_and_positions = ("input_ids", "position_ids")
        self.inputs = {name: torch.cat([self.inputs[name], other.inputs[name]], -2) for name in ids_and_positions}
        self.inputs["attention_mask"] = stack(*masks)[..., 0]

    def _take(self, row: Row, token: int, logprob: float) -> None:
        if not math.isfinite(logprob):
            raise FloatingPointError(f"the model's logits are not finite: log-probability {logprob} of token {token}")
        row.token_ids.append(token)
        row.logprobs.append(logprob)
        texts = row.request.stop_texts
        stopped = token in row.request.stop_ids or (texts is not None and texts.end_with(row.token_ids))
        if not stopped and len(row.token_ids) < row.request.max_tokens:
            return
        generation = Generation(
            token_ids=row.token_ids,
            logprobs=row.logprobs,
            finish="stop" if stopped else "length",
            prompt=Tokens(row.seen_ids, row.request.prompt.images),
            weight_version=self.weight_version,
            waiting_seconds=row.waiting_seconds,
        )
        settle(row.answer, generation)

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
