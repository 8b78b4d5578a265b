"""Generation: token ids in, sampled token ids and their log-probabilities out.

- `Sampling`, `GenerationRequest`, `Generation`, `Generator`: the contract between a policy and an inference engine.
- `TransformersGenerator`: the model in this process; requests that wait are decoded together, as one batch.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

import numpy as np
import torch
from torch import Tensor
from transformers import (
    DynamicCache,
    LogitsProcessorList,
    MinPLogitsWarper,
    PreTrainedModel,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

QUIET_SECONDS = 0.003  # a batch starts once no request has come for this long ...
GATHER_SECONDS = 0.05  # ... or after this long at most


@dataclass(kw_only=True, slots=True, frozen=True)
class Sampling:
    """The distribution that tokens are sampled from; temperature 0 is greedy."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0  # 0 = all tokens
    min_p: float = 0.0

    def __post_init__(self) -> None:
        if self.temperature < 0:
            raise ValueError(f"temperature must be 0 (greedy) or positive, got {self.temperature}")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"top_p must be in (0, 1], got {self.top_p}")
        if self.top_k < 0:
            raise ValueError(f"top_k must be 0 (all tokens) or positive, got {self.top_k}")
        if not 0 <= self.min_p <= 1:
            raise ValueError(f"min_p must be in [0, 1], got {self.min_p}")

    @property
    def is_full_distribution(self) -> bool:
        """Whether every token can be sampled, so that log-probabilities are comparable with the trainer's."""
        return self.temperature > 0 and self.top_p == 1 and self.top_k == 0 and self.min_p == 0


@dataclass(kw_only=True, slots=True, frozen=True)
class GenerationRequest:
    """One answer that is asked for."""

    prompt_ids: Sequence[int]  # all tokens so far
    max_tokens: int  # no more than these are generated
    stop_ids: frozenset[int]  # any of them ends the answer, and is part of it
    seed: int  # the same seed gives the same answer, whatever else is in the batch
    sampling: Sampling


@dataclass(kw_only=True, slots=True, frozen=True)
class Generation:
    """One answer."""

    token_ids: list[int]  # (T,) as sampled; the stop token included
    logprobs: list[float]  # (T,) under the sampling distribution; for greedy decoding, at temperature 1
    finish: Literal["stop", "length"]  # a stop token, or max_tokens
    prompt_ids: list[int]  # the prompt as the engine saw it


class Generator(Protocol):
    """An inference engine."""

    async def generate(self, request: GenerationRequest) -> Generation:
        """Generate one answer; requests that are in flight together may share a batch."""
        ...

    def close(self) -> None:
        """Release the engine; requests that still wait fail."""
        ...


@dataclass(slots=True, eq=False)
class _Row:
    """A request on its way through a batch."""

    request: GenerationRequest
    resolve: Callable[[Generation | None, BaseException | None], None]
    uniforms: np.ndarray  # (max_tokens,) the randomness of this request
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    abandoned: bool = False  # nobody waits any more

    @property
    def finish(self) -> Literal["stop", "length"] | None:
        if self.token_ids and self.token_ids[-1] in self.request.stop_ids:
            return "stop"
        return "length" if len(self.token_ids) >= self.request.max_tokens else None


