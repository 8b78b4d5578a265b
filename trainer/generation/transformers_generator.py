"""TransformersGenerator: samples with a model in this process. Later requests join the running batch."""

from __future__ import annotations

import asyncio
import atexit
import copy
import logging
import threading
import time
from collections.abc import Sequence

import numpy as np
import torch
from torch import nn
from transformers import PreTrainedModel

from ..models.cache_check import check_cache
from ..models.contexts import evaluating
from ..models.decode_attention import grouped_heads
from ..models.images import ImageEncoder
from .batch import Batch
from .contract import Generation, GenerationError, GenerationRequest, Generator, check_request, settle
from .decoding import Row
from .kept_caches import KeptCaches
from .prefill import Prefill
from .sampling import Sampling

QUIET_SECONDS = 0.003  # a batch starts once no request has come for this long ...
GATHER_SECONDS = 0.05  # ... or after this long at most
JOIN_STEPS = 8  # minimum steps between prefills; each prefill costs the running rows about one step
IDLE_SECONDS = 10.0  # the decoding thread ends after this long without work, so a forgotten close() leaks nothing

logger = logging.getLogger(__name__)


class TransformersGenerator(Generator):
    """Samples with a transformers model in this process.

    One thread decodes. When it is free, all waiting requests become its next batch. Later requests join that batch
    after a few steps, so each episode runs at its own pace, and an answer is returned as soon as it is complete.
    A request waits until the batch has ended if it has another `Sampling`, or if the model's cache does not allow
    joining (sliding windows, recurrent states, `longrope`).

    A prompt that several requests share is computed once, and so are the tokens of a conversation: the keys and values
    of an answered request stay for the next one of its `session`, up to a budget, until `sleep` or new weights. A model
    that takes images, or whose cache does not allow joining, computes each turn from its first token.

    Short rows are not padded to long ones where that costs more than another forward pass. Where memory does not
    suffice, half as many tokens are prefilled or rows are sampled at once, until `wake` or new weights; no answer is
    lost.

    The continuous batching of transformers has neither a seed for each request nor a cache over the turns.

    Args:
        model: A decoder-only model with a key-value cache (or recurrent states).
        pad_id: Fills rows on the left; the model never attends to it.
        max_batch_size: Requests that are decoded together.
        copies: Sample with a copy of the model, which `load_weights` brings up to date. Otherwise training and sampling
            share the weights, and no request may be in flight while they change.
        dtype: Compute matrix products in this precision (`torch.autocast`), as a trainer with `bf16` or `fp16` does.
        images: Encodes the pictures in prompts, for models that take them.
        kept_bytes: Most bytes of keys and values that are kept between turns; the least recently used go first.
            Default: a quarter of the GPU's memory that is free when the first are kept; without a GPU 2 GiB.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        pad_id: int = 0,
        max_batch_size: int = 256,
        copies: bool = False,
        dtype: torch.dtype | None = None,
        images: ImageEncoder | None = None,
        kept_bytes: int | None = None,
    ) -> None:
        if max_batch_size < 1:
            raise ValueError(f"max_batch_size must be at least 1, got {max_batch_size}")
        self.copies = copies
        self.dtype = dtype
        self._source = model
        # Now, because accelerate may wrap `forward` later, and a copy of the wrapper would call the source.
        self.model = copy.deepcopy(model).requires_grad_(False).eval() if copies else model
        if copies and dtype is not None:
            _cast_as_autocast(self.model, dtype)
        self.max_batch_size = self._most_rows = max_batch_size
        self.weight_version = 0
        self._kept = KeptCaches(kept_bytes)
        self._prefill = Prefill(self.model, pad_id, images, self._kept)
        self._waiting: list[Row] = []
        self._changed = threading.Condition()
        self._checked = False
        self._closed = False
        self._thread: threading.Thread | None = None

    async def generate(self, request: GenerationRequest) -> Generation:
        vocabulary = self.model.config.get_text_config().vocab_size
        check_request(request, vocabulary, takes_images=self._prefill.images is not None)
        row = Row(request, random=np.random.Generator(np.random.Philox(key=request.seed)))
        self._submit(row)
        return await asyncio.wrap_future(row.answer)  # on cancellation the row is dropped from its batch

    def load_weights(self, model: PreTrainedModel, version: int) -> None:
        """Copy the weights, if this generator has a copy. The first time, check that the model's cache works.

        Raises:
            ValueError: it is another model.
            ConfigurationError: decoding with the model's cache gives another distribution than without.
        """
        if model is not self._source:
            raise ValueError("a TransformersGenerator samples with the model that it was made for; make a new one")
        if self.copies:
            self.model.to(model.device)  # type: ignore[arg-type]
            self.model.load_state_dict(model.state_dict())
        if not self._checked:
            with grouped_heads(self.model), self._autocast():
                check_cache(self.model)
            self._checked = True
        self._kept.clear()
        self.wake()  # with `max_staleness` this is the only call between two rounds
        self.weight_version = version

    def wake(self) -> None:
        """Sample as many rows at once as is allowed, even if an earlier round ran out of memory."""
        self._most_rows = self.max_batch_size
        self._prefill.forget_limits()

    def sleep(self) -> None:
        """Drop the kept caches."""
        self._kept.clear()

    def close(self) -> None:
        """End the decoding thread. Unanswered requests fail."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            thread = self._thread
        if thread is not None:
            thread.join()
        self._kept.clear()

    def _submit(self, row: Row) -> None:
        with self._changed:
            if self._closed:
                raise GenerationError("the generator is closed")
            self._waiting.append(row)
            self._changed.notify_all()
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="gymnast-generator", daemon=True)
                self._thread.start()
                atexit.register(self.close)  # the interpreter must not end under a thread that is inside PyTorch

    # The decoding thread.

    def _work(self) -> None:
        while rows := self._next_batch():
            self._decode(rows)

    def _next_batch(self) -> list[Row]:
        """Return the waiting requests once no more arrive, or an empty list when the thread is to end."""
        with self._changed:
            while self._gather():
                if batch := self._take(self._most_rows):
                    return batch
            _fail(self._waiting)
            self._waiting = []
            self._thread = None  # after an idle time, the next request starts a new thread
            atexit.unregister(self.close)
            return []

    def _gather(self) -> bool:
        """Wait for requests. Return False if the generator is closed or was idle for `IDLE_SECONDS`."""
        while not self._waiting and not self._closed:
            if not self._changed.wait(IDLE_SECONDS) and not self._waiting:
                return False
        deadline = time.monotonic() + GATHER_SECONDS
        while not self._closed and len(self._waiting) < self._most_rows and time.monotonic() < deadline:
            if not self._changed.wait(QUIET_SECONDS):
                break
        return not self._closed

    def _take(self, count: int, sampling: Sampling | None = None) -> list[Row]:
        """Take requests that sample as the first does; none if the first request's sampling differs from `sampling`."""
        self._waiting = [row for row in self._waiting if not row.answer.done()]  # the others were cancelled
        first = self._waiting[0].request.sampling if self._waiting else None
        if sampling is not None and sampling != first:
            return []  # even if later requests would fit: otherwise the first could wait for ever
        taken = [row for row in self._waiting if row.request.sampling == first][:count]
        ids = set(map(id, taken))
        self._waiting = [row for row in self._waiting if id(row) not in ids]
        return taken

    def _decode(self, rows: list[Row]) -> None:
        """Decode these rows, and rows that join them, until all are done."""
        batch = Batch(self._prefill, rows[0].request.sampling, self.weight_version)
        try:
            with evaluating(self.model), grouped_heads(self.model), torch.no_grad(), self._autocast():
                batch.add(rows)
                steps = 0
                while batch.decodings and not self._closed:
                    if steps >= JOIN_STEPS and self._join(batch, rows):
                        steps = 0
                    else:
                        batch.step()
                        steps += 1
                _fail(rows)
        except torch.OutOfMemoryError as error:
            self._halve(rows, error)
        except BaseException as error:
            _fail(rows, error)

    def _join(self, batch: Batch, rows: list[Row]) -> bool:
        """Let waiting requests join the rows of a batch. Return False if none can, or if their prefill failed."""
        if not self._waiting or not batch.can_join or batch.weight_version != self.weight_version:
            return False
        with self._changed:
            joining = self._take(self._most_rows - batch.size, batch.sampling)
        if not joining:
            return False
        rows[:] = [row for row in rows if not row.answer.done()] + joining
        try:
            batch.add(joining)
        except torch.OutOfMemoryError:
            raise
        except BaseException as error:
            _fail(joining, error)  # the others go on
            return False
        return True

    def _halve(self, rows: Sequence[Row], error: torch.OutOfMemoryError) -> None:
        """Sample half as many rows at once from now on. These rows go on from the tokens that they have.

        A single row goes on if there were kept caches to drop, and fails otherwise.
        """
        freed = self._kept.clear()
        rows = [row for row in rows if not row.answer.done()]
        if len(rows) > 1:
            self._most_rows = len(rows) // 2
            logger.warning("out of memory with %d rows: %d are sampled at once now", len(rows), self._most_rows)
        elif not freed:
            _fail(rows, error)
            return
        with self._changed:
            self._waiting = [*rows, *self._waiting]

    def _autocast(self) -> torch.autocast:
        return torch.autocast(self.model.device.type, dtype=self.dtype, enabled=self.dtype is not None)


def _cast_as_autocast(model: nn.Module, dtype: torch.dtype) -> None:
    """Cast the weights that `torch.autocast` would cast for each product: those of linear layers, except tied ones.

    The other weights stay, because autocast computes with them in their own precision.
    """
    of_linear: set[nn.Parameter] = set()
    of_others: set[nn.Parameter] = set()
    for module in model.modules():
        (of_linear if isinstance(module, nn.Linear) else of_others).update(module.parameters(recurse=False))
    for weight in of_linear - of_others:
        if weight.dtype == torch.float32:
            weight.data = weight.data.to(dtype)


def _fail(rows: Sequence[Row], cause: BaseException | None = None) -> None:
    """Fail the rows that have no answer yet, so that no episode waits for ever. No cause: the generator was closed."""
    for row in rows:
        error = GenerationError("the generator was closed before it had answered")
        if cause is not None:
            error = GenerationError(f"the model failed while decoding: {type(cause).__name__}: {cause}")
            error.__cause__ = cause
        settle(row.answer, error)
