"""Prefill: from requests to rows that are decoded. Each prompt is computed once, and a limited number at a time."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from transformers import DynamicCache, PreTrainedModel

from ..models.growing_cache import growing
from ..models.images import ImageEncoder, positions
from ..models.internals import fill, has_plain_cache
from .decoding import Decoding, Row
from .kept_caches import KeptCache, KeptCaches

MAX_TOKENS = 8192  # computed at once: they bound the memory of activations
MAX_PADDING = 256  # tokens: computing them costs about as much as another forward pass, which reads the weights again

logger = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class Prompt:
    """Rows that go on from the same tokens."""

    ids: list[int]
    rows: list[Row] = field(default_factory=list)
    past: KeptCache | None = None

    @property
    def known(self) -> int:
        """The number of tokens whose keys and values were kept."""
        return 0 if self.past is None else len(self.past.ids)

    @property
    def new(self) -> int:
        """The number of tokens to compute."""
        return len(self.ids) - self.known


class Prefill:
    """Makes decodings of rows, by a forward pass over similar prompts for each.

    Where the model has sliding windows, recurrent states or `longrope`, rows of different decodings could never be
    decoded together later. There one forward pass prefills all rows. `kept` has the keys and values of answered
    requests that have a session; the other arguments are as in `TransformersGenerator`.
    """

    def __init__(self, model: PreTrainedModel, pad_id: int, images: ImageEncoder | None, kept: KeptCaches) -> None:
        self.model: Any = model
        self.kept = kept
        self._pad_id = pad_id
        self.images = images
        self._is_plain = has_plain_cache(model)
        self.forget_limits()

    def forget_limits(self) -> None:
        """Try again as many tokens at once as before an out-of-memory error."""
        self._max_tokens = MAX_TOKENS if self._is_plain else math.inf

    def __call__(self, rows: Sequence[Row], weight_version: int) -> list[Decoding]:
        """Return decodings of these rows after their first step. On an out-of-memory error, halve the tokens at a time.

        Raises:
            torch.OutOfMemoryError: the memory does not suffice for a single prompt.
        """
        made: list[Decoding] = []
        waiting = self._prompts(rows, weight_version)
        while waiting:
            part = self._first_part(waiting)
            try:
                made.append(self._decoding(part, weight_version))
            except torch.OutOfMemoryError:
                freed = self.kept.clear() or any(prompt.past is not None for prompt in waiting)
                if len(part) > 1:
                    self._max_tokens = len(part) * part[-1].new // 2
                    logger.warning("out of memory: prompts are prefilled %d tokens at a time now", self._max_tokens)
                elif not freed:
                    raise
                left = [row for prompt in waiting for row in prompt.rows if not row.answer.done()]
                waiting = self._prompts(left, weight_version)  # again, as some rows may have their first token
            else:
                waiting = waiting[len(part) :]
        return made

    def _prompts(self, rows: Sequence[Row], weight_version: int) -> list[Prompt]:
        """Return the different prompts of these rows; similar ones are neighbours."""
        found: dict[Any, Prompt] = {}
        for row in rows:
            row.waiting_seconds = time.perf_counter() - row.submitted
            request, ids = row.request, row.request.prompt.ids + row.token_ids
            key = (tuple(ids), *(image.digest for image in request.prompt.pictures))
            prompt = found.setdefault(key, Prompt(ids))
            prompt.rows.append(row)
            prompt.past = self.kept.take(request.session, ids, weight_version) or prompt.past
        return sorted(found.values(), key=lambda prompt: (prompt.past is not None, prompt.new, prompt.known))

    def _first_part(self, prompts: list[Prompt]) -> list[Prompt]:
        """Return the first prompts, as many as are computed at once."""
        part = prompts[:1]
        for prompt in prompts[1:]:
            both = [*part, prompt]
            of_past = _padding([other.known for other in both])
            is_similar = (prompt.past is None) == (part[0].past is None) and of_past <= MAX_TOKENS
            if self._is_plain and not (is_similar and _padding([other.new for other in both]) <= MAX_PADDING):
                break
            if len(both) * prompt.new > self._max_tokens:
                break
            part = both
        return part

    def _decoding(self, prompts: list[Prompt], weight_version: int) -> Decoding:
        """Compute these prompts; they are padded on the left, and so are their kept caches."""
        model, pasts = self.model, [prompt.past for prompt in prompts if prompt.past is not None]
        cache = growing(DynamicCache(config=model.config))
        if pasts:
            fill(cache, [past.layers for past in pasts])
        lengths = [(prompt.known, prompt.new) for prompt in prompts]
        known, new = (max(column) for column in zip(*lengths, strict=True))
        padded = [[self._pad_id] * (new - prompt.new) + prompt.ids[prompt.known :] for prompt in prompts]
        ids_BN = torch.tensor(padded, device=model.device)
        columns_L = torch.arange(known + new, device=model.device) - known  # the first new one is 0
        known_B1, new_B1 = torch.tensor(lengths, device=model.device).T[..., None]
        mask_BL = torch.where(columns_L < 0, columns_L >= -known_B1, columns_L >= new - new_B1).long()
        inputs = {"input_ids": ids_BN, "attention_mask": mask_BL}
        if self.images is not None:
            pictures = [prompt.rows[0].request.prompt.pictures for prompt in prompts]
            inputs = self.images.inputs(ids_BN, mask_BL, pictures)
        inputs["position_ids"] = positions(model, inputs)[..., -new:]
        for prompt, ids in zip(prompts, ids_BN.tolist(), strict=True):
            seen = prompt.ids[: prompt.known] + ids[new - prompt.new :]
            for row in prompt.rows:
                row.seen_ids, row.num_cached = seen[: len(row.request.prompt)], prompt.known
        kept = self.kept if self.images is None else None
        decoding = Decoding(model, cache, inputs, weight_version, kept)
        decoding.begin([prompt.rows for prompt in prompts])
        return decoding


def _padding(lengths: list[int]) -> int:
    return len(lengths) * max(lengths) - sum(lengths)