class TransformersGenerator:
    """Samples with a transformers model in this process; training and sampling share its weights.

    One thread decodes. Requests that wait when it is free become its next batch, so episodes need not march in step;
    an answer is handed out as soon as it is complete.

    Args:
        model: A decoder-only model with a key-value cache.
        pad_id: Fills rows on the left; never attended to.
        max_batch_size: Requests in one batch.
    """

    def __init__(self, model: PreTrainedModel, *, pad_id: int = 0, max_batch_size: int = 256) -> None:
        if max_batch_size < 1:
            raise ValueError(f"max_batch_size must be at least 1, got {max_batch_size}")
        self.model = model
        self.pad_id = pad_id
        self.max_batch_size = max_batch_size
        self._waiting: list[_Row] = []
        self._changed = threading.Condition()
        self._closed = False
        self._thread: threading.Thread | None = None

    async def generate(self, request: GenerationRequest) -> Generation:
        """Generate one answer.

        Raises:
            ValueError: there is nothing to continue, or no token may be generated.
            RuntimeError: the generator is closed.
        """
        if not request.prompt_ids or request.max_tokens < 1:
            raise ValueError(
                f"a request needs a prompt and max_tokens >= 1, got {len(request.prompt_ids)} prompt tokens and "
                f"max_tokens={request.max_tokens}"
            )
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Generation] = loop.create_future()

        def settle(result: Generation | None, error: BaseException | None) -> None:
            if not future.done():
                future.set_exception(error) if error else future.set_result(result)  # type: ignore[arg-type]

        uniforms = np.random.Generator(np.random.Philox(key=request.seed)).random(request.max_tokens)
        row = _Row(request, lambda result, error: loop.call_soon_threadsafe(settle, result, error) and None, uniforms)
        self._submit(row)
        try:
            return await future
        except asyncio.CancelledError:
            row.abandoned = True
            raise

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join()

    def _submit(self, row: _Row) -> None:
        with self._changed:
            if self._closed:
                raise RuntimeError("the generator is closed")
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="gymnast-generator", daemon=True)
                self._thread.start()
            self._waiting.append(row)
            self._changed.notify_all()

    # The decoding thread.

    def _work(self) -> None:
        while rows := self._next_batch():
            try:
                self._decode(rows)
            except BaseException as error:  # every waiting episode must hear of it
                for row in rows:
                    _settle(row, None, error)
        with self._changed:
            for row in self._waiting:
                _settle(row, None, RuntimeError("the generator was closed"))
            self._waiting.clear()

    def _next_batch(self) -> list[_Row]:
        """The requests that wait, once they have stopped coming; empty when the generator is closed."""
        with self._changed:
            while not self._waiting and not self._closed:
                self._changed.wait()
            deadline = time.monotonic() + GATHER_SECONDS
            while not self._closed and len(self._waiting) < self.max_batch_size and time.monotonic() < deadline:
                if not self._changed.wait(QUIET_SECONDS):
                    break
            if self._closed:
                return []
            # Rows of one batch share the sampling distribution; the others come next.
            sampling = self._waiting[0].request.sampling
            batch = [row for row in self._waiting if row.request.sampling == sampling][: self.max_batch_size]
            taken = set(map(id, batch))
            self._waiting = [row for row in self._waiting if id(row) not in taken]
            return batch

    def _decode(self, rows: list[_Row]) -> None:
        training = self.model.training
        self.model.eval()  # no dropout, and no gradient checkpointing, which would switch off the cache
        try:
            with torch.no_grad():
                _Batch(self.model, rows, self.pad_id).run()
        finally:
            self.model.train(training)


class _Batch:
    """One batch from prefill to its last token; rows leave as they finish."""

    def __init__(self, model: PreTrainedModel, rows: list[_Row], pad_id: int) -> None:
        self.model = model
        self.rows = rows
        self.cache = DynamicCache(config=model.config)
        self.sampling = rows[0].request.sampling
        self.warpers = _warpers(self.sampling)
        length = max(len(row.request.prompt_ids) for row in rows)
        padded = [[pad_id] * (length - len(row.request.prompt_ids)) + list(row.request.prompt_ids) for row in rows]
        real = [[0] * (length - len(row.request.prompt_ids)) + [1] * len(row.request.prompt_ids) for row in rows]
        self.input_ids = torch.tensor(padded, device=model.device)  # (B, L); after prefill (B, 1)
        self.attention_mask = torch.tensor(real, device=model.device)  # (B, all tokens so far)
        seen_ids = [ids[mask.bool()].tolist() for ids, mask in zip(self.input_ids, self.attention_mask, strict=True)]
        self.seen_ids = dict(zip(map(id, rows), seen_ids, strict=True))

    def run(self) -> None:
        while True:
            logits_BV = self._forward()
            step = [len(row.token_ids) for row in self.rows]
            uniforms = [row.uniforms[min(t, len(row.uniforms) - 1)] for row, t in zip(self.rows, step, strict=True)]
            tokens_B, logprobs_B = sample(logits_BV, np.array(uniforms), self.sampling, self.warpers)
            for row, token, logprob in zip(self.rows, tokens_B.tolist(), logprobs_B.tolist(), strict=True):
                if not row.abandoned and row.finish is None:
                    row.token_ids.append(token)
                    row.logprobs.append(logprob)
                    self._finish(row)
            self.input_ids = tokens_B[:, None]
            self.attention_mask = torch.cat([self.attention_mask, self.attention_mask.new_ones(len(self.rows), 1)], 1)
            if not self._compact():
                return

    def _forward(self) -> Tensor:
        """Next-token logits (B, V) in float32."""
        length = self.input_ids.shape[1]
        position_ids = (self.attention_mask.cumsum(1) - 1).clamp(min=0)[:, -length:]
        output = self.model(
            input_ids=self.input_ids,
            attention_mask=self.attention_mask,
            position_ids=position_ids,
            past_key_values=self.cache,
            use_cache=True,
            logits_to_keep=1,
        )
        return output.logits[:, -1].float()

    def _finish(self, row: _Row) -> None:
        if row.finish is None:
            return
        generation = Generation(
            token_ids=row.token_ids, logprobs=row.logprobs, finish=row.finish, prompt_ids=self.seen_ids[id(row)]
        )
        _settle(row, generation, None)

    def _compact(self) -> bool:
        """Drop finished rows once they are a quarter of the batch; False when no row is left."""
        alive = [index for index, row in enumerate(self.rows) if row.finish is None and not row.abandoned]
        if not alive:
            return False
        if len(alive) <= 0.75 * len(self.rows):
            keep = torch.tensor(alive, device=self.input_ids.device)
            self.rows = [self.rows[index] for index in alive]
            self.cache.batch_select_indices(keep)
            self.input_ids = self.input_ids[keep]
            self.attention_mask = self.attention_mask[keep]
        return True


def _settle(row: _Row, generation: Generation | None, error: BaseException | None) -> None:
    try:
        row.resolve(generation, error)
    except RuntimeError:
        row.abandoned = True  # its event loop is closed


def _warpers(sampling: Sampling) -> LogitsProcessorList:
    warpers = LogitsProcessorList()
    if sampling.temperature not in (0, 1):
        warpers.append(TemperatureLogitsWarper(sampling.temperature))
    if sampling.top_k:
        warpers.append(TopKLogitsWarper(sampling.top_k))
    if sampling.top_p < 1:
        warpers.append(TopPLogitsWarper(sampling.top_p))
    if sampling.min_p:
        warpers.append(MinPLogitsWarper(sampling.min_p))
    return warpers


def sample(
    logits_BV: Tensor, uniforms_B: np.ndarray, sampling: Sampling, warpers: LogitsProcessorList
) -> tuple[Tensor, Tensor]:
    """Tokens (B,) and their log-probabilities (B,), by inverting the cumulative distribution at given uniforms in [0, 1).

    One number for each row and step makes a row's randomness its own: it depends on nothing else in the batch.
    """
    if sampling.temperature == 0:
        tokens_B = logits_BV.argmax(-1)
        return tokens_B, torch.log_softmax(logits_BV, -1).gather(1, tokens_B[:, None])[:, 0]
    logprobs_BV = torch.log_softmax(warpers(None, logits_BV), -1)  # type: ignore[arg-type]
    cdf_BV = logprobs_BV.double().exp().cumsum(-1)  # in double: float32 would lose the tail of a large vocabulary
    points_B = torch.as_tensor(uniforms_B, device=cdf_BV.device) * cdf_BV[:, -1]
    tokens_B = torch.searchsorted(cdf_BV, points_B[:, None], right=True)[:, 0].clamp(max=cdf_BV.shape[1] - 1)
    return tokens_B, logprobs_BV.gather(1, tokens_B[:, None])[:, 0]
